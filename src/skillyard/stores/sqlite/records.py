"""Run records in SQLite: columns for what is looked for, JSON for the record itself."""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.errors import IdempotencyConflict, InvalidInput, StoreFault, shown
from skillyard.domain.work.record import Outcome, RunKind, RunRecord, RunStatus, check_status
from skillyard.stores.sqlite.database import Database

SWEEP_BATCH = 500

_encode = json.JSONEncoder(separators=(",", ":")).encode

_APART = ("network", "needs")
"""The fields with columns of their own."""
_FIELDS = tuple(field.name for field in fields(RunRecord) if field.name not in _APART)

_INSERT = """
    INSERT INTO runs (run_id, principal, status, created_at, ended_at, idempotency_key, request_digest, record,
        network, needs)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_TAKEN = """
    SELECT run_id, request_digest FROM runs WHERE principal = ? AND idempotency_key = ?"""
_REPLACE = """
    UPDATE runs SET status = ?, ended_at = ?, record = ?, network = ?, needs = ?
    WHERE run_id = ? AND status = 'running' AND principal = ? AND idempotency_key IS ?"""
_SWEEP = """
    DELETE FROM runs WHERE seq IN (SELECT seq FROM runs WHERE ended_at < ? LIMIT ?)"""

_CROWDED = "SELECT principal FROM runs GROUP BY principal HAVING count(*) > ?"
_TRIM = """
    DELETE FROM runs WHERE seq IN (
        SELECT seq FROM runs WHERE principal = ?1 AND status <> 'running' ORDER BY seq
        LIMIT min(?3, max(0, (SELECT count(*) FROM runs WHERE principal = ?1) - ?2)))"""


class SqliteRecords:
    """A :class:`skillyard.ports.records.RecordStore`. Ordered by insertion, whatever the clock did."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(self, record: RunRecord) -> None:
        values = (
            record.run_id,
            record.principal,
            record.status.value,
            record.created_at,
            _ended(record),
            record.idempotency_key,
            record.request_digest,
            encode(record),
            _apart(record.network),
            _apart(record.needs),
        )
        try:
            if await self._database.execute(_INSERT, values) == 1:
                return
        except UnicodeEncodeError:
            for name in ("run_id", "principal", "idempotency_key"):
                check_unicode(name, getattr(record, name) or "")
            raise
        refusal = await self._database.write(lambda connection: _insert(connection, record, values))
        if refusal is not None:
            raise refusal

    async def update_running(self, record: RunRecord) -> bool:
        if record.status is not RunStatus.RUNNING:
            raise ValueError("update_running takes a running record; finish moves it on")
        return await self._replace(record)

    async def finish(self, record: RunRecord) -> bool:
        if record.status is RunStatus.RUNNING:
            raise ValueError("finish takes a record in a terminal state")
        return await self._replace(record)

    async def get(self, run_id: str) -> RunRecord | None:
        row = await self._database.lookup("SELECT record, network, needs FROM runs WHERE run_id = ?", (run_id,))
        return decode(*row) if row else None

    async def by_key(self, principal: str, idempotency_key: str) -> RunRecord | None:
        row = await self._database.lookup(
            "SELECT record, network, needs FROM runs WHERE principal = ? AND idempotency_key = ?",
            (principal, idempotency_key),
        )
        return decode(*row) if row else None

    async def list(
        self, principal: str | None, *, limit: int = 50, after: str | None = None, status: str | None = None
    ) -> Sequence[RunRecord]:
        """As the port says. Raises InvalidInput for a limit outside 1 to 1000, a status that does not exist,
        and an ``after`` that names no run of this principal."""
        check_page(limit)
        check_status(status)
        conditions: list[tuple[str, object]] = []
        if principal is not None:
            conditions.append(("principal = ?", principal))
        if after is not None:
            conditions.append(("seq < ?", await self._position(principal, after)))
        if status is not None:
            conditions.append(("status = ?", str(status)))
        where = " AND ".join(condition for condition, _ in conditions) or "TRUE"
        rows = await self._database.fetch(
            f"SELECT record FROM runs WHERE {where} ORDER BY seq DESC LIMIT ?",  # noqa: S608 - fixed texts
            [*(value for _, value in conditions), limit],
        )
        return [decode(row[0]) for row in rows]

    async def unfinished(self) -> Sequence[RunRecord]:
        rows = await self._database.fetch(
            "SELECT record, network, needs FROM runs WHERE status = 'running' ORDER BY seq"
        )
        return [decode(*row) for row in rows]

    async def sweep(self, older_than: float) -> int:
        swept = 0
        while True:
            count = await self._database.submit(lambda connection: _sweep(connection, older_than), alone=True)
            swept += count
            if count < SWEEP_BATCH:
                return swept

    async def trim(self, most: int) -> int:
        trimmed = 0
        for (principal,) in await self._database.fetch(_CROWDED, (most,)):
            count = SWEEP_BATCH
            while count == SWEEP_BATCH:
                values = (principal, most, SWEEP_BATCH)
                count = await self._database.submit(functools.partial(_trim, values=values), alone=True)
                trimmed += count
        return trimmed

    async def _replace(self, record: RunRecord) -> bool:
        values = (
            record.status.value,
            _ended(record),
            encode(record),
            _apart(record.network),
            _apart(record.needs),
            record.run_id,
            record.principal,
            record.idempotency_key,
        )
        return await self._database.execute(_REPLACE, values) == 1

    async def _position(self, principal: str | None, run_id: str) -> int:
        row = await self._database.lookup("SELECT seq, principal FROM runs WHERE run_id = ?", (run_id,))
        if row is None or (principal is not None and row[1] != principal):
            raise InvalidInput("after", "must be the id of an existing run", shown(run_id))
        return int(row[0])


def encode(record: RunRecord) -> str:
    """Returns all fields without columns of their own, as ASCII JSON.

    Half a surrogate pair, which SQLite's text cannot hold, stays an escape.
    """
    return _encode({name: getattr(record, name) for name in _FIELDS})


def decode(text: str, network: str | None = None, needs: str | None = None) -> RunRecord:
    """Fields that a later version added are passed over; missing ones get their defaults."""
    try:
        values = {name: value for name, value in json.loads(text).items() if name in _FIELDS}
        values["kind"] = RunKind(values["kind"])
        values["status"] = RunStatus(values["status"])
        values["outcome"] = None if values.get("outcome") is None else Outcome(values["outcome"])
        for name in ("output_blobs", "files", "notes"):
            values[name] = tuple(values.get(name, ()))
        return RunRecord(**values, network=_whole(network), needs=_whole(needs))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreFault("a run record is damaged; restore the database from a backup") from error


def conflict() -> IdempotencyConflict:
    return IdempotencyConflict("idempotency_key", "was used before, for another run")


def _insert(connection: sqlite3.Connection, record: RunRecord, values: tuple[object, ...]) -> InvalidInput | None:
    """Returns why the record is refused.

    It does not raise that, since raising would undo others' writes beside it.
    """
    if connection.execute(_INSERT, values).rowcount == 1:
        return None
    key = (record.principal, record.idempotency_key)
    taken = None if record.idempotency_key is None else connection.execute(_TAKEN, key).fetchone()
    if taken is None:
        return InvalidInput("run_id", "is taken", shown(record.run_id))
    return None if taken == (record.run_id, record.request_digest) else conflict()


def _sweep(connection: sqlite3.Connection, older_than: float) -> int:
    return connection.execute(_SWEEP, (older_than, SWEEP_BATCH)).rowcount


def _trim(connection: sqlite3.Connection, values: tuple[str, int, int]) -> int:
    return connection.execute(_TRIM, values).rowcount


def _apart(value: dict[str, Any] | None) -> str | None:
    return None if value is None else _encode(value)


def _whole(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _ended(record: RunRecord) -> float | None:
    if record.status is RunStatus.RUNNING:
        return None
    return record.created_at if record.ended_at is None else record.ended_at
