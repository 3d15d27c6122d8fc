"""Jobs in SQLite: columns to search by, the record as JSON, and the request apart."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.errors import IdempotencyConflict, InvalidInput, StoreFault, shown
from skillyard.domain.principal import AgentScope
from skillyard.domain.work.job import JobRecord, JobState, JobStep, too_many
from skillyard.stores.sqlite.database import Database

_COLUMNS = ("job_id", "project", "agent", "principal", "idempotency_key", "request_digest", "revision", "finished_at")
_FIELDS = tuple(field.name for field in fields(JobRecord) if field.name not in _COLUMNS)
_READ = f"SELECT {', '.join(_COLUMNS)}, record FROM jobs"  # noqa: S608 - fixed texts
_INSERT = f"INSERT INTO jobs ({', '.join(_COLUMNS)}, record, request) VALUES ({', '.join('?' * 10)})"  # noqa: S608
_REPLACE = f"""
    UPDATE jobs SET revision = revision + 1, finished_at = ?1, record = ?2, request = iif(?1 IS NULL, request, NULL)
    WHERE job_id = ?3 AND revision = ?4 AND finished_at IS NULL
    RETURNING {", ".join(_COLUMNS)}, record"""  # noqa: S608 - fixed texts
_HELD = "SELECT count(*) FROM jobs WHERE principal = ? AND finished_at IS NULL"
_OF_KEY = "principal = ? AND idempotency_key = ?"
_CROWDED = "SELECT principal FROM jobs GROUP BY principal HAVING count(*) > ?"
_TRIM = """
    DELETE FROM jobs WHERE seq IN (
        SELECT seq FROM jobs WHERE principal = ?1 AND finished_at IS NOT NULL ORDER BY seq
        LIMIT max(0, (SELECT count(*) FROM jobs WHERE principal = ?1) - ?2))"""

_encode = json.JSONEncoder(separators=(",", ":")).encode


class SqliteJobs:
    """A :class:`skillyard.ports.records.JobStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(self, job: JobRecord, request: str, most: int) -> JobRecord:
        for name in ("job_id", "project", "agent", "principal", "idempotency_key"):
            check_unicode(name, getattr(job, name) or "")
        values = (*(getattr(job, name) for name in _COLUMNS), _record(job), request)

        def inserted(connection: sqlite3.Connection) -> JobRecord | Exception:
            if job.idempotency_key is not None:
                key = (job.principal, job.idempotency_key)
                row = connection.execute(f"{_READ} WHERE {_OF_KEY}", key).fetchone()
                if row is not None:
                    return _of_key(_decoded(row), job)
            if connection.execute(_HELD, (job.principal,)).fetchone()[0] >= most:
                return too_many(most)
            connection.execute(_INSERT, values)
            return job

        stored = await self._database.write(inserted)
        if isinstance(stored, Exception):
            raise stored
        return stored

    async def change(self, job: JobRecord) -> JobRecord | None:
        values = (job.finished_at, _record(job), job.job_id, job.revision)

        def replaced(connection: sqlite3.Connection) -> tuple[Any, ...] | None:
            row: tuple[Any, ...] | None = connection.execute(_REPLACE, values).fetchone()
            return row

        row = await self._database.write(replaced)
        return None if row is None else _decoded(row)

    async def get(self, job_id: str) -> JobRecord | None:
        row = await self._database.lookup(f"{_READ} WHERE job_id = ?", (job_id,))
        return None if row is None else _decoded(row)

    async def request(self, job_id: str) -> str | None:
        row = await self._database.lookup("SELECT request FROM jobs WHERE job_id = ?", (job_id,))
        return None if row is None else row[0]

    async def live(self) -> Sequence[JobRecord]:
        return [_decoded(row) for row in await self._database.fetch(f"{_READ} WHERE finished_at IS NULL ORDER BY seq")]

    async def list(self, scope: AgentScope, *, limit: int = 50, after: str | None = None) -> Sequence[JobRecord]:
        check_page(limit)
        before = None
        if after is not None:
            of = (after, scope.project, scope.agent)
            row = await self._database.lookup("SELECT seq FROM jobs WHERE job_id = ? AND project = ? AND agent = ?", of)
            if row is None:
                raise InvalidInput("after", "must be the id of an existing job", shown(after))
            before = row[0]
        where = "project = ?1 AND agent = ?2 AND (?3 IS NULL OR seq < ?3)"
        values = (scope.project, scope.agent, before, limit)
        rows = await self._database.fetch(f"{_READ} WHERE {where} ORDER BY seq DESC LIMIT ?4", values)
        return [_decoded(row) for row in rows]

    async def sweep(self, older_than: float) -> int:
        return await self._database.execute("DELETE FROM jobs WHERE finished_at < ?", (older_than,))

    async def trim(self, most: int) -> int:
        crowded = await self._database.fetch(_CROWDED, (most,))
        return sum([await self._database.execute(_TRIM, (principal, most)) for (principal,) in crowded])


def _of_key(held: JobRecord, job: JobRecord) -> JobRecord | Exception:
    if held.request_digest == job.request_digest:
        return held
    return IdempotencyConflict("idempotency_key", "was used before, for another job")


def _record(job: JobRecord) -> str:
    values = {name: getattr(job, name) for name in _FIELDS}
    return _encode({**values, "steps": [asdict(step) for step in job.steps]})


def _decoded(row: Sequence[Any]) -> JobRecord:
    """Fields that a later version added are passed over; missing ones get their defaults."""
    *columns, text = row
    try:
        values = {name: value for name, value in json.loads(text).items() if name in _FIELDS}
        values["state"] = JobState(values["state"])
        values["steps"] = tuple(JobStep(**step) for step in values["steps"])
        return JobRecord(**dict(zip(_COLUMNS, columns, strict=True)), **values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreFault("the record of a job is damaged; restore the database from a backup") from error
