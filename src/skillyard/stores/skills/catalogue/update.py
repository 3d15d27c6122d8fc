"""Bringing the index up to what is on disk. All of it blocks, for one thread at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.directories import HOMES, ScanLimits, below, is_bundle
from skillyard.stores.skills.catalogue.loading import Loader, is_unchanged
from skillyard.stores.skills.catalogue.rows import FIRST_ROOT, GUIDE_RANK, UNPLACED, Damaged, Entry
from skillyard.stores.skills.catalogue.serving import Serving
from skillyard.stores.skills.catalogue.table import Table
from skillyard.stores.skills.catalogue.trees import Change, Tree, difference, notes_of, walk

BATCH = 100
"""Bundles that are read for one transaction: about 0.1 s."""
_SEARCHED = "searched"


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
        """Takes the result of another look: removals first, since a removed bundle may be found elsewhere."""
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


@dataclass(frozen=True, slots=True)
class Search:
    """Where bundles are looked for: ``guide`` first, then ``roots`` in the order of precedence."""

    guide: str | None
    roots: Sequence[str]
    limits: ScanLimits

    def __str__(self) -> str:
        return json.dumps([self.guide, list(self.roots), self.limits.depth, self.limits.directories])


class Updater:
    """First :meth:`look`, then :meth:`step` as long as it says so. ``notes`` are findings about the search itself."""

    def __init__(self, table: Table, loader: Loader, search: Search, serving: Serving) -> None:
        """Starts from the index; bundles of another search are set aside to be found again."""
        self._table = table
        self._loader = loader
        self._search = search
        self._serving = serving
        self._guide = Place(search.guide, GUIDE_RANK, b"") if search.guide else None
        self._work = Work()
        self.notes: list[Finding] = []
        known = self._is_known()
        if not known:
            with table.transaction():
                table.unplace()
        self._trees = [self._known(number) if known else Tree(root) for number, root in enumerate(search.roots)]

    @property
    def trees(self) -> Sequence[Tree]:
        return self._trees

    @property
    def left(self) -> int:
        """Bundles that have to be read."""
        return len(self._work.places)

    @property
    def is_busy(self) -> bool:
        """Returns whether there is anything to do."""
        return bool(self._work)

    def is_stale(self) -> bool:
        """Returns whether directories differ from what they were, or something is left to do; for few of them."""
        seen = walk(self._search.roots, self._search.limits, self._trees)
        return self.is_busy or bool(difference(self._trees, seen))

    def look(self) -> bool:
        """Look at the directories. Whether there is anything to do."""
        trees = walk(self._search.roots, self._search.limits, self._trees)
        self._work.take(difference(self._trees, trees), trees)
        self._trees = trees
        self.notes = notes_of(trees)
        is_known = self._is_known()
        guide = self._guide
        if guide and not (is_known and self._table.at(guide.key)) and is_bundle(guide.path):
            self._work.add(guide)
        return self.is_busy or not is_known

    def survey(self, table: Table, after: int, limit: int) -> tuple[list[Place], int | None]:
        """Returns which of the next ``limit`` bundles may have changed, and where to go on: None at the end. Raises
        Damaged when there are not as many bundles as were found."""
        if after == 0 and not self.is_busy:
            found_ones = sum(tree.count for tree in self._trees) + bool(self._guide and table.at(self._guide.key))
            if table.sizes()[0] != found_ones:
                raise Damaged("bundles are missing")
        found = table.slice(after, limit)
        changed = [Place.of(entry) for _, entry in found if not is_unchanged(entry)]
        return changed, found[-1][0] if len(found) == limit else None

    def step(self, limit: int = BATCH) -> bool:
        """Read the next bundles, and serve them; what is gone goes with the last. Whether something is left to do: a
        bundle that is none any more needs another look."""
        places = self._work.next(limit)
        is_last = len(places) == len(self._work.places)
        lost = self._read(places, finish=is_last)
        self._work.done(places)
        return not is_last or (lost and self.look())

    def read_again(self, places: Sequence[Place]) -> None:
        """Bundles that seem to have changed, before all others."""
        if self._read(places, finish=False):
            self.look()

    def _read(self, places: Sequence[Place], *, finish: bool) -> bool:
        """Returns whether one of them is no bundle any more."""
        entries = {place: self._entry(place) for place in places}
        lost = [place for place, entry in entries.items() if entry is None]
        with self._serving.changed() as names:
            for entry in filter(None, entries.values()):
                before = self._table.at(entry.path)
                names |= {name for name in (entry.name, before.name if before else None) if name}
                self._table.put(entry)
            names |= self._drop((place.key, place.rank) for place in lost)
            for place in lost:
                self._forget(place)
            if finish:
                names |= self._finish()
        return bool(lost)

    def _entry(self, place: Place) -> Entry | None:
        """None when it is no bundle any more."""
        before = self._table.at(place.key)
        if before is not None and is_unchanged(before):
            return replace(before, rank=place.rank, place=place.place)
        reading = self._loader.read(place.path, place.rank, place.place)
        return reading.entry if reading else None

    def _finish(self) -> set[str]:
        """Removes what is gone and stores the directories; returns the names that changed."""
        names = self._drop(self._work.removed)
        for number, path in self._work.folders:
            self._table.put_folder(number, path, self._trees[number].folders.get(path))
        if not self._is_known():
            names |= self._drop((path, UNPLACED) for path in self._table.unfound())
            self._table.put_fact(_SEARCHED, str(self._search))
        return names

    def _drop(self, bundles: Iterable[tuple[bytes, int]]) -> set[str]:
        return {name for path, rank in bundles if (name := self._table.drop(path, rank))}

    def _forget(self, lost: Place) -> None:
        """Where a bundle was may be a folder: what holds it has to be listed again, after a restart too."""
        number = lost.rank - FIRST_ROOT
        if number < 0:
            return
        tree = self._trees[number] = self._trees[number].without(lost.path)
        parent = os.path.dirname(lost.path)  # noqa: PTH120 - text in, text out
        if parent in tree.folders:
            self._table.put_folder(number, parent, tree.folders[parent])

    def _is_known(self) -> bool:
        """Returns whether the index was made by this search."""
        return self._table.fact(_SEARCHED) == str(self._search)

    def _known(self, number: int) -> Tree:
        root = self._search.roots[number]
        folders = self._table.folders(number)
        inside = {below(root, name) for name in folders[root].served} if root in folders else set()
        starts = {root, *(below(root, home) for home in (*HOMES, "skills"))} - inside
        return Tree(root, tops=self._table.tops(FIRST_ROOT + number, starts), folders=folders)
