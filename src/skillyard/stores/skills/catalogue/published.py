"""Brings publications into the index: all new ones at the start, later those that changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from skillyard.domain.skill.publication import Publication
from skillyard.ports.publications import PublicationStore
from skillyard.stores.skills.catalogue.loading import Loader
from skillyard.stores.skills.catalogue.rows import PIN, WITHDRAWN, Entry, key_of
from skillyard.stores.skills.catalogue.table import Table
from skillyard.stores.skills.catalogue.upkeep import Upkeep
from skillyard.values import dataclass

NAMES_AT_ONCE = 100
"""Names whose publications are served in one transaction."""
_NUMBER = "publications"


@dataclass(frozen=True, slots=True)
class Told:
    """Everything that the store of publications knows of one name."""

    name: str
    publications: Sequence[Publication] = ()
    pinned: str | None = None

    def notes(self) -> Iterator[Entry]:
        """Yields the entries of a pin and of withdrawn versions."""
        if self.pinned is not None:
            key = key_of(self.name, "")
            yield Entry(key, PIN, key, name=self.name, version=self.pinned)
        for publication in self.publications:
            if publication.withdrawn_at is not None:
                key = key_of(self.name, publication.version)
                line = json.dumps([publication.withdrawn_at, publication.reason])
                yield Entry(key, WITHDRAWN, key, name=self.name, version=publication.version, line=line)


class Publications:
    """Published versions in the index; there are none without ``store``. Raises the errors of an index and
    StoreFault."""

    def __init__(self, store: PublicationStore | None, loader: Loader) -> None:
        self._store = store
        self._loader = loader
        self._line = asyncio.Lock()

    async def begin(self, upkeep: Upkeep) -> None:
        """Serves everything that was published, withdrawn or pinned since the index was last told."""
        async with self._line:
            if self._store is None:
                await self._serve(upkeep, await asyncio.to_thread(upkeep.ask, Table.published_names), 0)
                return
            known = await asyncio.to_thread(upkeep.ask, _number)
            number, changed = await self._store.changed(known)
            broken = await asyncio.to_thread(upkeep.ask, lambda table: table.published_names(broken=True))
            names = {*changed, *broken}
            if number < known:  # another database than the index was made from
                names |= await asyncio.to_thread(upkeep.ask, Table.published_names)
                names |= {*(await self._store.changed(0))[1]}
            await self._serve(upkeep, names, number)

    async def refresh(self, upkeep: Upkeep, name: str) -> None:
        """Serves ``name`` as it is now, and everything else that is new."""
        if self._store is None:
            return
        async with self._line:
            number, changed = await self._store.changed(await asyncio.to_thread(upkeep.ask, _number))
            await self._serve(upkeep, {name, *changed}, number)

    async def again(self, upkeep: Upkeep, name: str) -> None:
        """Reads the snapshots of ``name`` again: one of them is not what it was."""
        async with self._line:
            told = await self._told(name)
            await asyncio.to_thread(upkeep.change, lambda table: self._put(table, told, again=True))

    async def find(self, entry: Entry) -> Publication | None:
        """Returns the publication of ``entry`` when it is served and has those bytes."""
        if self._store is None or entry.name is None or entry.version is None:
            return None
        found = await self._store.find(entry.name, entry.version)
        return found if found and not found.withdrawn and found.digest == entry.digest else None

    async def digests(self) -> set[str]:
        """Returns the digests of everything that was ever published."""
        every = await self._store.every() if self._store else ()
        return {publication.digest for publication in every}

    async def _serve(self, upkeep: Upkeep, names: Iterable[str], number: int) -> None:
        """Serves the names, and stores ``number`` with the last of them.

        That is the newest line of the histories of publications that the index knows."""
        left = sorted(names)
        while True:
            told = [await self._told(name) for name in left[:NAMES_AT_ONCE]]
            left = left[NAMES_AT_ONCE:]
            await asyncio.to_thread(upkeep.change, partial(self._put_all, told, None if left else number))
            if not left:
                return

    async def _told(self, name: str) -> Told:
        if self._store is None:
            return Told(name)
        pin = await self._store.pinned(name)
        return Told(name, await self._store.of(name), pin.version if pin else None)

    def _put_all(self, told: Iterable[Told], number: int | None, table: Table) -> None:
        for one in told:
            self._put(table, one)
        if number is not None:
            table.put_fact(_NUMBER, str(number))

    def _put(self, table: Table, told: Told, *, again: bool = False) -> None:
        """``again``: snapshots that were fine are read too."""
        before = {entry.path: entry for entry in table.publications(told.name)}
        notes = {note.path: note for note in told.notes()}
        wanted = {key_of(p.name, p.version): p for p in told.publications if not p.withdrawn}
        for key in before.keys() - wanted.keys() - notes.keys():
            table.drop(key)
        for note in notes.values():
            table.put(note)
        for key, publication in wanted.items():
            known = before.get(key)
            if again or known is None or known.errors or known.digest != publication.digest:
                table.put(self._loader.read_published(publication).entry)


def _number(table: Table) -> int:
    return int(table.fact(_NUMBER) or "0")
