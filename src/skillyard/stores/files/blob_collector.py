"""Takes away contents that no row names any more, and what a crash left."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skillyard.stores.files.blob_files import BlobFiles
from skillyard.stores.sqlite import blob_rows as rows
from skillyard.stores.sqlite.database import Database

logger = logging.getLogger(__name__)

BATCH = 200


class Collector:
    """Works beside creators and deleters, in this process and in others: it decides under the write lock,
    alone in its transaction, so that no removal it relies on can still be undone."""

    def __init__(self, database: Database, files: BlobFiles) -> None:
        self._database = database
        self._files = files

    async def collect(self, digests: Sequence[str]) -> int:
        """Remove those of these contents that have a file and no row; how many."""
        present = [digest for digest in digests if self._files.path(digest).exists()]
        if not present:
            return 0
        trashed = await self.submit(present)
        await asyncio.to_thread(self._files.remove, trashed)
        return len(trashed)

    def submit(self, digests: Sequence[str]) -> asyncio.Future[list[Path]]:
        """Take the unused ones' names away; it happens even if nobody awaits it."""

        def take(connection: sqlite3.Connection) -> list[Path]:
            taken = [self._files.trash(digest) for digest in rows.unused(connection, digests)]
            return [path for path in taken if path is not None]

        return self._database.submit(take, alone=True)

    def drop(self, digests: Sequence[str]) -> asyncio.Future[None]:
        """What :meth:`collect` does, to the end even if nobody awaits it; it never raises, since a sweep
        comes to what it could not do."""
        loop = asyncio.get_running_loop()
        dropped: asyncio.Future[None] = loop.create_future()

        def finish(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and (error := done.exception()):
                logger.warning("a blob that was given up waits for a sweep: %s", error)
            if not dropped.done():
                dropped.set_result(None)

        def remove(taken: asyncio.Future[list[Path]]) -> None:
            if taken.cancelled() or taken.exception():
                finish(taken)
            else:
                loop.run_in_executor(None, self._files.remove, taken.result()).add_done_callback(finish)

        self.submit(digests).add_done_callback(remove)
        return dropped

    async def purge(self, now: float, owner: str | None = None) -> int:
        """Remove expired blobs, one owner's or everybody's; how many."""
        purged = 0
        while True:
            digests = await self._database.submit(
                lambda connection: rows.delete_expired(connection, now, owner, BATCH), alone=True
            )
            await self.collect(digests)
            purged += len(digests)
            if len(digests) < BATCH:
                return purged

    async def tidy(self) -> int:
        """Remove files that a crash left: half-written ones, and contents without a row."""
        removed = await asyncio.to_thread(self._files.clean)
        for prefix in await asyncio.to_thread(self._files.prefixes):
            there = await asyncio.to_thread(self._files.digests, prefix)
            named = {row[0] for row in await self._database.fetch(rows.KEYS, (prefix, prefix + "g"))}
            strays = [digest for digest in there if digest not in named]
            for start in range(0, len(strays), BATCH):
                removed += await self.collect(strays[start : start + BATCH])
        return removed
