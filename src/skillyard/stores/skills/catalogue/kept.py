"""Skills that were asked for, kept in memory: the last used, as many as fit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from skillyard.domain.skill.skill import Skill
from skillyard.stores.skills.catalogue.index.rows import Entry
from skillyard.stores.skills.layout import Folder

MAX_COUNT = 1024
MAX_BYTES = 24 * 1024 * 1024
_FEW = 64
_PARSED = (".toml", ".json", "SKILL.md")

Key = tuple[str, str | None]
"""A name and a version, None for the latest."""


@dataclass(slots=True)
class Kept:
    """A skill, the bundle it was read from, and the directories above that. It holds without another look until
    ``until``, of a monotonic clock."""

    skill: Skill
    entry: Entry
    above: Sequence[tuple[str, Folder]]
    until: float


class KeptSkills:
    """May be shared between threads."""

    def __init__(self, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[Key, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, version: str | None) -> Kept | None:
        with self._lock:
            kept = self._kept.get((name, version))
            if kept is not None:
                self._kept.move_to_end((name, version))
            return kept

    def put(self, name: str, version: str | None, kept: Kept) -> None:
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
