"""Definitions of MCP servers' tools in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from skillyard.domain.tool import Tool, ToolRow, tool_of_text
from skillyard.stores.sqlite.database import Database

_FORGET = """
    DELETE FROM tools WHERE server = ?1 AND approved IS NULL
    AND (?2 OR EXISTS (SELECT 1 FROM tools WHERE server = ?1 AND approved IS NOT NULL))
"""
_GONE = "UPDATE tools SET seen = NULL WHERE server = ? AND approved IS NOT NULL"
_SEEN = """
    INSERT INTO tools (server, name, seen, seen_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (server, name) DO UPDATE SET seen = excluded.seen, seen_at = excluded.seen_at
"""
_APPROVE = "UPDATE tools SET approved = seen, approved_at = ?, approved_by = ? WHERE server = ? AND name = ?"
_LATEST = "SELECT seen FROM tools WHERE server = ? AND name = ? AND seen IS NOT NULL"
_REVOKE = """
    UPDATE tools SET seen = COALESCE(seen, approved), approved = NULL, approved_at = NULL, approved_by = ''
    WHERE server = ? AND name = ? AND approved IS NOT NULL
"""
_ROWS = """
    SELECT server, name, seen, approved, seen_at, approved_at, approved_by FROM tools
    WHERE ?1 IS NULL OR server = ?1 ORDER BY server, name
"""


class SqliteTools:
    """A :class:`skillyard.ports.tools.ToolStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, server: str, tools: Sequence[Tool], at: float) -> None:
        def put(connection: sqlite3.Connection) -> None:
            connection.execute(_FORGET, (server, bool(tools)))
            connection.execute(_GONE, (server,))
            for tool in tools:
                connection.execute(_SEEN, (server, tool.name, tool.text, at))

        await self._database.write(put)

    async def approve(self, server: str, name: str, digest: str, by: str, at: float) -> bool:
        def put(connection: sqlite3.Connection) -> bool:
            row = connection.execute(_LATEST, (server, name)).fetchone()
            if row is None or tool_of_text(row[0]).digest != digest:
                return False
            connection.execute(_APPROVE, (at, by, server, name))
            return True

        return await self._database.write(put)

    async def revoke(self, server: str, name: str) -> bool:
        def forget(connection: sqlite3.Connection) -> bool:
            return connection.execute(_REVOKE, (server, name)).rowcount > 0

        return await self._database.write(forget)

    async def rows(self, server: str | None = None) -> Sequence[ToolRow]:
        return [
            ToolRow(name_of, name, _tool(seen), _tool(approved), *rest)
            for name_of, name, seen, approved, *rest in await self._database.fetch(_ROWS, [server])
        ]


def _tool(text: str | None) -> Tool | None:
    return None if text is None else tool_of_text(text)
