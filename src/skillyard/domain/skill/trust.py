"""An operator's approvals: of the bytes of one version, and by rule (``NAMES [RANGE]``).

====================  ================================================================
``pdf``               every version of this skill
``pdf >=1,<2``        those within the range (:class:`skillyard.domain.skill.semver.Range`)
``acme.*``            every skill below ``acme``, at any depth; not ``acme`` itself
``*``                 every skill that has a plain name
====================  ================================================================

``*`` stands for whole segments and only at the end, so that no rule reaches a name that merely begins alike
(``acme.*`` is not ``acmecorp.x``). A rule matches plain names only, of ASCII letters in lower case, digits, hyphens and
dots: a look-alike in another alphabet does not match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.skill.semver import Range
from skillyard.values import dataclass

MOST_RULES = 1000
_LONGEST = 512
_SEGMENT = "[a-z0-9]+(?:-[a-z0-9]+)*"
_PLAIN = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")
_RULE = re.compile(rf"(?:({_SEGMENT}(?:\.{_SEGMENT})*)(\.\*)?|\*)(?: +(\S.*))?")


NEEDS = 2
"""The needs that an approval of today covers: 1 are those from before skills could declare tools, 2 have these, too."""
_WITH_TOOLS = 2


@dataclass(frozen=True, slots=True)
class Approval:
    """An operator's consent to the declared needs of one version of a skill.

    It is bound to the bytes: it does not approve another bundle under the same name and version. Times are UTC seconds
    since the epoch.
    """

    name: str
    version: str
    digest: str
    approved_at: float
    approved_by: str
    note: str = ""
    needs: int = NEEDS
    """The declared needs that it covers."""


@dataclass(frozen=True, slots=True)
class ApprovedPackages:
    """The packages that an approval covers.

    ``lock`` is the text of the first lock of the skill's own requirements, ``wanted`` the digest of these.
    """

    wanted: str
    lock: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The approval of a skill's declared needs, or its lack.

    ``by`` is ``built-in``, ``directory`` (the operator put the skill into a directory), ``rule`` (``because`` is its
    text), ``operator`` (``because`` is the name), or ``nobody``.
    """

    approved: bool
    by: str
    because: str = ""
    needs: int = NEEDS

    @property
    def covers_tools(self) -> bool:
        """Returns whether it covers declared tools, which an earlier approval never showed."""
        return self.needs >= _WITH_TOOLS


@dataclass(frozen=True, slots=True)
class TrustRule:
    """A rule. ``prefix`` ends with a dot and is empty for ``*``; a rule for one skill has ``name``."""

    text: str
    name: str = ""
    prefix: str = ""
    range: Range = field(default_factory=Range)

    @classmethod
    def parse(cls, text: object, where: str = "trust.approve") -> TrustRule:
        """Raises InvalidInput naming ``where``."""
        match = _RULE.fullmatch(text) if isinstance(text, str) and len(text) <= _LONGEST else None
        if match is None:
            rule = "must be a skill's name, 'name.*' or '*', each with an optional range: 'pdf >=1,<2'"
            raise InvalidInput(where, rule, shown(text))
        name, below, bounds = match.groups()
        versions = Range.parse(bounds, where) if bounds else Range()
        if name is None:
            return cls(match[0], range=versions)
        return cls(match[0], prefix=f"{name}.", range=versions) if below else cls(match[0], name, range=versions)

    def covers(self, name: str, version: str) -> bool:
        if self.name:
            return name == self.name and self.range.admits(version)
        return name.startswith(self.prefix) and _PLAIN.fullmatch(name) is not None and self.range.admits(version)


def parse_trust_rules(value: object, where: str = "trust.approve") -> tuple[TrustRule, ...]:
    """Raises InvalidInput naming the rule that is wrong."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) > MOST_RULES:
        raise InvalidInput(where, f"must be a list of at most {MOST_RULES} rules", shown(value))
    return tuple(TrustRule.parse(text, f"{where}[{index}]") for index, text in enumerate(value))
