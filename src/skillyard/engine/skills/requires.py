"""The skills that a run mounts: the executed one, those it names, and their requirements.

Each is mounted in one version that all accept that require it. A search with conflict-directed backjumping (Prosser
1993): newest first, a pinned version before those, pre-releases last unless a range names one. It is deterministic,
finds a solution when there is one, and is bounded. Where all that was named is approved, versions that are approved
are tried alone first: a skill's range does not draw in bytes that nobody consented to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from skillyard.domain.errors import InvalidInput, SkillNotFound
from skillyard.domain.principal import Principal
from skillyard.domain.skill.requirement import Requirement
from skillyard.domain.skill.semver import Version, is_version, newest_first
from skillyard.domain.skill.skill import Skill
from skillyard.engine.skills.standings import Standings
from skillyard.ports.publications import PublicationStore
from skillyard.ports.skills import SkillStore

MOST_SKILLS = 64
"""That one run mounts."""
MOST_TRIES = 400
"""Versions that are looked at before a search is given up."""
_SHOWN = 5

Blame = frozenset[str]


def checked(skills: Sequence[Skill]) -> tuple[Skill, ...]:
    """Returns the skills of one run. Raises InvalidInput for too many and for import names that collide."""
    if len(skills) > MOST_SKILLS:
        raise InvalidInput("mount_skills", f"a run mounts at most {MOST_SKILLS} skills")
    _check_import_names(skills)
    return tuple(skills)


async def resolved(seen: Seen, target: Skill | None, roots: Sequence[Skill], *, approved: bool) -> list[Skill]:
    """Returns ``roots`` and the skills that these require. With ``approved``, approved versions are tried alone first.

    Raises SkillNotFound, InvalidInput."""
    if approved:
        try:
            return await _Search(seen, target, roots, approved_only=True).solve()
        except InvalidInput:
            pass
    return await _Search(seen, target, roots, approved_only=False).solve()


class Seen:
    """The catalogue as far as the principal may see it, each version read once."""

    def __init__(
        self,
        store: SkillStore,
        publications: PublicationStore,
        standings: Standings,
        principal: Principal,
        disabled: Collection[str] = (),
    ) -> None:
        self._store = store
        self._publications = publications
        self._standings = standings
        self._principal = principal
        self._disabled = disabled
        self._versions: dict[str, tuple[list[str], str | None]] = {}
        self._skills: dict[tuple[str, str], Skill | None] = {}
        self._approved: dict[tuple[str, str], bool] = {}
        self._approvable: dict[str, frozenset[str]] = {}

    async def versions(self, name: str) -> tuple[list[str], str | None]:
        """Returns all, newest first, and the one that is pinned."""
        if name not in self._versions:
            self._versions[name] = await self._look(name)
        return self._versions[name]

    async def _look(self, name: str) -> tuple[list[str], str | None]:
        if name in self._disabled or not self._principal.may_use(name):
            return [], None
        try:
            versions = await self._store.versions(name)
        except SkillNotFound:
            return [], None
        pin = await self._publications.pinned(name)
        ordered = newest_first(version for version in versions if is_version(version))
        return ordered, pin.version if pin is not None and pin.version in versions else None

    async def approvable(self, name: str) -> frozenset[str]:
        """Returns the versions that may be approved, as far as that shows without reading them.

        A publisher of a name can publish many versions that nobody approved."""
        if name not in self._approvable:
            versions, _ = await self.versions(name)
            known = await self._store.not_published(name) | await self._standings.approved_versions(name)
            rule = self._standings.trust.rule_for
            self._approvable[name] = frozenset(v for v in versions if v in known or rule(name, v) is not None)
        return self._approvable[name]

    async def skill(self, name: str, version: str) -> Skill | None:
        """Returns None for a version that went since the versions were read."""
        key = name, version
        if key not in self._skills:
            try:
                self._skills[key] = await self._store.get(name, version)
            except SkillNotFound:
                self._skills[key] = None
        return self._skills[key]

    async def is_approved(self, skill: Skill) -> bool:
        key = skill.name, skill.version
        if key not in self._approved:
            self._approved[key] = (await self._standings.standing_of(skill)).approved
        return self._approved[key]


class _Search:
    """One search. ``target`` is in the version that it has."""

    def __init__(self, seen: Seen, target: Skill | None, roots: Sequence[Skill], *, approved_only: bool) -> None:
        self._seen = seen
        self._target = target
        self._roots = {skill.name: skill for skill in roots}
        self._approved_only = approved_only
        self._wanted: dict[str, list[tuple[Skill, Requirement]]] = {skill.name: [] for skill in roots}
        self._chosen: dict[str, Skill] = {}
        self._problem: InvalidInput | None = None
        self._tries = 0

    async def solve(self) -> list[Skill]:
        """Raises SkillNotFound or InvalidInput: the first obstacle to the newest versions."""
        if await self._open() is not None:
            assert self._problem is not None, "nobody was blamed"
            raise self._problem
        roots = [self._chosen[name] for name in self._roots]
        return [*roots, *(skill for name, skill in self._chosen.items() if name not in self._roots)]

    async def _open(self) -> Blame | None:
        """Chooses for the next name and for all behind it. Returns None when that worked, else the names whose versions
        stand in the way: while these stay, no choice behind them helps."""
        name = next((name for name in self._wanted if name not in self._chosen), None)
        if name is None:
            return None
        if len(self._chosen) >= MOST_SKILLS:
            raise InvalidInput("requires", f"a run mounts at most {MOST_SKILLS} skills, with all that they require")
        blame = {requirer.name for requirer, _ in self._wanted[name]}
        fitting = await self._fitting(name)
        if not fitting:
            await self._note_missing(name)
        for version in fitting:
            skill = await self._considered(name, version)
            if skill is None:
                continue
            if (clash := self._clash(skill)) is not None:
                blame |= clash
                continue
            self._choose(skill)
            deeper = await self._open()
            if deeper is None:
                return None
            self._let_go(skill)
            if name not in deeper:
                return deeper
            blame |= deeper
        return frozenset(blame - {name})

    async def _fitting(self, name: str) -> list[str]:
        """Returns the versions that all who want it accept, in the order in which they are tried."""
        needs = [need for _, need in self._wanted[name]]
        root = self._roots.get(name)
        if root is not None and root is self._target:
            return [root.version] if all(need.admits(root.version) for need in needs) else []
        versions, pinned = await self._seen.versions(name)
        if self._approved_only:
            approvable = await self._seen.approvable(name)
            versions = [version for version in versions if version in approvable]
            pinned = pinned if pinned in approvable else None
        first = [root.version] if root is not None else [] if pinned is None else [pinned]
        fitting = [v for v in dict.fromkeys((*first, *versions)) if all(need.admits(v) for need in needs)]
        if not any(bound.version.pre for need in needs for bound in need.range.bounds):
            fitting.sort(key=lambda v: v not in first and bool(Version.parse(v).pre))  # newest first within each
        return fitting

    async def _considered(self, name: str, version: str) -> Skill | None:
        """None when it went, or may not be chosen."""
        self._tries += 1
        if self._tries > MOST_TRIES:
            raise InvalidInput("requires", f"no fitting versions among {MOST_TRIES} that were tried: narrow the ranges")
        root = self._roots.get(name)
        skill = root if root is not None and root.version == version else await self._seen.skill(name, version)
        if skill is None or (self._approved_only and skill is not root and not await self._seen.is_approved(skill)):
            self._problem = self._problem or _absent(Requirement(name))
            return None
        return skill

    def _clash(self, skill: Skill) -> Blame | None:
        """Returns the chosen skills that ``skill`` does not accept, none when that is itself."""
        for need in requirements(skill):
            here = skill if need.name == skill.name else self._chosen.get(need.name)
            if here is not None and not need.admits(here.version):
                rule = f"{_named(skill)} requires '{need}', but version {here.version} is mounted"
                self._problem = self._problem or InvalidInput("requires", rule, skill=need.name)
                return frozenset({need.name} - {skill.name})
        return None

    def _choose(self, skill: Skill) -> None:
        self._chosen[skill.name] = skill
        for need in requirements(skill):
            self._wanted.setdefault(need.name, []).append((skill, need))

    def _let_go(self, skill: Skill) -> None:
        del self._chosen[skill.name]
        for need in requirements(skill):
            left = [(who, what) for who, what in self._wanted[need.name] if who is not skill]
            self._wanted[need.name] = left
            if not left and need.name not in self._roots:
                del self._wanted[need.name]

    async def _note_missing(self, name: str) -> None:
        if self._problem is not None:
            return
        wanted = self._wanted[name]
        versions, _ = await self._seen.versions(name)
        alone = next(((who, need) for who, need in wanted if not any(map(need.admits, versions))), None)
        if alone is not None:
            self._problem = _absent(alone[1], alone[0], versions)
            return
        all_of_them = " and ".join(f"{_named(who)} requires '{need}'" for who, need in wanted[:_SHOWN])
        rule = f"{all_of_them}: no version of '{name}' is accepted by all ({_listed(versions)})"
        self._problem = InvalidInput("requires", rule, skill=name)


def requirements(skill: Skill) -> list[Requirement]:
    return [Requirement.parse(text) for text in skill.needs.requires]


def _absent(need: Requirement, who: Skill | None = None, versions: Sequence[str] = ()) -> SkillNotFound:
    """Returns the same error for a skill that is not there and one that the caller may not use."""
    there = f" ({_listed(versions)})" if versions else ""
    rule = f"{_named(who) if who else 'a skill'} requires '{need}', which is not available{there}"
    return SkillNotFound("requires", rule, skill=need.name)


def _named(skill: Skill) -> str:
    return f"'{skill.name}' {skill.version}"


def _listed(versions: Sequence[str]) -> str:
    more = f" and {len(versions) - _SHOWN} more" if len(versions) > _SHOWN else ""
    return f"there is {', '.join(versions[:_SHOWN])}{more}"


def _check_import_names(skills: Iterable[Skill]) -> None:
    seen: dict[str, str] = {}
    for skill in skills:
        other = seen.setdefault(skill.import_name, skill.name)
        if other != skill.name:
            rule = f"'{other}' and '{skill.name}' would both be imported as skills.{skill.import_name}"
            raise InvalidInput("mount_skills", rule)
