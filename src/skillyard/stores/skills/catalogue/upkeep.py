"""Keeps the catalogue's index true to the directories. All of it blocks; any thread may call, one works at a time."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.cache_file import BROKEN, Index, is_damage, mark_of
from skillyard.stores.skills.catalogue.loading import Loader
from skillyard.stores.skills.catalogue.rows import GUIDE_RANK, Damaged, Entry, Place
from skillyard.stores.skills.catalogue.search import ScanLimits, Tree, from_text, notes_of, to_text, walk
from skillyard.stores.skills.catalogue.table import Table

BATCH = 100
"""Bundles that are read for one transaction: about 0.1 s."""
GENTLE = 20
"""Bundles that are read in one go while others wait for the interpreter: about 20 ms."""
SLICE = 500
"""Bundles whose stamps are looked at in one go: about 5 ms."""
AWAITED = 5000
"""Paths that a caller waits for: about 20 ms."""
PROGRESS_S = 5.0
_SEEN = "trees"
"""The fact that holds the directories with which the index agrees, so that a start compares them by stamps alone."""

Tell = Callable[[Collection[str] | None], None]
"""Called with the names whose skills may have changed, None for all, in the thread that changed them."""
T = TypeVar("T")
logger = logging.getLogger(__name__)


class Stopped(Exception):
    """The catalogue is being closed."""


class Upkeep:
    """The index, the directories as they were last seen, and the bundles that have to be read."""

    def __init__(self, path: Path, loader: Loader, roots: Sequence[str], limits: ScanLimits, tell: Tell) -> None:
        """Opens the index. ``roots`` begin with the guide, in the order of precedence. Raises StoreFault and
        sqlite3.Error."""
        self._loader = loader
        self._roots = roots
        self._limits = limits
        self._tell = tell
        self._stop = threading.Event()
        self._one = threading.RLock()
        self._index = Index(path, mark_of(loader.caps, lenient=loader.lenient))
        try:
            self._begin_from_index()
        except BROKEN as error:
            if not is_damage(error):
                self._index.close()
                raise
            self.renew()

    def _begin_from_index(self) -> None:
        self._index.table.load_revision()
        self._watched = self._index.table.sizes()[1]
        seen = self._index.table.fact(_SEEN)
        trees = from_text(seen, self._limits) if seen else None
        self.trees: Sequence[Tree] = trees or [Tree(root) for root in self._roots]
        self._compared = trees is not None
        self._unread: dict[str, Place] = {}
        self._gone: list[bytes] = []

    @property
    def near(self) -> Table:
        """For the event loop's thread."""
        return self._index.near

    @property
    def revision(self) -> str:
        return f"{self._index.table.revision:032x}"

    @property
    def paths(self) -> int:
        """The number of paths that a full check looks at."""
        return self._watched + sum(len(tree.folders) for tree in self.trees)

    @property
    def is_large(self) -> bool:
        """Returns whether looking at everything takes longer than a caller should wait."""
        return self.paths > AWAITED

    @property
    def notes(self) -> Sequence[Finding]:
        """Findings about the search itself."""
        return notes_of(self.trees)

    def tree_of(self, entry: Entry) -> Tree | None:
        """Returns the tree that has a bundle, None for a publication."""
        return self.trees[entry.rank] if GUIDE_RANK <= entry.rank < len(self.trees) else None

    def ask(self, question: Callable[[Table], T]) -> T:
        """Returns the answer from the index as it is changed."""
        with self._one:
            return question(self._index.table)

    def change(self, work: Callable[[Table], None]) -> None:
        """Changes the index in one transaction."""
        with self._one:
            with self._index.table.changes() as names:
                work(self._index.table)
            self._watched = self._index.table.sizes()[1]
            self._tell(names)

    def renew(self) -> None:
        """Begins again with an empty index."""
        with self._one:
            logger.warning("the catalogue's index is damaged: every skill is read again")
            self._index.renew()
            self._begin_from_index()
            self._tell(None)

    def begin(self) -> None:
        """Finds every bundle, and reads those that the index does not know. Logs now and then how far it is."""
        say_at = time.monotonic() + PROGRESS_S
        with self._one:
            busy = self._look()
            everything = len(self._unread)
            while busy:
                self._check_stop()
                busy = self._step(BATCH)
                if busy and time.monotonic() >= say_at:
                    say_at = time.monotonic() + PROGRESS_S
                    done = everything - len(self._unread)
                    logger.info("the catalogue has read %d of %d bundles", done, everything)

    def is_stale(self) -> bool:
        """Returns whether anything on disk differs from the index. For few paths, on the loop's thread."""
        if self._is_busy or walk(self._roots, self._limits, self.trees) != self.trees:
            return True
        return bool(self._slice(self.near, 0)[0])

    def check(self) -> None:
        """Looks at everything, and reads what changed."""
        with self._one:
            self.walk()
            after: int | None = 0
            while after is not None:
                after = self.survey(after)

    def walk(self) -> bool:
        """Looks at the directories, and reads new bundles in them; of many, with rests for others.

        Returns whether anything had changed."""
        with self._one:
            busy = changed = self._look()
        while busy:
            self._check_stop()
            started = time.monotonic()
            with self._one:
                busy = self._step(GENTLE)
            if len(self._unread) > GENTLE:
                self._stop.wait(time.monotonic() - started)
        return changed

    def survey(self, after: int) -> int | None:
        """Looks at the next bundles, and reads those that changed. Returns where to go on, None at the end."""
        with self._one:
            changed, then = self._slice(self._index.table, after)
        for first in range(0, len(changed), GENTLE):
            self._check_stop()
            self._read_again(changed[first : first + GENTLE])
        return then

    def look_at(self, entry: Entry | None) -> None:
        """Looks at a bundle that somebody asks for, and at the directories."""
        self._read_again([entry.at] if entry and self.tree_of(entry) else [])
        self.walk()

    def unused(self, keep: Iterable[str]) -> set[str]:
        """Returns the snapshots of nothing that the index knows, and those that a crash left."""
        with self._one:
            found = self._loader.snapshots.names().difference(keep)
            if found:
                found.difference_update(self._index.table.digests())
            return found

    def stop(self) -> None:
        """Ends what works soon, with Stopped."""
        self._stop.set()

    def close(self) -> None:
        with self._one:
            self._index.close()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Stopped

    @property
    def _is_busy(self) -> bool:
        return bool(self._unread or self._gone)

    def _look(self) -> bool:
        """Looks at the directories; returns whether there is anything to do."""
        trees = walk(self._roots, self._limits, self.trees)
        if not self._compared or trees != self.trees:
            self._compared = False
            self.trees = trees
            self._compare()
            if not self._is_busy:
                self._remember()
        return self._is_busy

    def _remember(self) -> None:
        """Stores the directories that the index agrees with. Without them the next start takes longer."""
        try:
            self.change(lambda table: table.put_fact(_SEEN, to_text(self.trees, self._limits)))
        except sqlite3.Error as error:
            if is_damage(error):
                raise

    def _compare(self) -> None:
        """Compares the index with the directories. Long when bundles are many."""
        found = {
            path: Place(path, rank, place) for rank, tree in enumerate(self.trees) for path, place in tree.bundles()
        }
        gone = []
        for known in self._index.table.places():
            if found.get(known.path) == known:
                del found[known.path]
            elif known.path not in found:
                gone.append(known.key)
        self._unread, self._gone, self._compared = found, gone, True

    def _slice(self, table: Table, after: int) -> tuple[list[Place], int | None]:
        """Returns which of the next bundles may have changed, and where to go on: None at the end. Raises Damaged when
        there are not as many bundles as were found."""
        if after == 0 and not self._is_busy and table.sizes()[0] != sum(tree.count for tree in self.trees):
            raise Damaged("bundles are missing")
        found = table.slice(after, SLICE)
        changed = [entry.at for _, entry in found if not entry.is_unchanged()]
        return changed, found[-1][0] if len(found) == SLICE else None

    def _step(self, limit: int) -> bool:
        """Reads some bundles that have to be read; removes with the last what is gone. Returns whether to go on."""
        places = list(islice(self._unread.values(), limit))
        is_last = len(places) == len(self._unread)
        is_lost = self._read(places, self._gone, to_text(self.trees, self._limits)) if is_last else self._read(places)
        for place in places:
            del self._unread[place.path]
        if is_last:
            self._gone = []
        return not is_last or (is_lost and self._look())

    def _read_again(self, places: Sequence[Place]) -> None:
        """Reads bundles that seem to have changed, before all others."""
        with self._one:
            is_lost = self._read(places) and self._look()
        if is_lost:
            self.walk()

    def _read(self, places: Sequence[Place], gone: Iterable[bytes] = (), seen: str | None = None) -> bool:
        """Returns whether one of them is not a bundle any more: its folder is listed again. ``seen`` are the trees with
        which the index agrees then."""
        entries = {place: self._entry(place) for place in places}
        lost = [place for place, entry in entries.items() if entry is None]
        if lost:
            seen = ""

        def put(table: Table) -> None:
            if seen is not None:
                table.put_fact(_SEEN, seen)
            for entry in filter(None, entries.values()):
                table.put(entry)
            for key in (*gone, *(place.key for place in lost)):
                table.drop(key)

        self.change(put)
        for place in lost:
            self._compared = False
            if place.rank < len(self.trees):
                self.trees[place.rank].doubt(place.path)
        return bool(lost)

    def _entry(self, place: Place) -> Entry | None:
        """Returns None when there is not a bundle any more."""
        before = self._index.table.at(place.key)
        if before is not None and before.is_unchanged():
            return replace(before, rank=place.rank, place=place.place)
        reading = self._loader.read(place)
        return reading.entry if reading else None
