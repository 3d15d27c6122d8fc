"""The catalogue's work off the event loop: the index, and what keeps it true. All of it blocks.

Methods may be called from any thread; one works at a time.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from skillyard.domain.skill.publication import Publication
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.catalogue.cache_file import BROKEN, Index, is_damage, mark_of
from skillyard.stores.skills.catalogue.loading import Loader
from skillyard.stores.skills.catalogue.rows import PIN, WITHDRAWN, Entry, key_of, note_of
from skillyard.stores.skills.catalogue.serving import Serving, Tell
from skillyard.stores.skills.catalogue.table import Table
from skillyard.stores.skills.catalogue.trees import Tree
from skillyard.stores.skills.catalogue.update import Place, Search, Updater

SLICE = 500
"""Bundles whose stamps are looked at in one go: about 5 ms."""
AWAITED = 5000
"""Paths that a caller waits for: about 20 ms."""
GENTLE = 20
"""Bundles that are read in one go while others wait for the interpreter: about 20 ms."""
PROGRESS_S = 5.0
_NUMBER = "publications"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Said:
    """Everything that the store of publications says of one name."""

    name: str
    publications: Sequence[Publication]
    pinned: str | None


class Published:
    """Published versions in the index."""

    def __init__(self, table: Table, loader: Loader, serving: Serving) -> None:
        self._table = table
        self._loader = loader
        self._serving = serving

    @property
    def number(self) -> int:
        """The newest line of the histories of publications whose change is served."""
        return int(self._table.fact(_NUMBER) or "0")

    def serve(self, said: Sequence[Said], number: int | None, *, again: bool = False) -> None:
        """Serves what was said and remembers ``number`` with it, unless it is None. ``again``: snapshots that were fine
        are read too."""
        with self._serving.changed() as names:
            for one in said:
                names.add(one.name)
                self._put(one, again)
            if number is not None:
                self._table.put_fact(_NUMBER, str(number))

    def _put(self, said: Said, again: bool) -> None:
        before = {entry.path: entry for entry in self._table.publications(said.name)}
        notes = {note.path: note for note in _notes(said)}
        wanted = {key_of(p.name, p.version): p for p in said.publications if not p.withdrawn}
        for key in before.keys() - wanted.keys() - notes.keys():
            self._table.drop(key, before[key].rank)
        for note in notes.values():
            self._table.put(note)
        for key, publication in wanted.items():
            known = before.get(key)
            if again or known is None or known.errors or known.digest != publication.digest:
                self._table.put(self._loader.read_published(publication).entry)


def _notes(said: Said) -> Iterator[Entry]:
    if said.pinned is not None:
        yield note_of(PIN, said.name, said.pinned)
    for publication in said.publications:
        if publication.withdrawn_at is not None:
            when_and_why = json.dumps([publication.withdrawn_at, publication.reason])
            yield note_of(WITHDRAWN, said.name, publication.version, when_and_why)


class Stopped(Exception):
    """The catalogue is being closed."""


class Upkeep:
    """``tell`` as for :class:`Serving`."""

    def __init__(self, path: Path, loader: Loader, search: Search, tell: Tell) -> None:
        """Opens the index. Raises StoreFault, sqlite3.Error."""
        self._loader = loader
        self._search = search
        self._tell = tell
        self._stop = threading.Event()
        self._one = threading.RLock()
        self._index = Index(path, mark_of(loader.caps, lenient=loader.lenient))
        try:
            self._prepare()
        except BROKEN as error:
            if not is_damage(error):
                self._index.close()
                raise
            self.renew()

    def _prepare(self) -> None:
        table = self._index.table
        self._serving = Serving(table, self._tell)
        self._updater = Updater(table, self._loader, self._search, self._serving)
        self._published = Published(table, self._loader, self._serving)

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
        return self._serving.paths + sum(len(tree.folders) for tree in self._updater.trees)

    @property
    def is_large(self) -> bool:
        """Returns whether looking at everything takes longer than a caller should wait."""
        return self.paths > AWAITED

    @property
    def notes(self) -> Sequence[Finding]:
        return self._updater.notes

    @property
    def trees(self) -> Sequence[Tree]:
        return self._updater.trees

    def number(self) -> int:
        """As :attr:`Published.number`."""
        with self._one:
            return self._published.number

    def renew(self) -> None:
        """Begin again with an empty index."""
        with self._one:
            logger.warning("the catalogue's index is damaged: every skill is read again")
            self._index.renew()
            self._prepare()
            self._tell(None)

    def is_stale(self) -> bool:
        """Returns whether anything on disk differs from the index; for few paths, on the loop's thread."""
        return self._updater.is_stale() or bool(self._updater.survey(self.near, 0, SLICE)[0])

    def begin(self) -> None:
        """Find every bundle, and read those that the index does not know; says now and then how far it is."""
        say_at = time.monotonic() + PROGRESS_S
        with self._one:
            busy = self._updater.look()
            everything = self._updater.left
            while busy:
                self._check_stop()
                busy = self._updater.step()
                if busy and time.monotonic() >= say_at:
                    say_at = time.monotonic() + PROGRESS_S
                    logger.info("the catalogue has read %d of %d bundles", everything - self._updater.left, everything)

    def check(self) -> None:
        """Look at everything, and read what changed."""
        with self._one:
            self.walk()
            after: int | None = 0
            while after is not None:
                after = self.survey(after)

    def walk(self) -> None:
        """Look at the directories, and read what is new in them; when that is much, with rests for others."""
        with self._one:
            busy = self._updater.look()
        while busy:
            self._check_stop()
            started = time.monotonic()
            with self._one:
                busy = self._updater.step(GENTLE)
            if self._updater.left > GENTLE:
                self._stop.wait(time.monotonic() - started)

    def survey(self, after: int) -> int | None:
        """Look at the next bundles, and read those that changed; where to go on."""
        with self._one:
            changed, then = self._updater.survey(self._index.table, after, SLICE)
        for first in range(0, len(changed), GENTLE):
            self._check_stop()
            self.read_again(changed[first : first + GENTLE])
        return then

    def read_again(self, places: Sequence[Place]) -> None:
        """Bundles that seem to have changed."""
        with self._one:
            self._updater.read_again(places)
        if self._updater.is_busy:
            self.walk()

    def look_at(self, places: Sequence[Place]) -> None:
        """Bundles that are asked for, and the directories."""
        with self._one:
            self._updater.read_again(places)
        self.walk()

    def serve(self, said: Sequence[Said], number: int | None = None, *, again: bool = False) -> None:
        """As :meth:`Published.serve`."""
        with self._one:
            self._published.serve(said, number, again=again)

    def published_names(self) -> set[str]:
        with self._one:
            return self._index.table.published_names()

    def broken_names(self) -> set[str]:
        with self._one:
            return self._index.table.published_names(broken=True)

    def unused(self, keep: Iterable[str]) -> set[str]:
        """Snapshots of nothing that the index knows, and what a crash left."""
        with self._one:
            found = self._loader.snapshots.names().difference(keep)
            if found:
                for digest in self._index.table.digests():
                    found.discard(digest)
            return found

    def stop(self) -> None:
        """Let what works end soon, with Stopped."""
        self._stop.set()

    def close(self) -> None:
        with self._one:
            self._index.close()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Stopped
