"""What has to be done to bring the index up to date, gathered from look to look."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from skillyard.stores.skills.catalogue.forest import Tree
from skillyard.stores.skills.catalogue.forest_change import Change
from skillyard.stores.skills.catalogue.index.rows import FIRST_ROOT, Entry


@dataclass(frozen=True, slots=True)
class Place:
    """A bundle that has to be looked at; ``rank`` and ``place`` are those of its entry."""

    path: str
    rank: int
    place: bytes

    @property
    def key(self) -> bytes:
        return os.fsencode(self.path)

    @classmethod
    def of(cls, entry: Entry) -> Place:
        return cls(entry.location, entry.rank, entry.place)


class Work:
    """``places`` to read, by path; ``removed`` bundles (key, rank); ``folders`` (root, path) that differ."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.removed: set[tuple[bytes, int]] = set()
        self.folders: set[tuple[int, str]] = set()

    def __bool__(self) -> bool:
        return bool(self.places or self.removed or self.folders)

    def add(self, place: Place) -> None:
        self.places[place.path] = place
        self.removed.discard((place.key, place.rank))

    def take(self, change: Change, trees: Sequence[Tree]) -> None:
        """What another look found; what is removed is taken first, since it may be found elsewhere."""
        for number, path in change.removed:
            self._remove(path, FIRST_ROOT + number)
        for number, path in change.added:
            self.add(Place(path, FIRST_ROOT + number, trees[number].place(path)))
        self.folders |= {(number, path) for number, path, _ in change.folders}
        self.folders |= set(change.gone)

    def next(self, limit: int) -> list[Place]:
        return list(islice(self.places.values(), limit))

    def done(self, places: Sequence[Place]) -> None:
        """They were read; with the last of them everything else was done too."""
        for place in places:
            if self.places.get(place.path) == place:
                del self.places[place.path]
        if not self.places:
            self.removed.clear()
            self.folders.clear()

    def _remove(self, path: str, rank: int) -> None:
        known = self.places.get(path)
        if known is not None and known.rank == rank:
            del self.places[path]
        self.removed.add((os.fsencode(path), rank))
