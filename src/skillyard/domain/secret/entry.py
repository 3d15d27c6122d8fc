"""A stored secret without its values: for whom it is, how it is delivered, which versions there are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.secret.secret import Delivery

MAX_SECRETS = 10_000

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SKILLS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}\*?")


def check_project(field: str, project: str) -> str:
    """A project's name. Raises InvalidInput."""
    if not _PROJECT.fullmatch(project):
        raise InvalidInput(
            field, "must be a letter or digit, then letters, digits or . _ -, at most 64 in all", shape(project)
        )
    return project


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
        """Of two that admit the same run the higher is the more specific: a project's own before everybody's, then a
        whole name before a start of names, then the longer. No two that admit one run are alike."""
        return bool(self.project), bool(self.skills) and not self.skills.endswith("*"), len(self.skills)


EVERYBODY = SecretScope()


def covers(pattern: str, skill: str) -> bool:
    """Whether a scope's pattern admits a skill's name."""
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
