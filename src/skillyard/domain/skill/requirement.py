"""One entry of ``requires``: ``"name"`` or ``"name >=1.2,<2"`` (skills-protocol §11)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.skill.semver import Range

_FORM = re.compile(r"([^\W_](?:[\w.-]*[^\W_])?)\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Requirement:
    """Another skill by name, and the range that its version must lie in."""

    name: str
    range: Range = field(default_factory=Range)

    @classmethod
    def parse(cls, text: str, field: str = "requires") -> Requirement:
        """Raises InvalidInput naming ``field``."""
        match = _FORM.fullmatch(text.strip()) if len(text) <= 512 else None
        if match is None or ".." in match[1]:
            raise InvalidInput(field, "must be 'name' or 'name >=1.2,<2'", shown(text))
        return cls(match[1], Range.parse(match[2], field))

    def admits(self, version: str) -> bool:
        return self.range.admits(version)

    def choose(self, versions: Iterable[str]) -> str | None:
        """The newest fitting version, None when there is none."""
        return self.range.choose(versions)

    def __str__(self) -> str:
        return f"{self.name} {self.range}".strip()
