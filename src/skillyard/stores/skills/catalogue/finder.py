"""From a name and a version to a skill with its snapshot: what is asked for is looked at again before it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from weakref import WeakValueDictionary

from skillyard.domain.errors import StoreFault
from skillyard.domain.skill.skill import Skill
from skillyard.stores.skills.catalogue.feed import Feed
from skillyard.stores.skills.catalogue.index.rows import FIRST_ROOT, PUBLISHED, Entry, Name
from skillyard.stores.skills.catalogue.kept import Kept, KeptSkills
from skillyard.stores.skills.catalogue.loading import Loader, Reading
from skillyard.stores.skills.catalogue.missing import missing
from skillyard.stores.skills.catalogue.upkeep import Upkeep
from skillyard.stores.skills.catalogue.watch import is_unchanged
from skillyard.stores.skills.catalogue.work import Place
from skillyard.stores.skills.layout import Folder, folder_signature
from skillyard.stores.skills.stamps import signature

ATTEMPTS = 5

Above = Sequence[tuple[str, Folder]]
"""Directories, as they were."""


class Finder:
    """``clock`` is monotonic; what was looked at holds for ``holds_s`` seconds of it."""

    def __init__(
        self,
        loader: Loader,
        feed: Feed,
        clock: Callable[[], float],
        holds_s: float,
    ) -> None:
        self._loader = loader
        self._feed = feed
        self._clock = clock
        self._holds_s = holds_s
        self._kept = KeptSkills()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._generation = 0

    def forget(self, names: Collection[str] | None) -> None:
        """They may have changed; None: any may have. Callable from any thread."""
        self._generation += 1
        self._kept.drop(names)

    async def get(self, upkeep: Upkeep, name: str, version: str | None) -> Skill:
        """Raises SkillNotFound, StoreFault."""
        kept = self._kept.get(name, version)
        if kept is not None and self._holds(upkeep, kept):
            return kept.skill
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            return await self._read(upkeep, name, version)

    async def _read(self, upkeep: Upkeep, name: str, version: str | None) -> Skill:
        is_looked = False
        for _ in range(ATTEMPTS):
            kept = self._kept.get(name, version)
            if kept is not None and self._holds(upkeep, kept):
                return kept.skill
            generation = self._generation
            found = upkeep.near.name(name)
            entry = _entry(upkeep, found, version)
            if not is_looked and upkeep.is_large and not self._is_true(upkeep, found, entry):
                is_looked = True
                await asyncio.to_thread(upkeep.look_at, [Place.of(entry)] if entry and entry.rank < PUBLISHED else [])
                continue
            if entry is None:
                raise missing(upkeep.near, name, version)
            above = _above(upkeep, entry)
            reading = await self._reading(entry)
            if reading is None or (reading.entry.name, reading.entry.digest) != (name, entry.digest):
                await self._mend(upkeep, entry)
                continue
            skill = await asyncio.to_thread(self._loader.keep, reading)
            if skill is not None:
                self._keep(Kept(skill, reading.entry, above, self._clock() + self._holds_s), version, generation)
                return skill
        raise StoreFault(f"the skill '{name}' changes faster than it can be read")

    def _keep(self, kept: Kept, version: str | None, generation: int) -> None:
        """Unless something changed while it was being read."""
        if generation == self._generation:
            self._kept.put(kept.skill.name, version, kept)

    async def _reading(self, entry: Entry) -> Reading | None:
        if entry.rank != PUBLISHED:
            return await asyncio.to_thread(self._loader.read, entry.location, entry.rank, entry.place)
        publication = await self._feed.find(entry)
        if publication is None:
            return None
        return await asyncio.to_thread(self._loader.read_published, publication)

    async def _mend(self, upkeep: Upkeep, entry: Entry) -> None:
        """The bundle is not what the index says."""
        if entry.rank == PUBLISHED:
            await self._feed.again(upkeep, entry.name or "")
        else:
            await asyncio.to_thread(upkeep.look_at, [Place.of(entry)])

    def _holds(self, upkeep: Upkeep, kept: Kept) -> bool:
        """A small catalogue was looked at as a whole just now."""
        if not upkeep.is_large or self._clock() < kept.until:
            return True
        if kept.entry.rank != PUBLISHED and not (is_unchanged(kept.entry) and _are_same(kept.above)):
            return False
        kept.until = self._clock() + self._holds_s
        return True

    def _is_true(self, upkeep: Upkeep, found: Name | None, entry: Entry | None) -> bool:
        """Whether what the index says of a name holds, as far as the bundle and the directories above it tell; of a
        name that it does not know, those where searches begin."""
        if entry is None and found is not None:
            entry = upkeep.near.bundle(found.versions[0].bundle)
        if entry is None or entry.rank == PUBLISHED:
            return _are_same(_starts(upkeep))
        return is_unchanged(entry) and _are_same(_above(upkeep, entry))


def _entry(upkeep: Upkeep, found: Name | None, version: str | None) -> Entry | None:
    variant = found.variant(version) if found else None
    return upkeep.near.bundle(variant.bundle) if variant else None


def _above(upkeep: Upkeep, entry: Entry) -> Above:
    if not FIRST_ROOT <= entry.rank < PUBLISHED:
        return ()
    tree = upkeep.trees[entry.rank - FIRST_ROOT]
    return [(folder, tree.folders[folder]) for folder in tree.leads_to(entry.location)]


def _starts(upkeep: Upkeep) -> Above:
    """A root that is missing changes when it is there."""
    found = []
    for tree in upkeep.trees:
        found += [(start, tree.folders[start]) for start in tree.starts if start in tree.folders]
        if not tree.starts:
            found.append((tree.root, Folder(signature([None]))))
    return found


def _are_same(directories: Above) -> bool:
    return all(folder_signature(path, folder.links) == folder.stamp for path, folder in directories)
