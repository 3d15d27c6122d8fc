"""Blobs on the local disk: rows in the database, contents in their rows or in files.

Rows and files stay in step when the process is stopped and when others work on the same directory: a file gets its
final name under the database's write lock, in the transaction that stores the first row naming it; it loses that name
under the write lock too, after the last such row is gone for good. So a row's content is always there, and a crash can
leave only a file that no row names: :meth:`sweep` removes it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from skillyard.domain.blob import BlobLimits, expiry
from skillyard.domain.checks import check_blob_id, check_media_type, check_page, check_range, is_blob_id
from skillyard.domain.errors import BlobNotFound, InvalidInput, StoreFault, shown
from skillyard.ports.blobs import BlobInfo
from skillyard.ports.clock import Clock, Ids
from skillyard.stores.files.blob_files import BlobFiles, disk_fault
from skillyard.stores.files.blob_intake import INLINE, Content, Gauge, Intake
from skillyard.stores.sqlite import blob_rows as rows
from skillyard.stores.sqlite.database import Database
from skillyard.values import dataclass

DEFAULT_LIMITS = BlobLimits()
_PIECE = 256 * 1024
"""Bytes that are read at once: a thousand readers who stop reading each hold one."""

BATCH = 200
"""Rows and files that a sweep takes at once."""

logger = logging.getLogger(__name__)


class LocalBlobs:
    """A :class:`skillyard.ports.blobs.BlobStore`."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        clock: Clock,
        ids: Ids,
        *,
        limits: BlobLimits = DEFAULT_LIMITS,
        sync: bool = False,
    ) -> None:
        """``sync`` puts each file on the disk before its row is stored.

        Together with a durable database a blob then survives the loss of power. Without, it survives the death of the
        process."""
        self._database = database
        self._files = BlobFiles(directory, sync=sync)
        self._collector = Collector(database, self._files)
        self._clock = clock
        self._ids = ids
        self._limits = limits
        self._arriving: Counter[str] = Counter()

    async def prepare(self) -> None:
        """Makes the directories (0700). Raises StoreFault."""
        await asyncio.to_thread(self._files.prepare)

    async def create(
        self,
        owner: str,
        kind: str,
        data: bytes | AsyncIterator[bytes],
        *,
        blob_id: str | None = None,
        run_id: str | None = None,
        ttl_s: float | None = None,
        max_bytes: int | None = None,
    ) -> BlobInfo:
        check_media_type("kind", kind)
        blob_id = self._ids.blob() if blob_id is None else check_blob_id("blob_id", blob_id)
        now = self._clock.now()
        expires_at = expiry(now, ttl_s)
        stored = await self._count(owner)
        gauge = Gauge(self._limits, owner, max_bytes, self._arriving, stored, self._relieve)
        intake = Intake(self._files, gauge)
        try:
            content = await intake.receive(data)
        except BaseException:
            await intake.close()
            raise
        info = BlobInfo(blob_id, kind, content.size, content.sha256, owner, now, expires_at, run_id)
        await self._publish(Publication(info, content, self._limits, self._files), intake)
        return info

    async def stat(self, blob_id: str) -> BlobInfo | None:
        row = await self._database.lookup(rows.STAT, (blob_id,))
        info = rows.info_of(row) if row else None
        return info if info and not self._expired(info.expires_at) else None

    async def read(self, blob_id: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yields pieces of at most 256 KiB. Raises InvalidInput for a negative offset or length, and StoreFault when
        the content is damaged."""
        check_range(offset, length)
        info = await self._live(blob_id)
        end = info.size if length is None else min(info.size, offset + length)
        if offset >= end:
            return
        content = await self._inline(info)
        if content is not None:
            yield content[offset:end]
            return
        file = await self._open(info)
        try:
            while offset < end:
                piece = await asyncio.to_thread(_piece, file, offset, min(_PIECE, end - offset))
                offset += len(piece)
                yield piece
        finally:
            file.close()

    async def path(self, blob_id: str) -> Path:
        """As the port says. Raises StoreFault when the content is damaged."""
        info = await self._live(blob_id)
        key = await self._key(info)
        if not self._files.holds(key, info.size):
            await self._materialise(info, key)
        return self._files.path(key)

    async def delete(self, blob_id: str) -> bool:
        if not is_blob_id(blob_id):
            return False
        gone = await self._database.write(lambda connection: rows.delete(connection, blob_id))
        if gone is None:
            return False
        key, expires_at = gone
        await self._collector.collect([key])
        return not self._expired(expires_at)

    async def list(self, owner: str | None, *, limit: int = 100, after: str | None = None) -> Sequence[BlobInfo]:
        """As the port says. Raises InvalidInput for a limit outside 1 to 1000, and for an ``after`` that names
        no blob of this owner."""
        check_page(limit)
        position = None if after is None else await self._position(owner, after)
        query, values = rows.page(owner, position, self._clock.now(), limit)
        return [rows.info_of(row) for row in await self._database.fetch(query, values)]

    async def sweep(self) -> int:
        return await self._collector.purge(self._clock.now()) + await self._collector.tidy()

    async def trim(self, made_bytes: int, before: float, besides: Collection[str] = ()) -> int:
        owners = await self._database.submit(lambda connection: rows.owners_above(connection, made_bytes))
        removed = 0
        for owner in owners:
            delete = partial(
                rows.delete_oldest, owner=owner, most=made_bytes, before=before, besides=besides, limit=BATCH
            )
            removed += await self._collector.discard(delete)
        return removed

    async def _relieve(self, owner: str) -> tuple[int, int]:
        """Removes an owner's expired blobs; returns how many blobs and bytes the owner stores then."""
        now = self._clock.now()
        if await self._database.lookup(rows.ANY_EXPIRED, (now, owner)):
            await self._collector.purge(now, owner)
        return await self._count(owner)

    async def _count(self, owner: str) -> tuple[int, int]:
        count, size = await self._database.lookup(rows.STORED, (owner,)) or (0, 0)
        return count, size

    async def _publish(self, publication: Publication, intake: Intake) -> None:
        try:
            try:
                refusal = await self._store(publication)
            finally:
                await intake.close()
        except BaseException:
            with suppress(StoreFault):  # closed meanwhile
                await self._undo(publication)
            raise
        if refusal is not None:
            raise refusal

    async def _store(self, publication: Publication) -> InvalidInput | None:
        if publication.content.staged is None:
            return await self._database.write(publication.store)
        return await self._database.submit(publication.store, alone=True)

    async def _undo(self, publication: Publication) -> None:
        """Leaves nothing, whether or not the step took place, even if this is cancelled."""
        undone = self._database.submit(publication.undo)
        undone.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([undone, self._collector.drop([publication.key])])

    async def _live(self, blob_id: str) -> BlobInfo:
        info = await self.stat(blob_id)
        if info is None:
            raise not_found(blob_id)
        return info

    async def _inline(self, info: BlobInfo) -> bytes | None:
        """Returns the content when it is in its row."""
        if info.size > INLINE:
            return None
        row = await self._database.lookup(rows.CONTENT, (info.blob_id,))
        if row is None:
            raise not_found(info.blob_id)
        content: bytes | None = row[0]
        return content

    async def _open(self, info: BlobInfo) -> FileIO:
        try:
            file = FileIO(self._files.path(await self._key(info)))
        except OSError as error:
            await self._live(info.blob_id)  # raises when it was deleted meanwhile
            raise damaged(info) from error
        if os.fstat(file.fileno()).st_size != info.size:
            file.close()
            raise damaged(info)
        return file

    async def _key(self, info: BlobInfo) -> str:
        row = await self._database.lookup(rows.KEY, (info.blob_id,))
        if row is None:
            raise not_found(info.blob_id)
        return str(row[0])

    async def _materialise(self, info: BlobInfo, key: str) -> None:
        """Gives an inline content a file; it goes when the owner's last blob with that content goes."""
        content = await self._inline(info)
        if content is None:
            raise damaged(info)
        if not await self._database.submit(lambda connection: self._put(connection, info, key, content), alone=True):
            raise not_found(info.blob_id)

    def _put(self, connection: sqlite3.Connection, info: BlobInfo, key: str, content: bytes) -> bool:
        if not connection.execute(rows.STAT, (info.blob_id,)).fetchall():
            return False
        self._files.put(content, key)
        return True

    async def _position(self, owner: str | None, blob_id: str) -> int:
        row = await self._database.lookup(rows.POSITION, (blob_id,))
        if row is None or (owner is not None and row[1] != owner):
            raise InvalidInput("after", "must be the id of an existing blob", shown(blob_id))
        return int(row[0])

    def _expired(self, expires_at: float | None) -> bool:
        return expires_at is not None and expires_at <= self._clock.now()


def not_found(blob_id: str) -> BlobNotFound:
    return BlobNotFound("blob_id", f"no blob '{blob_id[:160]}'", blob_id=blob_id[:160])


def damaged(info: BlobInfo) -> StoreFault:
    return StoreFault(f"the content of {info.blob_id} is missing or damaged; restore the blob directory")


def _piece(file: FileIO, offset: int, size: int) -> bytes:
    try:
        piece = os.pread(file.fileno(), size, offset)
    except OSError as error:
        raise disk_fault(error) from error
    if not piece:
        raise StoreFault("the content of a blob ended early; restore the blob directory")
    return piece


@dataclass(slots=True)
class Publication:
    """The step that stores one blob's row and names its file. With a staged file it is alone in its transaction."""

    info: BlobInfo
    content: Content
    limits: BlobLimits
    files: BlobFiles
    _inserted: bool = field(default=False, init=False)

    @property
    def key(self) -> str:
        """Returns the content's key."""
        return rows.content_key(self.info.owner, self.info.sha256)

    def store(self, connection: sqlite3.Connection) -> InvalidInput | None:
        """Stores the row and names the file. Returns why the blob is refused, if it is."""
        self._inserted = False
        refusal = rows.insert(connection, self.info, self.content.inline, self.limits)
        if refusal is not None:
            return refusal
        if self.content.staged is not None:
            self.files.place(self.content.staged.path, self.key, self.info.size)
        self._inserted = True
        return None

    def undo(self, connection: sqlite3.Connection) -> None:
        """Removes the row if this publication stored it; queued behind :meth:`store`."""
        if self._inserted:
            rows.delete(connection, self.info.blob_id)


class Collector:
    """Removes files that no row names any more.

    It works beside creators and deleters, in this process and in others: it decides under the write lock, alone in its
    transaction, so that no removal it relies on can still be undone."""

    def __init__(self, database: Database, files: BlobFiles) -> None:
        self._database = database
        self._files = files

    async def collect(self, digests: Sequence[str]) -> int:
        """Removes those of these contents that have a file and no row; returns how many."""
        present = [digest for digest in digests if self._files.path(digest).exists()]
        if not present:
            return 0
        trashed = await self.submit(present)
        await asyncio.to_thread(self._files.remove, trashed)
        return len(trashed)

    def submit(self, digests: Sequence[str]) -> asyncio.Future[list[Path]]:
        """Takes the names of unused files away, even if nobody awaits it."""

        def take(connection: sqlite3.Connection) -> list[Path]:
            taken = [self._files.trash(digest) for digest in rows.unused(connection, digests)]
            return [path for path in taken if path is not None]

        return self._database.submit(take, alone=True)

    def drop(self, digests: Sequence[str]) -> asyncio.Future[None]:
        """Collects to the end even if nobody awaits it. It never raises: a sweep does later what failed here."""
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
        """Removes expired blobs, of one owner or of all; returns how many."""
        return await self.discard(lambda connection: rows.delete_expired(connection, now, owner, BATCH))

    async def discard(self, delete: Callable[[sqlite3.Connection], list[str]]) -> int:
        """Removes the blobs whose rows ``delete`` removes, up to BATCH at a time; returns how many."""
        removed = 0
        while True:
            digests = await self._database.submit(delete, alone=True)
            await self.collect(digests)
            removed += len(digests)
            if len(digests) < BATCH:
                return removed

    async def tidy(self) -> int:
        """Removes files that a crash left: half-written ones, and contents without a row."""
        removed = await asyncio.to_thread(self._files.clean)
        for prefix in await asyncio.to_thread(self._files.prefixes):
            there = await asyncio.to_thread(self._files.digests, prefix)
            named = {row[0] for row in await self._database.fetch(rows.KEYS, (prefix, prefix + "g"))}
            strays = [digest for digest in there if digest not in named]
            for start in range(0, len(strays), BATCH):
                removed += await self.collect(strays[start : start + BATCH])
        return removed
