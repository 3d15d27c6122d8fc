"""Brings publications into the index: at the start all new ones, later those that it is told of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from skillyard.domain.skill.publication import Publication
from skillyard.ports.publications import PublicationStore
from skillyard.stores.skills.catalogue.rows import Entry
from skillyard.stores.skills.catalogue.upkeep import Said, Upkeep

NAMES_AT_ONCE = 100
"""Whose publications are served in one transaction."""


class Publications:
    """Without ``publications`` there are none. Raises what an index raises, and StoreFault."""

    def __init__(self, publications: PublicationStore | None) -> None:
        self._publications = publications
        self._line = asyncio.Lock()

    async def begin(self, upkeep: Upkeep) -> None:
        """Whatever was published, withdrawn or pinned since the index was last told."""
        async with self._line:
            if self._publications is None:
                await self._serve(upkeep, await asyncio.to_thread(upkeep.published_names), 0)
                return
            known = await asyncio.to_thread(upkeep.number)
            number, changed = await self._publications.changed(known)
            names = {*changed, *await asyncio.to_thread(upkeep.broken_names)}
            if number < known:  # another database than the index was made from
                names |= await asyncio.to_thread(upkeep.published_names)
                names |= {*(await self._publications.changed(0))[1]}
            await self._serve(upkeep, names, number)

    async def refresh(self, upkeep: Upkeep, name: str) -> None:
        """``name``, and whatever else is new."""
        if self._publications is None:
            return
        async with self._line:
            number, changed = await self._publications.changed(await asyncio.to_thread(upkeep.number))
            await self._serve(upkeep, {name, *changed}, number)

    async def again(self, upkeep: Upkeep, name: str) -> None:
        """The snapshots of ``name`` are read again: one of them is not what it was."""
        async with self._line:
            said = await self._said(name)
            await asyncio.to_thread(upkeep.serve, [said], again=True)

    async def find(self, entry: Entry) -> Publication | None:
        """The publication that ``entry`` says to be, when it is served and has those bytes."""
        if self._publications is None or entry.name is None or entry.version is None:
            return None
        found = await self._publications.find(entry.name, entry.version)
        return found if found and not found.withdrawn and found.digest == entry.digest else None

    async def digests(self) -> set[str]:
        """Of everything that was ever published."""
        every = await self._publications.every() if self._publications else ()
        return {publication.digest for publication in every}

    async def _serve(self, upkeep: Upkeep, names: Iterable[str], number: int) -> None:
        left = sorted(names)
        while len(left) > NAMES_AT_ONCE:
            some, left = left[:NAMES_AT_ONCE], left[NAMES_AT_ONCE:]
            await asyncio.to_thread(upkeep.serve, [await self._said(name) for name in some])
        await asyncio.to_thread(upkeep.serve, [await self._said(name) for name in left], number)

    async def _said(self, name: str) -> Said:
        if self._publications is None:
            return Said(name, (), None)
        pin = await self._publications.pinned(name)
        return Said(name, await self._publications.of(name), pin.version if pin else None)
