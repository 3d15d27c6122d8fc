"""Callbacks in SQLite.

:class:`skillyard.stores.sqlite.records.SqliteRecords` adds each with the end of its task.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from skillyard.domain.work.callback import Callback
from skillyard.stores.sqlite.database import Database

_READ = "SELECT run_id, state, tries, next_at, told, host FROM callbacks"
_DUE = " WHERE next_at IS NOT NULL AND host NOT IN (SELECT value FROM json_each(?)) ORDER BY next_at LIMIT ?"
_NOTE = "UPDATE callbacks SET state = ?, tries = ?, next_at = ?, told = ? WHERE run_id = ?"


class SqliteCallbacks:
    """A :class:`skillyard.ports.records.CallbackStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def pending(self, limit: int, besides: Collection[str] = ()) -> Sequence[Callback]:
        rows = await self._database.fetch(_READ + _DUE, (json.dumps([*besides]), limit))
        return [Callback(*row) for row in rows]

    async def get(self, run_id: str) -> Callback | None:
        row = await self._database.lookup(f"{_READ} WHERE run_id = ?", (run_id,))
        return None if row is None else Callback(*row)

    async def note(self, callback: Callback) -> None:
        told = (callback.state, callback.tries, callback.next_at, callback.told, callback.run_id)
        await self._database.execute(_NOTE, told)
