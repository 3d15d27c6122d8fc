"""Sessions in SQLite: columns for what is looked for, JSON for the record itself."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.errors import StoreFault
from skillyard.domain.work.record import Lease
from skillyard.domain.work.session import SessionKey, SessionRecord, SessionState, too_many
from skillyard.stores.sqlite.database import Database

_APART = frozenset({"session_id", "key", "principal", "revision", "lease"})
"""The fields with columns of their own."""
_FIELDS = tuple(field.name for field in fields(SessionRecord) if field.name not in _APART)
_WHOLE = "session_id, project, agent, alias, principal, revision, lease_holder, lease_boot, lease_until, record"
_READ = f"SELECT {_WHOLE} FROM sessions"  # noqa: S608 - fixed texts
_OF_KEY = f"{_READ} WHERE project = ? AND agent = ? AND alias = ? AND ended_at IS NULL"
_HELD = "SELECT count(*) FROM sessions WHERE principal = ? AND ended_at IS NULL"
_INSERT = f"INSERT INTO sessions ({_WHOLE}, ended_at) VALUES ({', '.join('?' * 11)})"  # noqa: S608 - fixed texts
_REPLACE = f"""
    UPDATE sessions SET revision = revision + 1, lease_until = iif(lease_holder IS ?1 AND lease_boot IS ?2,
        max(lease_until, ?3), ?3), lease_holder = ?1, lease_boot = ?2, record = ?4, ended_at = ?5
    WHERE session_id = ?6 AND revision = ?7 AND ended_at IS NULL RETURNING {_WHOLE}"""  # noqa: S608 - fixed texts
_RENEW = "UPDATE sessions SET lease_until = ? WHERE lease_holder = ? AND ended_at IS NULL"
_SWEEP = "DELETE FROM sessions WHERE ended_at < ?"

_encode = json.JSONEncoder(separators=(",", ":")).encode


class SqliteSessions:
    """A :class:`skillyard.ports.sessions.SessionStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, session: SessionRecord, most: int) -> SessionRecord:
        key = session.key
        for name, value in (("project", key.project), ("agent", key.agent), ("session_id", key.alias)):
            check_unicode(name, value)

        def opened(connection: sqlite3.Connection) -> tuple[Any, ...] | None:
            row: tuple[Any, ...] | None = connection.execute(_OF_KEY, (key.project, key.agent, key.alias)).fetchone()
            if row is not None:
                return row
            if connection.execute(_HELD, (session.principal,)).fetchone()[0] >= most:
                return None
            connection.execute(_INSERT, (*_values(session), session.ended_at))
            return ()

        row = await self._database.write(opened)
        if row is None:
            raise too_many(most)
        return _decoded(*row) if row else session

    async def change(self, session: SessionRecord) -> SessionRecord | None:
        values = (*_lease(session.lease), _record(session), session.ended_at, session.session_id, session.revision)

        def replaced(connection: sqlite3.Connection) -> tuple[Any, ...] | None:
            row: tuple[Any, ...] | None = connection.execute(_REPLACE, values).fetchone()
            return row

        row = await self._database.write(replaced)
        return None if row is None else _decoded(*row)

    async def get(self, session_id: str) -> SessionRecord | None:
        row = await self._database.lookup(f"{_READ} WHERE session_id = ?", (session_id,))
        return None if row is None else _decoded(*row)

    async def find(self, key: SessionKey) -> SessionRecord | None:
        row = await self._database.lookup(_OF_KEY, (key.project, key.agent, key.alias))
        return None if row is None else _decoded(*row)

    async def live(self) -> Sequence[SessionRecord]:
        return [_decoded(*row) for row in await self._database.fetch(f"{_READ} WHERE ended_at IS NULL ORDER BY seq")]

    async def list(
        self, project: str | None, agent: str | None, *, ended: bool = False, limit: int = 100
    ) -> Sequence[SessionRecord]:
        check_page(limit)
        where = "(?1 IS NULL OR project = ?1) AND (?2 IS NULL OR agent = ?2)" + (
            "" if ended else " AND ended_at IS NULL"
        )
        rows = await self._database.fetch(f"{_READ} WHERE {where} ORDER BY seq DESC LIMIT ?3", [project, agent, limit])
        return [_decoded(*row) for row in rows]

    async def renew(self, holder: str, until: float) -> int:
        return await self._database.execute(_RENEW, (until, holder))

    async def sweep(self, older_than: float) -> int:
        return await self._database.execute(_SWEEP, (older_than,))


def _values(session: SessionRecord) -> tuple[Any, ...]:
    key = session.key
    return (
        session.session_id,
        key.project,
        key.agent,
        key.alias,
        session.principal,
        session.revision,
        *_lease(session.lease),
        _record(session),
    )


def _record(session: SessionRecord) -> str:
    return _encode({name: getattr(session, name) for name in _FIELDS})


def _lease(lease: Lease | None) -> tuple[str | None, str | None, float | None]:
    return (None, None, None) if lease is None else (lease.holder, lease.boot, lease.until)


def _decoded(
    session_id: str,
    project: str,
    agent: str,
    alias: str,
    principal: str,
    revision: int,
    holder: str | None,
    boot: str | None,
    until: float | None,
    text: str,
) -> SessionRecord:
    """Fields that a later version added are passed over; missing ones get their defaults."""
    try:
        values = {name: value for name, value in json.loads(text).items() if name in _FIELDS}
        values["state"] = SessionState(values["state"])
        for name in ("skills", "interpreter_skills"):
            values[name] = tuple(values.get(name, ()))
        values["kept"] = {run_id: tuple(skills) for run_id, skills in values.get("kept", {}).items()}
        return SessionRecord(
            session_id=session_id,
            key=SessionKey(project, agent, alias),
            principal=principal,
            revision=revision,
            lease=None if holder is None else Lease(holder, boot or "", until or 0.0),
            **values,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreFault("the record of a session is damaged; restore the database from a backup") from error
