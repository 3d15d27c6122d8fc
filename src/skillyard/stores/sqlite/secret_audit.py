"""The audit of secrets in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, fields

from skillyard.domain.checks import check_page
from skillyard.domain.secret import SecretAct, SecretEvent
from skillyard.stores.sqlite.database import Database

SWEEP_BATCH = 500

_COLUMNS = ", ".join(field.name for field in fields(SecretEvent))
_INSERT = f"INSERT INTO secret_audit ({_COLUMNS}) VALUES ({', '.join('?' for _ in fields(SecretEvent))})"  # noqa: S608
_SWEEP = "DELETE FROM secret_audit WHERE seq IN (SELECT seq FROM secret_audit WHERE at < ? LIMIT ?)"


class SqliteSecretAudit:
    """A :class:`skillyard.ports.secrets.SecretAudit`. The database refuses to change what stands in it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, events: Sequence[SecretEvent]) -> None:
        rows = [astuple(event) for event in events]
        await self._database.write(lambda connection: connection.executemany(_INSERT, rows).rowcount)

    async def list(
        self, *, limit: int = 100, before: int | None = None, name: str | None = None
    ) -> Sequence[tuple[int, SecretEvent]]:
        check_page(limit)
        conditions: list[tuple[str, object]] = []
        if before is not None:
            conditions.append(("seq < ?", before))
        if name is not None:
            conditions.append(("name = ?", name))
        where = " AND ".join(condition for condition, _ in conditions) or "TRUE"
        rows = await self._database.fetch(
            f"SELECT seq, {_COLUMNS} FROM secret_audit WHERE {where} ORDER BY seq DESC LIMIT ?",  # noqa: S608 - fixed
            [*(value for _, value in conditions), limit],
        )
        return [(int(row[0]), _event(row[1:])) for row in rows]

    async def used_at(self) -> dict[tuple[str, str], float]:
        rows = await self._database.fetch("SELECT name, scope, at FROM secret_uses")
        return {(row[0], row[1]): float(row[2]) for row in rows}

    async def sweep(self, older_than: float) -> int:
        swept = 0
        while True:
            count = await self._database.submit(lambda connection: _sweep(connection, older_than), alone=True)
            swept += count
            if count < SWEEP_BATCH:
                return swept


def _event(row: Sequence[object]) -> SecretEvent:
    values = {field.name: value for field, value in zip(fields(SecretEvent), row, strict=True)}
    return SecretEvent(**{**values, "act": SecretAct(values["act"])})  # type: ignore[arg-type]


def _sweep(connection: sqlite3.Connection, older_than: float) -> int:
    return connection.execute(_SWEEP, (older_than, SWEEP_BATCH)).rowcount
