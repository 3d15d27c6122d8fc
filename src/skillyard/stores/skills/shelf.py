"""The catalogue at one moment: which skills are served, which are not and why."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from skillyard.domain.errors import SkillNotFound
from skillyard.domain.manifest_name import GUIDE
from skillyard.domain.semver import Precedence, Version, latest, newest_first
from skillyard.domain.skill import Finding, Skill, SkillLine
from skillyard.stores.skills.stamps import Watched
from skillyard.stores.skills.tree import shown


@dataclass(frozen=True, slots=True)
class Loaded:
    """One bundle as it was read: the skill or none, what there was to say, and the stamps of its files.
    ``settled``: equal stamps mean equal bytes."""

    path: Path
    skill: Skill | None
    findings: tuple[Finding, ...]
    watched: Watched
    settled: bool

    def problems(self) -> Iterable[Finding]:
        """The errors, with the bundle's path in front of the file's."""
        for finding in self.findings:
            if finding.level == "error":
                yield replace(finding, file=shown(str(self.path / finding.file)))


@dataclass(frozen=True, slots=True)
class Shelf:
    skills: Mapping[str, Mapping[str, Skill]]
    latest: Mapping[str, Skill]
    versions: Mapping[str, tuple[str, ...]]
    names: tuple[str, ...]
    revision: str
    problems: tuple[Finding, ...]

    def get(self, name: str, version: str | None) -> Skill:
        """Raises SkillNotFound."""
        skill = self.latest.get(name) if version is None else self.skills.get(name, {}).get(version)
        if skill is None:
            raise self._missing(name, version)
        return skill

    def page(self, after: str | None, limit: int, namespace: str | None) -> list[SkillLine]:
        below = f"{namespace}."
        start = 0 if after is None else bisect_right(self.names, after)
        fitting = (n for n in self.names[start:] if namespace is None or n == namespace or n.startswith(below))
        return [self.latest[name].line for name in islice(fitting, limit)]

    def versions_of(self, name: str) -> tuple[str, ...]:
        """Raises SkillNotFound."""
        if name not in self.versions:
            raise self._missing(name, None)
        return self.versions[name]

    def _missing(self, name: str, version: str | None) -> SkillNotFound:
        if version is None or name not in self.versions:
            return SkillNotFound("name", f"no skill '{name[:256]}'", skill=name[:256])
        have = ", ".join(self.versions[name][:10])
        return SkillNotFound(
            "version", f"the skill '{name}' has no version '{version[:128]}'; it has {have}", skill=name
        )


def arrange(bundles: Sequence[Loaded], guide: Path | None, notes: Sequence[Finding]) -> Shelf:
    """A shelf of ``bundles``; of several with one name and version the first is served. The guide's name belongs
    to the bundle at ``guide`` alone. ``notes`` are findings about the search itself."""
    taken: dict[tuple[str, Precedence], Loaded] = {}
    problems = list(notes)
    skills: dict[str, dict[str, Skill]] = {}
    for bundle in bundles:
        problems.extend(bundle.problems())
        refusal = _refusal(bundle, guide, taken)
        if refusal:
            problems.append(refusal)
        elif bundle.skill is not None:
            skills.setdefault(bundle.skill.name, {})[bundle.skill.version] = bundle.skill
    return _shelf(skills, tuple(problems))


def _refusal(bundle: Loaded, guide: Path | None, taken: dict[tuple[str, Precedence], Loaded]) -> Finding | None:
    skill = bundle.skill
    if skill is None:
        return None
    if skill.name == GUIDE and bundle.path != guide:
        return Finding(
            "error", shown(str(bundle.path)), 0, "guide-reserved", f"'{GUIDE}' is built in and stays as it is"
        )
    first = taken.setdefault((skill.name, Version.parse(skill.version).precedence), bundle)
    if first is bundle or first.skill is None:
        return None
    level = "warning" if first.skill.digest == skill.digest else "error"
    message = f"{skill.name} {skill.version} comes from {shown(str(first.path))}, which is found first"
    return Finding(level, shown(str(bundle.path)), 0, "duplicate-version", message)


def _shelf(skills: dict[str, dict[str, Skill]], problems: tuple[Finding, ...]) -> Shelf:
    names = tuple(sorted(skills))
    versions = {name: tuple(newest_first(skills[name])) for name in names}
    newest = {name: skills[name][latest(versions[name]) or ""] for name in names}
    lines = [f"{name} {version} {skills[name][version].digest}\n" for name in names for version in versions[name]]
    revision = hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
    return Shelf(skills, newest, versions, names, revision, problems)
