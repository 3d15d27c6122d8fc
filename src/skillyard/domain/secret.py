"""A secret: name, value, scope, delivery and versions, and the audit of its use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, field, replace
from enum import StrEnum
from typing import Any

from skillyard.domain.checks import check_unicode
from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.network.rule import Rule, parse_rule
from skillyard.domain.principal import check_project
from skillyard.values import dataclass

MAX_SECRETS = 10_000
_SKILLS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}\*?")
MAX_VALUE_BYTES = 64 * 1024
MAX_HOSTS = 32

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED = frozenset(
    {
        "BASH_ENV",
        "CDPATH",
        "ENV",
        "GLOBIGNORE",
        "HOME",
        "HOSTALIASES",
        "HOSTNAME",
        "IFS",
        "LANG",
        "LANGUAGE",
        "LOCPATH",
        "LOGNAME",
        "NLSPATH",
        "NODE_OPTIONS",
        "NODE_PATH",
        "OLDPWD",
        "OPENSSL_CONF",
        "OPENSSL_ENGINES",
        "OPENSSL_MODULES",
        "PATH",
        "PERL5LIB",
        "PERL5OPT",
        "PERLLIB",
        "PROMPT_COMMAND",
        "PS4",
        "PWD",
        "RESOLV_HOST_CONF",
        "RES_OPTIONS",
        "RUBYLIB",
        "RUBYOPT",
        "SHELL",
        "SHELLOPTS",
        "SHLVL",
        "TEMP",
        "TMP",
        "TMPDIR",
        "TZ",
        "USER",
        "_",
    }
)
_RESERVED_PREFIXES = ("BASH_FUNC_", "GCONV_", "GLIBC_", "LC_", "LD_", "MALLOC_", "PYTHON", "SKILLYARD_")


class Delivery(StrEnum):
    """ENV: the value is an environment variable of the sandbox. GATE: a placeholder is, and the gate puts the value
    into header fields of requests to the bound hosts."""

    ENV = "env"
    GATE = "gate"


def bound_hosts(texts: Iterable[str], field: str = "hosts") -> tuple[Rule, ...]:
    """Hosts that a secret is bound to: ``api.x.com``, ``*.x.com``, either with ``:PORTS``, else port 443.
    Raises InvalidInput for whatever names no host: addresses, ``*``, deny rules."""
    hosts = list(texts)
    if len(hosts) > MAX_HOSTS:
        raise InvalidInput(field, f"must be at most {MAX_HOSTS} hosts", shape(hosts))
    return tuple(_bound_host(text, f"{field}[{index}]") for index, text in enumerate(hosts))


def _bound_host(text: str, field: str) -> Rule:
    rule = parse_rule(text, field)
    if rule.deny or rule.everything or rule.network is not None:
        raise InvalidInput(field, "must be a host name or '*.host.name', with an optional :PORTS", shape(text))
    return rule if ":" in text else parse_rule(f"{text}:443", field)


def check_secret_name(field: str, name: str) -> str:
    """Returns ``name``, fit for an environment variable.

    It may not steer an interpreter, the loader, a shell or us. Raises InvalidInput."""
    if not _NAME.fullmatch(name):
        rule = "must be a letter or _, then letters, digits or _, at most 128 in all"
        raise InvalidInput(field, rule, shape(name))
    if name.upper() in _RESERVED or name.upper().startswith(_RESERVED_PREFIXES):
        raise InvalidInput(field, f"'{name}' is reserved: it steers how programs run")
    return name


def check_secret_value(field: str, value: str) -> str:
    """``value``, not empty, without NUL, at most 64 KiB of UTF-8. Raises InvalidInput, never with the value."""
    size = len(check_unicode(field, value))
    if not value or "\0" in value or size > MAX_VALUE_BYTES:
        rule = f"must not be empty, hold NUL or pass {MAX_VALUE_BYTES} bytes of UTF-8"
        raise InvalidInput(field, rule, shape(value))
    return value


@dataclass(frozen=True, slots=True)
class SecretScope:
    """For whom a secret is. ``project``: empty for every one. ``skills``: a name, or the start of names with ``*`` at
    its end; empty for every one. As text: ``crm/sales.*``, ``*/*``."""

    project: str = ""
    skills: str = ""

    def __str__(self) -> str:
        return f"{self.project or '*'}/{self.skills or '*'}"

    def check(self) -> SecretScope:
        """Raises InvalidInput for a project or a pattern that cannot be one."""
        if self.project:
            check_project("project", self.project)
        if self.skills and not _SKILLS.fullmatch(self.skills):
            rule = "must be a skill's name, or the start of names with '*' at its end: 'sales.*'"
            raise InvalidInput("skills", rule, shape(self.skills))
        return self

    def admits(self, project: str, skill: str) -> bool:
        return self.project in ("", project) and covers(self.skills, skill)

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """The higher of two that admit the same run is the more specific one.

        A project's own goes before everybody's, then a whole name before a start of names, then the longer. No two that
        admit one run are alike."""
        return bool(self.project), bool(self.skills) and not self.skills.endswith("*"), len(self.skills)


EVERYBODY = SecretScope()


def covers(pattern: str, skill: str) -> bool:
    """Returns whether a scope's pattern admits a skill's name."""
    if pattern.endswith("*"):
        return skill.startswith(pattern[:-1])
    return pattern in ("", skill)


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """``id`` is where the store keeps the value."""

    number: int
    created_at: float
    created_by: str
    id: str


@dataclass(frozen=True, slots=True)
class SecretEntry:
    """``versions`` ascend; ``current`` is the one that runs get. ``hosts`` as written, each a bound host."""

    name: str
    scope: SecretScope
    delivery: Delivery
    hosts: tuple[str, ...]
    current: int
    versions: tuple[SecretVersion, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.scope.project, self.scope.skills

    def version(self, number: int) -> SecretVersion | None:
        return next((version for version in self.versions if version.number == number), None)

    def with_version(self, id_: str, at: float, by: str, keep: int) -> SecretEntry:
        """With a new version, which is current; at most ``keep`` stay."""
        number = self.versions[-1].number + 1 if self.versions else 1
        versions = (*self.versions, SecretVersion(number, at, by, id_))
        return replace(self, current=number, versions=versions[-keep:])

    def rolled_back(self, number: int) -> SecretEntry:
        """Raises InvalidInput for a version that is not kept."""
        if self.version(number) is None:
            kept = ", ".join(str(version.number) for version in self.versions)
            raise InvalidInput("version", f"must be one that is kept: {kept}", str(number)[:20])
        return replace(self, current=number)


def choose(entries: Iterable[SecretEntry], project: str, skill: str) -> SecretEntry | None:
    """The most specific of one name's entries that a run may have."""
    admitted = [entry for entry in entries if entry.scope.admits(project, skill)]
    return max(admitted, key=lambda entry: entry.scope.rank, default=None)


@dataclass(frozen=True, slots=True)
class Secret:
    """One that a run gets. ``version`` says where it came from and which it is: ``store:3``, ``vault:7``, ``files``;
    ``scope`` for whom it was kept."""

    name: str
    value: str = field(repr=False)
    version: str
    delivery: Delivery = Delivery.ENV
    hosts: tuple[str, ...] = ()
    scope: SecretScope = EVERYBODY


class SecretAct(StrEnum):
    """USED: a run was given it. DENIED: a run asked for it and got none. BOUND: its delivery was changed."""

    USED = "used"
    DENIED = "denied"
    SET = "set"
    BOUND = "bound"
    DELETED = "deleted"
    ROLLED_BACK = "rolled_back"
    ROTATED = "rotated"


@dataclass(frozen=True, slots=True)
class SecretEvent:
    """``at`` is in seconds since the epoch. ``project``, ``skill`` and ``run_id`` are those of the run that asked;
    ``scope`` is the entry's (:class:`skillyard.domain.secret.SecretScope`). No value ever stands here."""

    at: float
    act: SecretAct
    name: str
    principal: str
    project: str = ""
    skill: str = ""
    run_id: str = ""
    scope: str = ""
    version: str = ""
    delivery: str = ""
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"act": self.act.value}
