"""What was published, in SQLite. The database refuses to change what a version is, and to forget one."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Protocol

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.errors import InvalidInput, SkillyardError
from skillyard.domain.skill.publication import Pin, Publication, PublicationEvent, PublicationLimits, place_of
from skillyard.domain.skill.semver import newest_first
from skillyard.ports.publications import Inserted, Withdrawn
from skillyard.stores.sqlite import publication_rows as rows
from skillyard.stores.sqlite.database import Database


class _Judge(Protocol):
    def __call__(
        self, connection: sqlite3.Connection, wanted: Publication, limits: PublicationLimits, /, *, any_project: bool
    ) -> Inserted | SkillyardError: ...


class SqlitePublications:
    """A :class:`skillyard.ports.publications.PublicationStore`."""

    def __init__(self, database: Database, limits: PublicationLimits | None = None) -> None:
        self._database = database
        self._limits = limits or PublicationLimits()

    async def insert(self, publication: Publication, *, any_project: bool = False) -> Inserted:
        return await self._judged(rows.insert, publication, any_project)

    async def check(self, publication: Publication, *, any_project: bool = False) -> None:
        await self._judged(rows.judge, publication, any_project)

    async def _judged(self, judge: _Judge, publication: Publication, any_project: bool) -> Inserted:
        place_of(publication.version)
        judged = await self._database.write(
            lambda connection: judge(connection, publication, self._limits, any_project=any_project)
        )
        if isinstance(judged, SkillyardError):
            raise judged
        return judged

    async def find(self, name: str, version: str) -> Publication | None:
        row = await self._database.lookup(rows.FIND, (name, place_of(version)))
        return rows.publication_of(row) if row else None

    async def of(self, name: str) -> Sequence[Publication]:
        found = {row[1]: rows.publication_of(row) for row in await self._database.fetch(rows.OF, (name,))}
        return [found[version] for version in newest_first(found)]

    async def every(self) -> Sequence[Publication]:
        return [rows.publication_of(row) for row in await self._database.fetch(rows.EVERY)]

    async def owner(self, name: str) -> str | None:
        row = await self._database.lookup(rows.OWNER, (name,))
        return str(row[0]) if row else None

    async def withdraw(self, name: str, version: str, *, at: float, by: str, reason: str) -> Withdrawn | None:
        place_of(version)
        check_unicode("reason", reason)
        return await self._database.write(lambda connection: rows.withdraw(connection, name, version, at, by, reason))

    async def restore(self, name: str, version: str, *, at: float, by: str) -> Publication | None:
        place_of(version)
        return await self._database.write(lambda connection: rows.restore(connection, name, version, at, by))

    async def pin(self, pin: Pin) -> Pin:
        place_of(pin.version)
        stored = await self._database.write(lambda connection: rows.pin(connection, pin))
        if isinstance(stored, InvalidInput):
            raise stored
        return stored

    async def unpin(self, name: str, *, at: float, by: str) -> Pin | None:
        return await self._database.write(lambda connection: rows.unpin(connection, name, at, by))

    async def pinned(self, name: str) -> Pin | None:
        row = await self._database.lookup(rows.PINNED, (name,))
        return Pin(*row) if row else None

    async def pins(self) -> dict[str, str]:
        return {row[0]: row[1] for row in await self._database.fetch(rows.PINS)}

    async def changed(self, since: int) -> tuple[int, Sequence[str]]:
        (newest, _), *names = await self._database.fetch(rows.CHANGED, (since,))
        return int(newest), [str(name) for _, name in names]

    async def history(self, name: str, *, limit: int = 100) -> Sequence[PublicationEvent]:
        check_page(limit)
        return [rows.event_of(row) for row in await self._database.fetch(rows.HISTORY, (name, limit))]
