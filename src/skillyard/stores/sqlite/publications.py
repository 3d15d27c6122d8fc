"""Publications in SQLite. Triggers refuse to change the content of a version, and to forget one.

Operations on a connection return a refusal rather than raise it: raising would undo the writes of others beside them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields, replace
from functools import partial
from typing import Any

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.errors import InvalidInput, QuotaExceeded, SkillyardError
from skillyard.domain.skill.publication import (
    Disabled,
    Pin,
    Publication,
    PublicationAct,
    PublicationEvent,
    PublicationLimits,
    claim_refusal,
    pin_refusal,
    place_of,
    version_refusal,
)
from skillyard.domain.skill.semver import newest_first
from skillyard.ports.publications import Inserted, Withdrawn
from skillyard.stores.sqlite.database import Database

COLUMNS = ", ".join(field.name for field in fields(Publication))
EVENT = ", ".join(field.name for field in fields(PublicationEvent))
PIN = ", ".join(field.name for field in fields(Pin))

FIND = f"SELECT {COLUMNS} FROM publications WHERE name = ? AND place = ?"  # noqa: S608 - fixed texts
OF = f"SELECT {COLUMNS} FROM publications WHERE name = ?"  # noqa: S608
EVERY = f"SELECT {COLUMNS} FROM publications ORDER BY seq"  # noqa: S608
OWNER = "SELECT project FROM publications WHERE name = ? LIMIT 1"
PINNED = f"SELECT {PIN} FROM publication_pins WHERE name = ?"  # noqa: S608
HISTORY = f"SELECT {EVENT} FROM publication_history WHERE name = ? ORDER BY seq DESC LIMIT ?"  # noqa: S608
CHANGED = """
    SELECT coalesce(max(seq), 0), NULL FROM publication_history
    UNION ALL SELECT DISTINCT 0, name FROM publication_history WHERE seq > ?"""

_TOTALS = "SELECT count, bytes FROM publication_totals WHERE project = ?"
_INSERT = f"""
    INSERT INTO publications (place, {COLUMNS})
    VALUES (?, {", ".join("?" for _ in fields(Publication))})"""  # noqa: S608
_NOTE = f"INSERT INTO publication_history ({EVENT}) VALUES ({', '.join('?' for _ in fields(PublicationEvent))})"  # noqa: S608
_STATE = "UPDATE publications SET withdrawn_at = ?, withdrawn_by = ?, reason = ? WHERE name = ? AND place = ?"
_PIN = f"""
    INSERT INTO publication_pins ({PIN}) VALUES (?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, pinned_at = excluded.pinned_at,
        pinned_by = excluded.pinned_by"""  # noqa: S608
_DISABLED = ", ".join(field.name for field in fields(Disabled))
_DISABLE = f"INSERT OR IGNORE INTO disabled_skills ({_DISABLED}) VALUES (?, ?, ?, ?)"  # noqa: S608
_ENABLE = "DELETE FROM disabled_skills WHERE project = ? AND name = ?"
_EVERY_DISABLED = f"SELECT {_DISABLED} FROM disabled_skills ORDER BY project, name"  # noqa: S608
_ONE_DISABLED = f"SELECT {_DISABLED} FROM disabled_skills WHERE project = ? AND name = ?"  # noqa: S608
_UNPIN = "DELETE FROM publication_pins WHERE name = ?"


class SqlitePublications:
    """A :class:`skillyard.ports.publications.PublicationStore`."""

    def __init__(self, database: Database, limits: PublicationLimits | None = None) -> None:
        self._database = database
        self._limits = limits or PublicationLimits()

    async def insert(self, publication: Publication, *, any_project: bool = False) -> Inserted:
        return await self._judged(insert, publication, any_project=any_project)

    async def check(self, publication: Publication, *, any_project: bool = False) -> None:
        await self._judged(judge, publication, any_project=any_project)

    async def _judged(
        self, step: Callable[..., Inserted | SkillyardError], wanted: Publication, *, any_project: bool
    ) -> Inserted:
        place_of(wanted.version)
        judged = await self._database.write(partial(step, wanted=wanted, limits=self._limits, any_project=any_project))
        if isinstance(judged, SkillyardError):
            raise judged
        return judged

    async def find(self, name: str, version: str) -> Publication | None:
        row = await self._database.lookup(FIND, (name, place_of(version)))
        return publication_of(row) if row else None

    async def of(self, name: str) -> Sequence[Publication]:
        found = {row[1]: publication_of(row) for row in await self._database.fetch(OF, (name,))}
        return [found[version] for version in newest_first(found)]

    async def every(self) -> Sequence[Publication]:
        return [publication_of(row) for row in await self._database.fetch(EVERY)]

    async def owner(self, name: str) -> str | None:
        row = await self._database.lookup(OWNER, (name,))
        return str(row[0]) if row else None

    async def withdraw(self, name: str, version: str, *, at: float, by: str, reason: str) -> Withdrawn | None:
        place_of(version)
        check_unicode("reason", reason)
        return await self._database.write(lambda connection: withdraw(connection, name, version, at, by, reason))

    async def restore(self, name: str, version: str, *, at: float, by: str) -> Publication | None:
        place_of(version)
        return await self._database.write(lambda connection: restore(connection, name, version, at, by))

    async def pin(self, pin: Pin) -> Pin:
        place_of(pin.version)
        stored = await self._database.write(lambda connection: _pin(connection, pin))
        if isinstance(stored, InvalidInput):
            raise stored
        return stored

    async def unpin(self, name: str, *, at: float, by: str) -> Pin | None:
        return await self._database.write(lambda connection: unpin(connection, name, at, by))

    async def pinned(self, name: str) -> Pin | None:
        row = await self._database.lookup(PINNED, (name,))
        return Pin(*row) if row else None

    async def disable(self, disabled: Disabled) -> Disabled:
        check_unicode("name", disabled.name)
        key = (disabled.project, disabled.name)

        def put(connection: sqlite3.Connection) -> Disabled:
            connection.execute(_DISABLE, astuple(disabled))
            return Disabled(*connection.execute(_ONE_DISABLED, key).fetchone())

        return await self._database.write(put)

    async def enable(self, project: str, name: str) -> bool:
        check_unicode("name", name)
        return await self._database.write(lambda connection: connection.execute(_ENABLE, (project, name)).rowcount > 0)

    async def disabled(self) -> Sequence[Disabled]:
        return [Disabled(*row) for row in await self._database.fetch(_EVERY_DISABLED)]

    async def changed(self, since: int) -> tuple[int, Sequence[str]]:
        (newest, _), *names = await self._database.fetch(CHANGED, (since,))
        return int(newest), [str(name) for _, name in names]

    async def history(self, name: str, *, limit: int = 100) -> Sequence[PublicationEvent]:
        check_page(limit)
        return [event_of(row) for row in await self._database.fetch(HISTORY, (name, limit))]


def publication_of(row: Sequence[Any]) -> Publication:
    return Publication(*row)


def event_of(row: Sequence[Any]) -> PublicationEvent:
    return PublicationEvent(row[0], PublicationAct(row[1]), *row[2:])


def find(connection: sqlite3.Connection, name: str, version: str) -> Publication | None:
    rows = connection.execute(FIND, (name, place_of(version))).fetchall()
    return publication_of(rows[0]) if rows else None


def judge(
    connection: sqlite3.Connection, wanted: Publication, limits: PublicationLimits, *, any_project: bool
) -> Inserted | SkillyardError:
    """Returns what would be stored, or why it is refused."""
    owner = _owner(connection, wanted.name)
    if any_project and owner is not None:
        wanted = replace(wanted, project=owner)
    if (foreign := claim_refusal(wanted.name, owner, wanted.project)) is not None:
        return foreign
    stored = find(connection, wanted.name, wanted.version)
    if stored is not None:
        return version_refusal(stored, wanted) or Inserted(stored, created=False)
    return _quota_refusal(connection, wanted, limits) or Inserted(wanted, created=True)


def insert(
    connection: sqlite3.Connection, wanted: Publication, limits: PublicationLimits, *, any_project: bool
) -> Inserted | SkillyardError:
    """Stores a publication, or returns why it is refused."""
    judged = judge(connection, wanted, limits, any_project=any_project)
    if isinstance(judged, Inserted) and judged.created:
        stored = judged.publication
        connection.execute(_INSERT, (place_of(stored.version), *astuple(stored)))
        _note(connection, PublicationAct.PUBLISHED, stored, stored.published_at, stored.published_by)
    return judged


def withdraw(
    connection: sqlite3.Connection, name: str, version: str, at: float, by: str, reason: str
) -> Withdrawn | None:
    stored = find(connection, name, version)
    if stored is None:
        return None
    if stored.withdrawn:
        return Withdrawn(stored, changed=False, unpinned=False)
    connection.execute(_STATE, (at, by, reason, name, place_of(version)))
    gone = replace(stored, withdrawn_at=at, withdrawn_by=by, reason=reason)
    _note(connection, PublicationAct.WITHDRAWN, gone, at, by, reason)
    pin = pinned(connection, name)
    unpinned = pin is not None and place_of(pin.version) == place_of(version)
    if unpinned:
        unpin(connection, name, at, by)
    return Withdrawn(gone, changed=True, unpinned=unpinned)


def restore(connection: sqlite3.Connection, name: str, version: str, at: float, by: str) -> Publication | None:
    stored = find(connection, name, version)
    if stored is None or not stored.withdrawn:
        return stored
    connection.execute(_STATE, (None, "", "", name, place_of(version)))
    back = replace(stored, withdrawn_at=None, withdrawn_by="", reason="")
    _note(connection, PublicationAct.RESTORED, back, at, by)
    return back


def _pin(connection: sqlite3.Connection, wanted: Pin) -> Pin | InvalidInput:
    """Returns the stored pin, or why it is refused."""
    stored = find(connection, wanted.name, wanted.version)
    if stored is not None and stored.withdrawn:
        return pin_refusal(stored)
    before = pinned(connection, wanted.name)
    if before is not None and before.version == wanted.version:
        return before
    connection.execute(_PIN, astuple(wanted))
    _note_pin(connection, PublicationAct.PINNED, wanted, wanted.pinned_at, wanted.pinned_by)
    return wanted


def unpin(connection: sqlite3.Connection, name: str, at: float, by: str) -> Pin | None:
    gone = pinned(connection, name)
    if gone is not None:
        connection.execute(_UNPIN, (name,))
        _note_pin(connection, PublicationAct.UNPINNED, gone, at, by)
    return gone


def pinned(connection: sqlite3.Connection, name: str) -> Pin | None:
    rows = connection.execute(PINNED, (name,)).fetchall()
    return Pin(*rows[0]) if rows else None


def _owner(connection: sqlite3.Connection, name: str) -> str | None:
    rows = connection.execute(OWNER, (name,)).fetchall()
    return str(rows[0][0]) if rows else None


def _quota_refusal(
    connection: sqlite3.Connection, wanted: Publication, limits: PublicationLimits
) -> QuotaExceeded | None:
    count, size = connection.execute(_TOTALS, (wanted.project,)).fetchone() or (0, 0)
    try:
        limits.check(count, size, wanted.size)
    except QuotaExceeded as refusal:
        return refusal
    return None


def _note(
    connection: sqlite3.Connection, act: PublicationAct, what: Publication, at: float, by: str, reason: str = ""
) -> None:
    event = PublicationEvent(at, act, what.name, what.version, what.digest, by, reason)
    connection.execute(_NOTE, astuple(event))


def _note_pin(connection: sqlite3.Connection, act: PublicationAct, what: Pin, at: float, by: str) -> None:
    stored = find(connection, what.name, what.version)
    event = PublicationEvent(at, act, what.name, what.version, stored.digest if stored else "", by)
    connection.execute(_NOTE, astuple(event))
