"""Approvals in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, fields

from skillyard.domain.checks import check_page, check_unicode
from skillyard.domain.skill.trust import Approval, ApprovedPackages
from skillyard.stores.sqlite.database import Database

_COLUMNS = ", ".join(field.name for field in fields(Approval))
_PUT = f"INSERT OR REPLACE INTO approvals ({_COLUMNS}) VALUES ({', '.join('?' for _ in fields(Approval))})"  # noqa: S608
_REVOKE = "DELETE FROM approvals WHERE name = ?1 AND (?2 IS NULL OR version = ?2)"
_FORGET = (
    "DELETE FROM approval_locks WHERE name = ?1 AND (?2 IS NULL OR version = ?2)",
    "DELETE FROM approval_packages WHERE name = ?1 AND (?2 IS NULL OR version = ?2)",
)
_FORGET_OWN = (
    "DELETE FROM approval_locks WHERE name = ? AND version = ? AND digest = ?",
    "DELETE FROM approval_packages WHERE name = ? AND version = ? AND digest = ?",
)
_BIND = """
    INSERT OR IGNORE INTO approval_locks (name, version, digest, wanted, lock)
    SELECT name, version, digest, ?4, ?5 FROM approvals WHERE name = ?1 AND version = ?2 AND digest = ?3
"""
_BOUND = "SELECT lock FROM approval_locks WHERE name = ? AND version = ? AND digest = ? AND wanted = ?"
_LOCKS = "SELECT DISTINCT lock FROM approval_locks WHERE name = ? AND version = ? AND digest = ? ORDER BY lock"
_BIND_PACKAGES = """
    INSERT OR IGNORE INTO approval_packages (name, version, digest, wanted, lock)
    SELECT name, version, digest, ?4, ?5 FROM approvals WHERE name = ?1 AND version = ?2 AND digest = ?3
"""
_PACKAGES = "SELECT wanted, lock FROM approval_packages WHERE name = ? AND version = ? AND digest = ?"
_FIND = f"SELECT {_COLUMNS} FROM approvals WHERE name = ? AND version = ? AND digest = ?"  # noqa: S608


class SqliteApprovals:
    """A :class:`skillyard.ports.approvals.ApprovalStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def approve(self, approval: Approval) -> None:
        check_unicode("note", approval.note)
        values = astuple(approval)

        def put(connection: sqlite3.Connection) -> None:
            connection.execute(_PUT, values)
            for forget in _FORGET_OWN:
                connection.execute(forget, values[:3])

        await self._database.write(put)

    async def revoke(self, name: str, version: str | None = None) -> int:
        check_unicode("name", name)

        def forget(connection: sqlite3.Connection) -> int:
            for statement in _FORGET:
                connection.execute(statement, (name, version))
            return connection.execute(_REVOKE, (name, version)).rowcount

        return await self._database.write(forget)

    async def find(self, name: str, version: str, digest: str) -> Approval | None:
        row = await self._database.lookup(_FIND, (name, version, digest))
        return None if row is None else Approval(*row)

    async def bind(self, name: str, version: str, digest: str, wanted: str, lock: str) -> str | None:
        key = (name, version, digest, wanted)
        row = await self._database.lookup(_BOUND, key)
        if row is None:
            await self._database.write(lambda connection: connection.execute(_BIND, (*key, lock)).rowcount)
            row = await self._database.lookup(_BOUND, key)
        return None if row is None else str(row[0])

    async def locks(self, name: str, version: str, digest: str) -> Sequence[str]:
        return [str(row[0]) for row in await self._database.fetch(_LOCKS, [name, version, digest])]

    async def packages(self, name: str, version: str, digest: str) -> ApprovedPackages | None:
        row = await self._database.lookup(_PACKAGES, (name, version, digest))
        return None if row is None else ApprovedPackages(*row)

    async def bind_packages(
        self, name: str, version: str, digest: str, packages: ApprovedPackages
    ) -> ApprovedPackages | None:
        values = (name, version, digest, packages.wanted, packages.lock)
        await self._database.write(lambda connection: connection.execute(_BIND_PACKAGES, values).rowcount)
        return await self.packages(name, version, digest)

    async def page(
        self, *, limit: int = 100, after: tuple[str, str, str] | None = None, name: str | None = None
    ) -> Sequence[Approval]:
        check_page(limit)
        conditions: list[tuple[str, tuple[object, ...]]] = []
        if after is not None:
            conditions.append(("(name, version, digest) > (?, ?, ?)", after))
        if name is not None:
            conditions.append(("name = ?", (name,)))
        where = " AND ".join(condition for condition, _ in conditions) or "TRUE"
        rows = await self._database.fetch(
            f"SELECT {_COLUMNS} FROM approvals WHERE {where} ORDER BY name, version, digest LIMIT ?",  # noqa: S608 - fixed
            [*(value for _, values in conditions for value in values), limit],
        )
        return [Approval(*row) for row in rows]
