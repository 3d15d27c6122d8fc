"""Run records in SQLite: columns for what is looked for, JSON for the record itself."""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.errors import IdempotencyConflict, InvalidInput, StoreFault, shown
from skillyard.domain.principal import AgentScope
from skillyard.domain.sandbox.frames import FramePlace
from skillyard.domain.sandbox.spec import Owner
from skillyard.domain.work.callback import PENDING, parse_url
from skillyard.domain.work.event import Event, next_event, of_end
from skillyard.domain.work.labels import check_labels
from skillyard.domain.work.record import (
    Lease,
    LogPlace,
    Offsets,
    Outcome,
    RunKind,
    RunRecord,
    RunStatus,
    SecretRef,
    StreamPlaces,
    check_status,
)
from skillyard.ports.records import NO_LABELS, Listener
from skillyard.stores.sqlite.database import Database

SWEEP_BATCH = 500

_COLUMNS = ("network", "needs", "revision", "lease", "labels")
"""The fields with columns of their own."""
_WORK = ("owner", "sandbox", "deadline", "cancel_requested", "program", "offsets", "blob_prefix", "secrets",
         "network_session", "agent", "service", "session",
         "session_life", "max_attempts", "attempts", "callback", "interpreter", "stay")  # fmt: skip
"""The fields that are stored when they differ from their defaults: most runs have none of them."""
_DEFAULTS = tuple({field.name: field.default for field in fields(RunRecord)}[name] for name in _WORK)
_ALIKE = ("enforced", "guarantees")
"""The fields that a backend gives to all its sandboxes alike; they are two thirds of a record."""
_FIELDS = tuple(field.name for field in fields(RunRecord) if field.name not in (*_COLUMNS, *_WORK, *_ALIKE))
_fields_of, _work_of, _alike_of = attrgetter(*_FIELDS), attrgetter(*_WORK), attrgetter(*_ALIKE)
_STORED = frozenset((*_FIELDS, *_WORK, *_ALIKE))

_encode = json.JSONEncoder(separators=(",", ":"), default=asdict).encode

_INSERT = """
    INSERT INTO runs (run_id, principal, status, created_at, ended_at, idempotency_key, request_digest, record,
        network, needs, revision, lease_holder, lease_boot, lease_until, labels, request)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_LABEL = "INSERT INTO run_labels (run, principal, name, value) SELECT seq, principal, ?, ? FROM runs WHERE run_id = ?"
_TAKEN = """
    SELECT run_id, request_digest FROM runs WHERE principal = ? AND idempotency_key = ?"""
_STATUS = """
    SELECT status FROM runs
    WHERE run_id = ? AND revision = ? AND ended_at IS NULL AND principal = ? AND idempotency_key IS ?"""
_REPLACE = """
    UPDATE runs SET status = ?1, ended_at = ?2, record = ?3, network = iif(?9, ?4, coalesce(network, ?4)), needs = ?5,
        lease_until = iif(lease_holder IS ?6 AND lease_boot IS ?7, max(lease_until, ?8), ?8), lease_holder = ?6,
        lease_boot = ?7, revision = revision + iif(?9, 0, 1), request = iif(?9, NULL, request)
    WHERE run_id = ?10 AND revision = ?11 AND ended_at IS NULL AND principal = ?12 AND idempotency_key IS ?13"""
_TELL_END = "INSERT OR IGNORE INTO callbacks SELECT seq, run_id, ?, 0, ?, '', ? FROM runs WHERE run_id = ?"
_KEEP_NETWORK = "UPDATE runs SET network = ? WHERE run_id = ? AND ended_at IS NULL"
_NOTE_GONE = "UPDATE runs SET gone_ms = ? WHERE run_id = ? AND ended_at IS NOT NULL"
_RENEW = "UPDATE runs SET lease_until = ? WHERE lease_holder = ? AND ended_at IS NULL"
_WHOLE = "record, gone_ms, revision, labels, lease_holder, lease_boot, lease_until, network, needs"
_READ = f"SELECT {_WHOLE} FROM runs"  # noqa: S608 - fixed texts
_READ_LINE = "SELECT record, gone_ms, revision, labels, lease_holder, lease_boot, lease_until FROM runs"
_LABELLED = "seq IN (SELECT run FROM run_labels WHERE name = ? AND value = ?)"
_OWN_LABELLED = "seq IN (SELECT run FROM run_labels WHERE name = ? AND value = ? AND principal = ?)"
_TASK_OF = ":task"
"""The label by which the tasks of an agent are found. A caller's own cannot have this name."""
_IS_SERVICE = "(json_extract(record, '$.service') IS NOT NULL) = ?"
_IS_TASK_OF = "SELECT 1 FROM run_labels WHERE run = ? AND name = ? AND value = ?"
_LAST_EVENT = """
    SELECT seq, (SELECT max(number) FROM run_events WHERE run = seq) FROM runs WHERE run_id = ?"""
_ADD_EVENT = "INSERT INTO run_events (run, number, at, kind, data) VALUES (?, ?, ?, ?, ?)"
_EVENTS = """
    SELECT number, at, kind, data FROM run_events
    WHERE run = (SELECT seq FROM runs WHERE run_id = ?) AND number > ? ORDER BY number LIMIT ?"""
_SWEEP = """
    DELETE FROM runs WHERE seq IN (SELECT seq FROM runs WHERE ended_at < ? LIMIT ?)"""

_CROWDED = "SELECT principal FROM runs GROUP BY principal HAVING count(*) > ?"
_TRIM = """
    DELETE FROM runs WHERE seq IN (
        SELECT seq FROM runs WHERE principal = ?1 AND ended_at IS NOT NULL ORDER BY seq
        LIMIT min(?3, max(0, (SELECT count(*) FROM runs WHERE principal = ?1) - ?2)))"""


class SqliteRecords:
    """A :class:`skillyard.ports.records.RecordStore`. Ordered by insertion, whatever the clock did."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listeners: tuple[Listener, ...] = ()

    def listen(self, listener: Listener) -> None:
        self.ignore(listener)
        self._listeners = (*self._listeners, listener)

    def ignore(self, listener: Listener) -> None:
        self._listeners = tuple(known for known in self._listeners if known != listener)

    async def insert(self, record: RunRecord, request: str | None = None) -> None:
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
            record.revision,
            *_lease(record.lease),
            _apart(record.labels or None),
            request,
        )
        simple = record.owner is Owner.RUN and not record.labels
        try:
            if simple and await self._database.execute(_INSERT, values) == 1:
                self._tell(record)
                return
        except UnicodeEncodeError:
            _check_texts(record)
            raise
        _check_texts(record)
        refusal = await self._database.write(lambda connection: _insert(connection, record, values))
        if refusal is not None:
            raise refusal
        self._tell(record)

    async def change(
        self, record: RunRecord, at: float, kind: str = "", data: Mapping[str, Any] | None = None
    ) -> RunRecord | None:
        if not record.status.live:
            raise ValueError("change takes a live record; finish moves it on")
        return await self._replaced(record, at, kind, dict(data or {}))

    async def finish(self, record: RunRecord) -> bool:
        if _is_live(record):
            raise ValueError("finish takes a record in a terminal state")
        if record.owner is Owner.TASK:
            return await self._replaced(record, _ended(record) or 0.0, "", {}) is not None
        done = await self._database.execute(_REPLACE, _replacing(record)) == 1
        if done:
            self._tell(record)
        return done

    async def note_gone(self, run_id: str, gone_ms: float) -> None:
        await self._database.execute(_NOTE_GONE, (gone_ms, run_id))

    async def keep_network(self, run_id: str, network: dict[str, Any]) -> bool:
        return await self._database.execute(_KEEP_NETWORK, (_apart(network), run_id)) == 1

    async def renew(self, holder: str, until: float) -> int:
        return await self._database.execute(_RENEW, (until, holder))

    async def get(self, run_id: str) -> RunRecord | None:
        row = await self._database.lookup(f"{_READ} WHERE run_id = ?", (run_id,))
        return decode(*row) if row else None

    async def request(self, run_id: str) -> str | None:
        row = await self._database.lookup("SELECT request FROM runs WHERE run_id = ?", (run_id,))
        return None if row is None else row[0]

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        check_page(limit)
        rows = await self._database.fetch(_EVENTS, (run_id, after, limit))
        return [Event(number, at, kind, json.loads(data)) for number, at, kind, data in rows]

    async def by_key(self, principal: str, idempotency_key: str) -> RunRecord | None:
        row = await self._database.lookup(
            f"{_READ} WHERE principal = ? AND idempotency_key = ?", (principal, idempotency_key)
        )
        return decode(*row) if row else None

    async def list(
        self,
        principal: str | None,
        *,
        limit: int = 50,
        after: str | None = None,
        status: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        tasks_of: AgentScope | None = None,
        services: bool | None = None,
    ) -> Sequence[RunRecord]:
        """As the port says. Raises InvalidInput for a limit outside 1 to 1000, a status that does not exist, a label
        that cannot be one, and an ``after`` that names no run of this principal or agent."""
        check_page(limit)
        check_status(status)
        conditions: list[tuple[str, tuple[object, ...]]] = []
        if principal is not None:
            conditions.append(("principal = ?", (principal,)))
        if after is not None:
            conditions.append(("seq < ?", (await self._position(principal, after, tasks_of),)))
        if status is not None:
            conditions.append(("status = ?", (str(status),)))
        if tasks_of is not None:
            conditions.append((_LABELLED, (_TASK_OF, _agent_key(tasks_of))))
        if services is not None:
            conditions.append((_IS_SERVICE, (services,)))
        for label in check_labels(labels).items():
            conditions.append((_LABELLED, label) if principal is None else (_OWN_LABELLED, (*label, principal)))
        where = " AND ".join(condition for condition, _ in conditions) or "TRUE"
        rows = await self._database.fetch(
            f"{_READ_LINE} WHERE {where} ORDER BY seq DESC LIMIT ?",
            [*(value for _, values in conditions for value in values), limit],
        )
        return [decode(*row) for row in rows]

    async def unfinished(self) -> Sequence[RunRecord]:
        rows = await self._database.fetch(f"{_READ} WHERE ended_at IS NULL ORDER BY seq")
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

    async def _replaced(self, record: RunRecord, at: float, kind: str, data: dict[str, Any]) -> RunRecord | None:
        """Replaces a live record, and adds its events in the same transaction."""
        values = _replacing(record)

        def replaced(connection: sqlite3.Connection) -> tuple[Any, ...] | None:
            before = connection.execute(_STATUS, values[-4:]).fetchone()
            if before is None:
                return None
            row: tuple[Any, ...] = connection.execute(f"{_REPLACE} RETURNING {_WHOLE}", values).fetchone()
            if record.owner is Owner.TASK:
                if before[0] != record.status.value:
                    _add_event(
                        connection, record, at, record.status.value, {} if record.status.live else of_end(record)
                    )
                if record.callback is not None and not record.status.live:
                    connection.execute(_TELL_END, (PENDING, at, parse_url(record.callback).authority, record.run_id))
                if kind:
                    _add_event(connection, record, at, kind, data)
            return row

        row = await self._database.write(replaced)
        if row is None:
            return None
        changed = decode(*row)
        self._tell(changed)
        return changed

    def _tell(self, record: RunRecord) -> None:
        for listener in self._listeners:
            listener(record)

    async def _position(self, principal: str | None, run_id: str, tasks_of: AgentScope | None) -> int:
        row = await self._database.lookup("SELECT seq, principal FROM runs WHERE run_id = ?", (run_id,))
        found = row is not None and principal in (None, row[1])
        if row is not None and tasks_of is not None:
            key = (row[0], _TASK_OF, _agent_key(tasks_of))
            found = await self._database.lookup(_IS_TASK_OF, key) is not None
        if row is None or not found:
            raise InvalidInput("after", "must be the id of an existing run", shown(run_id))
        return int(row[0])


def encode(record: RunRecord) -> str:
    """Returns all fields without columns of their own, as ASCII JSON.

    Half a surrogate pair, which SQLite's text cannot hold, stays an escape.
    """
    values = dict(zip(_FIELDS, _fields_of(record), strict=True))
    work = _work_of(record)
    if work != _DEFAULTS:
        values |= {name: value for name, value, usual in zip(_WORK, work, _DEFAULTS, strict=True) if value != usual}
    return f"{_encode(values)[:-1]},{_alike.text(_alike_of(record))[1:]}"


class _Alike:
    """Encodes values that are mostly those of a record before, whose text it keeps."""

    def __init__(self) -> None:
        self._known: tuple[tuple[tuple[Any, ...], str], ...] = ()

    def text(self, values: tuple[Any, ...]) -> str:
        """Returns the object of the fields ``_ALIKE``."""
        for known, text in self._known:
            if known == values:
                return text
        text = _encode(dict(zip(_ALIKE, values, strict=True)))
        # What was read back is compared, since nobody else changes it.
        copy = json.loads(text)
        self._known = ((tuple(copy[name] for name in _ALIKE), text), *self._known[: _KEPT - 1])
        return text


_KEPT = 4
_alike = _Alike()


def decode(
    text: str,
    gone_ms: float | None,
    revision: int,
    labels: str | None,
    holder: str | None,
    boot: str | None,
    until: float | None,
    network: str | None = None,
    needs: str | None = None,
) -> RunRecord:
    """Fields that a later version added are passed over; missing ones get their defaults."""
    try:
        values = {name: value for name, value in json.loads(text).items() if name in _STORED}
        values["kind"] = RunKind(values["kind"])
        values["status"] = RunStatus(values["status"])
        values["outcome"] = None if values.get("outcome") is None else Outcome(values["outcome"])
        for name in ("output_blobs", "files", "notes"):
            values[name] = tuple(values.get(name, ()))
        if gone_ms is not None:
            values["usage"] = {**values["usage"], "gone_ms": gone_ms}
        for name in values.keys() & _WHOLES.keys():
            values[name] = _WHOLES[name](values[name])
        return RunRecord(
            **values,
            revision=revision,
            labels=_whole(labels) or {},
            lease=None if holder is None else Lease(holder, boot or "", until or 0.0),
            network=_whole(network),
            needs=_whole(needs),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreFault("a run record is damaged; restore the database from a backup") from error


_WHOLES: dict[str, Callable[[Any], Any]] = {
    "owner": Owner,
    "offsets": lambda value: Offsets(FramePlace(**value["channel"]), _log_place(**value["log"])),
    "secrets": lambda values: tuple(SecretRef(**value) for value in values),
    "attempts": tuple,
}


def _log_place(streams: Mapping[str, Any] | None = None, **value: Any) -> LogPlace:
    """Returns a place in a log. Those of earlier versions have no ``streams``."""
    if streams is None:
        return LogPlace(**value)
    pairs = {name: tuple(streams[name]) for name in ("given", "covered")}
    return LogPlace(**value, streams=StreamPlaces(**{**streams, **pairs}))


def conflict() -> IdempotencyConflict:
    return IdempotencyConflict("idempotency_key", "was used before, for another run")


def _insert(connection: sqlite3.Connection, record: RunRecord, values: tuple[object, ...]) -> InvalidInput | None:
    """Returns why the record is refused.

    It does not raise that, since raising would undo others' writes beside it.
    """
    if connection.execute(_INSERT, values).rowcount == 1:
        labels = [*record.labels.items()]
        if record.kind is RunKind.COMMAND and record.owner is Owner.TASK:
            labels.append((_TASK_OF, _agent_key(AgentScope(record.project, record.agent))))
        connection.executemany(_LABEL, [(*label, record.run_id) for label in labels])
        if record.owner is Owner.TASK:
            _add_event(connection, record, record.created_at, record.status.value, {})
        return None
    key = (record.principal, record.idempotency_key)
    taken = None if record.idempotency_key is None else connection.execute(_TAKEN, key).fetchone()
    if taken is None:
        return InvalidInput("run_id", "is taken", shown(record.run_id))
    return None if taken == (record.run_id, record.request_digest) else conflict()


def _agent_key(scope: AgentScope) -> str:
    return f"{scope.project}/{scope.agent}"


def _check_texts(record: RunRecord) -> None:
    for name in ("run_id", "principal", "idempotency_key"):
        check_unicode(name, getattr(record, name) or "")


def _add_event(connection: sqlite3.Connection, record: RunRecord, at: float, kind: str, data: dict[str, Any]) -> None:
    run, last = connection.execute(_LAST_EVENT, (record.run_id,)).fetchone()
    event = next_event(last or 0, at, kind, data)
    if event is not None:
        connection.execute(_ADD_EVENT, (run, event.seq, event.at, event.kind, _encode(event.data)))


def _replacing(record: RunRecord) -> tuple[Any, ...]:
    """Returns the values of ``_REPLACE``; the last four are those of its condition."""
    return (
        record.status.value,
        _ended(record),
        encode(record),
        _apart(record.network),
        _apart(record.needs),
        *_lease(record.lease),
        not _is_live(record),
        record.run_id,
        record.revision,
        record.principal,
        record.idempotency_key,
    )


def _lease(lease: Lease | None) -> tuple[str | None, str | None, float | None]:
    return (None, None, None) if lease is None else (lease.holder, lease.boot, lease.until)


def _sweep(connection: sqlite3.Connection, older_than: float) -> int:
    return connection.execute(_SWEEP, (older_than, SWEEP_BATCH)).rowcount


def _trim(connection: sqlite3.Connection, values: tuple[str, int, int]) -> int:
    return connection.execute(_TRIM, values).rowcount


def _apart(value: dict[str, Any] | None) -> str | None:
    return None if value is None else _encode(value)


def _whole(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _is_live(record: RunRecord) -> bool:
    return record.status is not RunStatus.COMPLETED and record.status is not RunStatus.FAILED


def _ended(record: RunRecord) -> float | None:
    if _is_live(record):
        return None
    return record.created_at if record.ended_at is None else record.ended_at
