"""From a name and a version to a skill with its snapshot, after another look at its bundle."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from weakref import WeakValueDictionary

from skillyard.domain.errors import StoreFault
from skillyard.domain.skill.skill import Skill
from skillyard.stores.skills.catalogue.loading import Loader, Reading
from skillyard.stores.skills.catalogue.names import Name, missing
from skillyard.stores.skills.catalogue.published import Publications
from skillyard.stores.skills.catalogue.rows import PUBLISHED, Entry
from skillyard.stores.skills.catalogue.search import Folder
from skillyard.stores.skills.catalogue.upkeep import Upkeep
from skillyard.values import dataclass

MAX_COUNT = 1024
MAX_BYTES = 24 * 1024 * 1024
ATTEMPTS = 5
_FEW = 64
_PARSED = (".toml", ".json", "SKILL.md")

Key = tuple[str, str | None]
"""A name and a version, None for the latest."""
Folders = Sequence[tuple[str, Folder]]
"""Directories by their paths, as they were."""


@dataclass(slots=True)
class CachedSkill:
    """A skill, the bundle it was read from, and the directories above that. It holds without another look until
    ``until``, of a monotonic clock."""

    skill: Skill
    entry: Entry
    above: Folders
    until: float


class SkillCache:
    """The skills that were asked for last. Threads may share it."""

    def __init__(self, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[Key, CachedSkill] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, version: str | None) -> CachedSkill | None:
        with self._lock:
            kept = self._kept.get((name, version))
            if kept is not None:
                self._kept.move_to_end((name, version))
            return kept

    def put(self, name: str, version: str | None, kept: CachedSkill) -> None:
        with self._lock:
            self._pop((name, version))
            self._kept[name, version] = kept
            self._bytes += weight(kept.skill)
            while len(self._kept) > 1 and (len(self._kept) > self._max_count or self._bytes > self._max_bytes):
                self._pop(next(iter(self._kept)))

    def drop(self, names: Collection[str] | None) -> None:
        """Removes every version of these names; None stands for all."""
        with self._lock:
            many = names is None or len(names) > _FEW
            gone = [key for key in self._kept if many or key[0] in (names or ())]
            for key in gone:
                self._pop(key)

    def _pop(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= weight(kept.skill)


def weight(skill: Skill) -> int:
    """Returns about how many bytes a skill takes: several times the size of parsed files."""
    parsed = sum(file.size for file in skill.files if file.path.endswith(_PARSED))
    return 4096 + 512 * len(skill.files) + 8 * parsed


class Finder:
    """Finds skills for their users. ``clock`` is monotonic; a look at a bundle holds for ``holds_s`` seconds of it."""

    def __init__(self, loader: Loader, publications: Publications, clock: Callable[[], float], holds_s: float) -> None:
        self._loader = loader
        self._publications = publications
        self._clock = clock
        self._holds_s = holds_s
        self._kept = SkillCache()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._generation = 0

    def forget(self, names: Collection[str] | None) -> None:
        """Forgets names that may have changed; None stands for all. Any thread may call it."""
        self._generation += 1
        self._kept.drop(names)

    async def get(self, upkeep: Upkeep, name: str, version: str | None) -> Skill:
        """Raises SkillNotFound, StoreFault."""
        if kept := self._at_hand(upkeep, name, version):
            return kept
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            return await self._read(upkeep, name, version)

    async def _read(self, upkeep: Upkeep, name: str, version: str | None) -> Skill:
        is_looked = False
        for _ in range(ATTEMPTS):
            if kept := self._at_hand(upkeep, name, version):
                return kept
            generation = self._generation
            found = upkeep.near.name(name)
            entry = found.entry(version) if found else None
            if not is_looked and upkeep.is_large and not _is_true(upkeep, found, entry):
                is_looked = True
                await asyncio.to_thread(upkeep.look_at, entry)
                continue
            if entry is None:
                raise missing(upkeep.near.of_name(name), name, version)
            above = _above(upkeep, entry)
            reading = await self._reading(entry)
            if reading is None or (reading.entry.name, reading.entry.digest) != (name, entry.digest):
                await self._correct(upkeep, entry)
                continue
            skill = await asyncio.to_thread(self._loader.keep, reading)
            if skill is not None:
                if generation == self._generation:  # nothing changed while it was read
                    until = self._clock() + self._holds_s
                    self._kept.put(name, version, CachedSkill(skill, reading.entry, above, until))
                return skill
        raise StoreFault(f"the skill '{name}' changes faster than it can be read")

    async def _reading(self, entry: Entry) -> Reading | None:
        if entry.rank != PUBLISHED:
            return await asyncio.to_thread(self._loader.read, entry.at)
        publication = await self._publications.find(entry)
        if publication is None:
            return None
        return await asyncio.to_thread(self._loader.read_published, publication)

    async def _correct(self, upkeep: Upkeep, entry: Entry) -> None:
        """Reads a bundle that differs from the index."""
        if entry.rank == PUBLISHED:
            await self._publications.again(upkeep, entry.name or "")
        else:
            await asyncio.to_thread(upkeep.look_at, entry)

    def _at_hand(self, upkeep: Upkeep, name: str, version: str | None) -> Skill | None:
        """Returns a skill from memory that still holds. A small catalogue was looked at as a whole just now."""
        kept = self._kept.get(name, version)
        if kept is None:
            return None
        if upkeep.is_large and self._clock() >= kept.until:
            if kept.entry.rank != PUBLISHED and not (kept.entry.is_unchanged() and _are_same(kept.above)):
                return None
            kept.until = self._clock() + self._holds_s
        return kept.skill


def _is_true(upkeep: Upkeep, found: Name | None, entry: Entry | None) -> bool:
    """Returns whether the index is right about a name, by its bundle and the directories above.

    For a name that the index does not know these are the directories in which searches begin."""
    if entry is None and found is not None:
        entry = next(iter(found.by_version.values()))
    if entry is None or entry.rank == PUBLISHED:
        return all(_are_same(tree.edges()) for tree in upkeep.trees)
    return entry.is_unchanged() and _are_same(_above(upkeep, entry))


def _above(upkeep: Upkeep, entry: Entry) -> Folders:
    tree = upkeep.tree_of(entry)
    return tree.above(entry.at.path) if tree else ()


def _are_same(folders: Folders) -> bool:
    return all(folder.is_at(path) for path, folder in folders)
