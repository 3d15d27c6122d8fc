"""Bringing the index up to what is on disk. All of it blocks, for one thread at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.arrangement import Arrangement
from skillyard.stores.skills.catalogue.forest import Tree, walk
from skillyard.stores.skills.catalogue.forest_change import difference, notes_of
from skillyard.stores.skills.catalogue.index.index import Index
from skillyard.stores.skills.catalogue.index.reads import Reads
from skillyard.stores.skills.catalogue.index.rows import FIRST_ROOT, GUIDE_RANK, UNPLACED, Entry
from skillyard.stores.skills.catalogue.loading import Loader
from skillyard.stores.skills.catalogue.watch import is_unchanged
from skillyard.stores.skills.catalogue.work import Place, Work
from skillyard.stores.skills.layout import HOMES, ScanLimits, below, is_bundle

BATCH = 100
"""Bundles that are read for one transaction: about 0.1 s."""
_SEARCHED = "searched"


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

    def __init__(self, index: Index, loader: Loader, search: Search, arrangement: Arrangement) -> None:
        """What the index knows is taken from there; bundles of another search are set aside to be found again."""
        self._index = index
        self._loader = loader
        self._search = search
        self._arrangement = arrangement
        self._work = Work()
        self.notes: list[Finding] = []
        known = self._is_known()
        if not known:
            with index.writes.transaction():
                index.writes.unplace()
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
        """Whether there is anything to do."""
        return bool(self._work)

    def is_stale(self) -> bool:
        """Whether directories differ from what they were, or something is left to do; for few of them."""
        seen = walk(self._search.roots, self._search.limits, self._trees)
        return self.is_busy or bool(difference(self._trees, seen))

    def look(self) -> bool:
        """Look at the directories. Whether there is anything to do."""
        trees = walk(self._search.roots, self._search.limits, self._trees)
        self._work.take(difference(self._trees, trees), trees)
        self._trees = trees
        self.notes = notes_of(trees)
        is_known = self._is_known()
        guide = Place(self._search.guide, GUIDE_RANK, b"") if self._search.guide else None
        if guide and not (is_known and self._index.reads.at(guide.key)) and is_bundle(guide.path):
            self._work.add(guide)
        return self.is_busy or not is_known

    def survey(self, reads: Reads, after: int, limit: int) -> tuple[list[Place], int | None]:
        """Which of the next ``limit`` bundles may have changed; where to go on, None at the end."""
        found = reads.slice(after, limit)
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
        """Whether one of them is no bundle any more."""
        entries = {place: self._entry(place) for place in places}
        lost = [place for place, entry in entries.items() if entry is None]
        names: set[str] = set()
        with self._index.writes.transaction():
            for entry in filter(None, entries.values()):
                before = self._index.reads.at(entry.path)
                names |= {name for name in (entry.name, before.name if before else None) if name}
                self._index.writes.put(entry)
            names |= self._drop((place.key, place.rank) for place in lost)
            for place in lost:
                self._forget(place)
            if finish:
                names |= self._finish()
            revision = self._arrangement.arrange(names)
        self._arrangement.committed(names, revision)
        return bool(lost)

    def _entry(self, place: Place) -> Entry | None:
        """None when it is no bundle any more."""
        before = self._index.reads.at(place.key)
        if before is not None and is_unchanged(before):
            return replace(before, rank=place.rank, place=place.place)
        reading = self._loader.read(place.path, place.rank, place.place)
        return reading.entry if reading else None

    def _finish(self) -> set[str]:
        """What is gone, and the directories as they are."""
        writes = self._index.writes
        names = self._drop(self._work.removed)
        for number, path in self._work.folders:
            folder = self._trees[number].folders.get(path)
            if folder is None:
                writes.drop_folder(number, path)
            else:
                writes.put_folder(number, path, folder)
        if not self._is_known():
            names |= self._drop((path, UNPLACED) for path in writes.unfound())
            writes.put_fact(_SEARCHED, str(self._search))
        return names

    def _drop(self, bundles: Iterable[tuple[bytes, int]]) -> set[str]:
        return {name for path, rank in bundles if (name := self._index.writes.drop(path, rank))}

    def _forget(self, lost: Place) -> None:
        """Where a bundle was may be a folder: what holds it has to be listed again, after a restart too."""
        number = lost.rank - FIRST_ROOT
        if number < 0:
            return
        tree = self._trees[number] = self._trees[number].without(lost.path)
        parent = os.path.dirname(lost.path)  # noqa: PTH120 - text in, text out
        if parent in tree.folders:
            self._index.writes.put_folder(number, parent, tree.folders[parent])

    def _is_known(self) -> bool:
        """Whether the index was made by this search."""
        return self._index.reads.fact(_SEARCHED) == str(self._search)

    def _known(self, number: int) -> Tree:
        root = self._search.roots[number]
        folders = self._index.reads.folders(number)
        inside = {below(root, name) for name in folders[root].served} if root in folders else set()
        starts = {root, *(below(root, home) for home in (*HOMES, "skills"))} - inside
        return Tree(root, tops=self._index.reads.tops(FIRST_ROOT + number, starts), folders=folders)
