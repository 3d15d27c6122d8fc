"""From a name and a version to a skill with its snapshot: what is asked for is looked at again before it is given."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from time import gmtime, strftime
from weakref import WeakValueDictionary

from skillyard.domain.errors import SkillNotFound, StoreFault
from skillyard.domain.skill.publication import place_of
from skillyard.domain.skill.semver import is_version, newest_first
from skillyard.domain.skill.skill import Skill
from skillyard.stores.skills.catalogue.directories import Folder, folder_signature
from skillyard.stores.skills.catalogue.loading import Loader, Reading, is_unchanged
from skillyard.stores.skills.catalogue.publications import Publications
from skillyard.stores.skills.catalogue.rows import FIRST_ROOT, PUBLISHED, WITHDRAWN, Entry, Name
from skillyard.stores.skills.catalogue.stamps import signature
from skillyard.stores.skills.catalogue.update import Place
from skillyard.stores.skills.catalogue.upkeep import Upkeep

MAX_COUNT = 1024
MAX_BYTES = 24 * 1024 * 1024
_FEW = 64
_PARSED = (".toml", ".json", "SKILL.md")

Key = tuple[str, str | None]
"""A name and a version, None for the latest."""

ATTEMPTS = 5

Above = Sequence[tuple[str, Folder]]
"""Directories, as they were."""


@dataclass(slots=True)
class CachedSkill:
    """A skill, the bundle it was read from, and the directories above that. It holds without another look until
    ``until``, of a monotonic clock."""

    skill: Skill
    entry: Entry
    above: Sequence[tuple[str, Folder]]
    until: float


class SkillCache:
    """May be shared between threads."""

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
        """Every version of these names, or (None) all."""
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
    """About the bytes that it takes in memory: what is parsed takes several times what it takes in a file."""
    parsed = sum(file.size for file in skill.files if file.path.endswith(_PARSED))
    return 4096 + 512 * len(skill.files) + 8 * parsed


class Finder:
    """``clock`` is monotonic; what was looked at holds for ``holds_s`` seconds of it."""

    def __init__(
        self,
        loader: Loader,
        publications: Publications,
        clock: Callable[[], float],
        holds_s: float,
    ) -> None:
        self._loader = loader
        self._publications = publications
        self._clock = clock
        self._holds_s = holds_s
        self._kept = SkillCache()
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
            entry = found.entry(version) if found else None
            if not is_looked and upkeep.is_large and not self._is_true(upkeep, found, entry):
                is_looked = True
                await asyncio.to_thread(upkeep.look_at, [Place.of(entry)] if entry and entry.rank < PUBLISHED else [])
                continue
            if entry is None:
                raise missing(upkeep.near.of_name(name), name, version)
            above = _above(upkeep, entry)
            reading = await self._reading(entry)
            if reading is None or (reading.entry.name, reading.entry.digest) != (name, entry.digest):
                await self._mend(upkeep, entry)
                continue
            skill = await asyncio.to_thread(self._loader.keep, reading)
            if skill is not None:
                self._keep(CachedSkill(skill, reading.entry, above, self._clock() + self._holds_s), version, generation)
                return skill
        raise StoreFault(f"the skill '{name}' changes faster than it can be read")

    def _keep(self, kept: CachedSkill, version: str | None, generation: int) -> None:
        """Unless something changed while it was being read."""
        if generation == self._generation:
            self._kept.put(kept.skill.name, version, kept)

    async def _reading(self, entry: Entry) -> Reading | None:
        if entry.rank != PUBLISHED:
            return await asyncio.to_thread(self._loader.read, entry.location, entry.rank, entry.place)
        publication = await self._publications.find(entry)
        if publication is None:
            return None
        return await asyncio.to_thread(self._loader.read_published, publication)

    async def _mend(self, upkeep: Upkeep, entry: Entry) -> None:
        """The bundle is not what the index says."""
        if entry.rank == PUBLISHED:
            await self._publications.again(upkeep, entry.name or "")
        else:
            await asyncio.to_thread(upkeep.look_at, [Place.of(entry)])

    def _holds(self, upkeep: Upkeep, kept: CachedSkill) -> bool:
        """A small catalogue was looked at as a whole just now."""
        if not upkeep.is_large or self._clock() < kept.until:
            return True
        if kept.entry.rank != PUBLISHED and not (is_unchanged(kept.entry) and _are_same(kept.above)):
            return False
        kept.until = self._clock() + self._holds_s
        return True

    def _is_true(self, upkeep: Upkeep, found: Name | None, entry: Entry | None) -> bool:
        """Returns whether the index is right about a name, as far as its bundle and the directories above tell; for a
        name that it does not know, those where searches begin."""
        if entry is None and found is not None:
            entry = next(iter(found.by_version.values()))
        if entry is None or entry.rank == PUBLISHED:
            return _are_same(_starts(upkeep))
        return is_unchanged(entry) and _are_same(_above(upkeep, entry))


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


def missing(entries: Sequence[Entry], name: str, version: str | None) -> SkillNotFound:
    """Returns why a name is not served, or not in that version; ``entries`` are all of the name."""
    withdrawn = {entry.version or "": entry for entry in entries if entry.rank == WITHDRAWN}
    wanted = place_of(version) if version and is_version(version) else None
    gone = next((entry for entry in withdrawn.values() if entry.version_key == wanted), None)
    if gone is not None:
        return SkillNotFound("version", _withdrawn_rule(name, gone), skill=name, withdrawn=True)
    found = Name.of(entries)
    if found is None and withdrawn:
        rule = f"every version of '{name}' was withdrawn; the newest: " if len(withdrawn) > 1 else ""
        rule += _withdrawn_rule(name, withdrawn[newest_first(withdrawn)[0]])
        return SkillNotFound("name", rule, skill=name, withdrawn=True)
    if found is None or version is None:
        return SkillNotFound("name", f"no skill '{name[:256]}'", skill=name[:256])
    have = ", ".join(islice(found.by_version, 10))
    rule = f"the skill '{name}' has no version '{version[:128]}'; it has {have}"
    return SkillNotFound("version", rule, skill=name)


def _withdrawn_rule(name: str, gone: Entry) -> str:
    """Returns that it was withdrawn, when and why."""
    at, reason = json.loads(gone.line)
    when = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(at))
    return f"version {gone.version} of '{name}' was withdrawn on {when}" + (f": {reason}" if reason else "")
