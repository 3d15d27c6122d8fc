"""What was published, beside what directories hold: one catalogue of both."""

from __future__ import annotations

import asyncio
import hashlib
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import gmtime, strftime

from skillyard.domain.errors import InvalidInput, SkillNotFound
from skillyard.domain.publication import Publication, place_of
from skillyard.domain.semver import latest, newest_first
from skillyard.domain.skill import Finding, Skill, SkillLine, SkillSource
from skillyard.ports.publications import PublicationStore
from skillyard.stores.skills.bundle import Bundle, Place, check_bundle
from skillyard.stores.skills.catalogue import DirectorySkills
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Caps, read_tree


@dataclass(frozen=True, slots=True)
class _Name:
    """What was published under one name: skills that can be served, places that may not, the pinned version."""

    served: dict[str, Skill]
    withdrawn: frozenset[str]
    pinned: str | None
    problems: tuple[Finding, ...]


_NOTHING = _Name({}, frozenset(), None, ())


class PublishedSkills:
    """A :class:`skillyard.ports.skills.SkillStore`. What a directory serves goes before what was published with the
    same name and version; a withdrawn version is served from neither."""

    def __init__(self, directories: DirectorySkills, publications: PublicationStore, snapshots: Snapshots) -> None:
        self._directories = directories
        self._publications = publications
        self._snapshots = snapshots
        self._names: dict[str, _Name] = {}
        self._changes = 0

    async def start(self, keep: Collection[str] = ()) -> int:
        """Load, and remove the snapshots that no skill has, withdrawn ones counted, and no sandbox (by its digest in
        ``keep``). How many went."""
        every = await self._publications.every()
        for name in {told.name for told in every} | set(await self._publications.pins()):
            await self.refresh(name)
        return await self._directories.start({told.digest for told in every} | set(keep))

    async def refresh(self, name: str) -> None:
        told = await self._publications.of(name)
        pin = await self._publications.pinned(name)
        known = self._names.get(name, _NOTHING).served
        self._names[name] = await asyncio.to_thread(self._load, told, known, None if pin is None else pin.version)
        self._changes += 1

    async def revision(self) -> str:
        return hashlib.sha256(f"{await self._directories.revision()} {self._changes}".encode()).hexdigest()[:16]

    async def page(self, after: str | None, limit: int, namespace: str | None = None) -> Sequence[SkillLine]:
        below = f"{namespace}."
        names = await self.names()
        start = 0 if after is None else bisect_right(names, after)
        fitting = (n for n in names[start:] if namespace is None or n == namespace or n.startswith(below))
        return [(await self.get(name)).line for name in islice(fitting, limit)]

    async def names(self) -> Sequence[str]:
        published = {name for name, held in self._names.items() if held.served}
        hidden = [name for name, held in self._names.items() if held.withdrawn and not held.served]
        gone = {name for name in hidden if not await self._versions(name)}
        return sorted((published | set(await self._directories.names())) - gone)

    async def get(self, name: str, version: str | None = None) -> Skill:
        versions = await self._versions(name)
        wanted = version or self._chosen(name, versions)
        if wanted is None or wanted not in versions:
            raise await self._missing(name, version, list(versions))
        return versions[wanted]

    async def versions(self, name: str) -> Sequence[str]:
        versions = await self._versions(name)
        if not versions:
            raise await self._missing(name, None, [])
        return newest_first(versions)

    async def pinned(self, name: str) -> str | None:
        pinned = self._names.get(name, _NOTHING).pinned
        return pinned if pinned is not None and pinned in await self._versions(name) else None

    async def problems(self) -> Sequence[Finding]:
        return [
            *await self._directories.problems(),
            *(problem for held in self._names.values() for problem in held.problems),
        ]

    async def _versions(self, name: str) -> dict[str, Skill]:
        """All that are served of one name."""
        held = self._names.get(name, _NOTHING)
        here = await self._in_directories(name)
        found = {skill.version: skill for skill in here if place_of(skill.version) not in held.withdrawn}
        places = {place_of(version) for version in found}
        return found | {v: skill for v, skill in held.served.items() if place_of(v) not in places}

    async def _in_directories(self, name: str) -> list[Skill]:
        try:
            return [await self._directories.get(name, v) for v in await self._directories.versions(name)]
        except SkillNotFound:  # or removed between the two
            return []

    def _chosen(self, name: str, versions: Collection[str]) -> str | None:
        pinned = self._names.get(name, _NOTHING).pinned
        return pinned if pinned in versions else latest(versions)

    async def _missing(self, name: str, version: str | None, have: Collection[str]) -> SkillNotFound:
        told = await self._publications.of(name)
        if version is not None and (gone := _withdrawn(told, version)) is not None:
            return SkillNotFound("version", withdrawn_rule(gone), skill=name, withdrawn=True)
        if not have and told:
            every = f"every version of '{name}' was withdrawn; the newest: " if len(told) > 1 else ""
            return SkillNotFound("name", every + withdrawn_rule(told[0]), skill=name, withdrawn=True)
        if version is None or not have:
            return SkillNotFound("name", f"no skill '{name[:256]}'", skill=name[:256])
        some = ", ".join(newest_first(have)[:10])
        rule = f"the skill '{name}' has no version '{version[:128]}'; it has {some}"
        return SkillNotFound("version", rule, skill=name)

    def _load(self, told: Sequence[Publication], known: dict[str, Skill], pinned: str | None) -> _Name:
        served: dict[str, Skill] = {}
        problems: list[Finding] = []
        for publication in told:
            if publication.withdrawn:
                continue
            skill = known.get(publication.version) or self._read(publication)
            if isinstance(skill, Finding):
                problems.append(skill)
            else:
                served[publication.version] = skill
        withdrawn = frozenset(place_of(publication.version) for publication in told if publication.withdrawn)
        return _Name(served, withdrawn, pinned, tuple(problems))

    def _read(self, publication: Publication) -> Skill | Finding:
        """From its snapshot. What was valid when it was published is served, whatever the rules say since."""
        root = self._snapshots.path(publication.digest)
        where = f"{publication.name} {publication.version}"
        tree, findings = read_tree(root, Caps())
        if tree is None or tree.digest != publication.digest:
            message = f"the bundle of {where} is missing or damaged: publish it again to mend it"
            return Finding("error", str(root), 0, "snapshot", message)
        skill, findings = check_bundle(Bundle(tree, Place(publication.name, publication.version), root, True))
        if skill is None or (skill.name, skill.version) != (publication.name, publication.version):
            why = next((str(f) for f in findings if f.level == "error"), "it calls itself otherwise")
            return Finding("error", str(root), 0, "published", f"{where} cannot be served: {why}")
        return replace(skill, source=SkillSource.PUBLISHED)


def withdrawn_rule(gone: Publication) -> str:
    """That it was withdrawn, when and why."""
    when = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(gone.withdrawn_at or 0))
    why = f": {gone.reason}" if gone.reason else ""
    return f"version {gone.version} of '{gone.name}' was withdrawn on {when}{why}"


def _withdrawn(told: Sequence[Publication], version: str) -> Publication | None:
    try:
        place = place_of(version)
    except InvalidInput:
        return None
    return next((gone for gone in told if gone.withdrawn and place_of(gone.version) == place), None)
