"""A blob on its way in: in memory while it is small, in a staged file beyond that."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from skillyard.domain.blob import BlobLimits
from skillyard.domain.errors import QuotaExceeded, StoreFault
from skillyard.stores.files.blob_files import BlobFiles, StagedFile
from skillyard.values import dataclass

T = TypeVar("T")

CHUNK = 1024 * 1024
"""Bytes that one hop to a thread carries, and all that a streamed blob holds in memory."""
INLINE = 4096
"""Blobs up to this size live in their row."""


@dataclass(frozen=True, slots=True)
class Content:
    """A content that came in: ``inline`` bytes, or a sealed ``staged`` file."""

    size: int
    sha256: str
    inline: bytes | None = None
    staged: StagedFile | None = None


@dataclass(slots=True)
class Gauge:
    """Counts a blob's bytes as they come and stops it at the first that is too many.

    ``arriving`` is shared: the bytes of all unfinished blobs of an owner count against the quota too, so that many at
    once cannot fill the disk. ``stored`` is the number and size of the owner's blobs; ``relieve`` removes expired ones
    and counts again.
    """

    limits: BlobLimits
    owner: str
    max_bytes: int | None
    arriving: Counter[str]
    stored: tuple[int, int]
    relieve: Callable[[str], Awaitable[tuple[int, int]]] | None
    size: int = 0

    async def add(self, size: int) -> None:
        """Raises QuotaExceeded."""
        self.limits.check_size(self.size + size, self.max_bytes)
        try:
            self._check_owner(size)
        except QuotaExceeded:
            if self.relieve is None:
                raise
            self.stored, self.relieve = await self.relieve(self.owner), None
            self._check_owner(size)
        self.size += size
        self.arriving[self.owner] += size

    def release(self) -> None:
        """Gives back the bytes of a blob that is stored or given up."""
        self.arriving[self.owner] -= self.size
        if not self.arriving[self.owner]:
            del self.arriving[self.owner]

    def _check_owner(self, size: int) -> None:
        count, stored = self.stored
        self.limits.check_owner(count, stored + self.arriving[self.owner], size)


class Intake:
    """Takes one blob's bytes. Its maker must call :meth:`close`, also after an error."""

    def __init__(self, files: BlobFiles, gauge: Gauge) -> None:
        self._files = files
        self._gauge = gauge
        self._buffer: bytes | bytearray = b""
        self._hopping = False
        self._lock = threading.Lock()
        self._staged: StagedFile | None = None
        self._dropped = False

    async def receive(self, data: bytes | AsyncIterator[bytes]) -> Content:
        """Returns the whole content of ``data``. Raises QuotaExceeded and StoreFault."""
        if isinstance(data, bytes):
            await self._gauge.add(len(data))
            self._buffer = data
        else:
            await self._gauge.add(0)
            async for piece in data:
                await self._take(piece)
        if self._staged is None and len(self._buffer) <= INLINE:
            inline = bytes(self._buffer)
            return Content(len(inline), hashlib.sha256(inline).hexdigest(), inline=inline)
        return await self._hop(self._finish)

    async def close(self) -> None:
        """Drops a content that was not published, even if this is cancelled."""
        self._gauge.release()
        if self._hopping or self._gauge.size > CHUNK:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._drop))
        else:
            self._drop()

    async def _take(self, piece: bytes) -> None:
        await self._gauge.add(len(piece))
        if not self._buffer:
            self._buffer = piece if len(piece) >= CHUNK else bytearray(piece)
        else:
            self._buffer += piece
        if len(self._buffer) >= CHUNK:
            await self._hop(self._write)

    async def _hop(self, work: Callable[[bytes | bytearray], T]) -> T:
        """Has a thread take the bytes in memory. The thread goes on when this is cancelled: hence the lock."""
        self._hopping = True
        buffer, self._buffer = self._buffer, b""
        result = await asyncio.to_thread(work, buffer)
        self._hopping = False
        return result

    def _write(self, buffer: bytes | bytearray) -> None:
        with self._lock:
            self._staged_file().write(buffer)

    def _finish(self, buffer: bytes | bytearray) -> Content:
        with self._lock:
            staged = self._staged_file()
            staged.write(buffer)
            return Content(staged.size, self._files.seal(staged), staged=staged)

    def _staged_file(self) -> StagedFile:
        if self._dropped:
            raise StoreFault("the blob was given up")
        if self._staged is None:
            self._staged = self._files.stage()
        return self._staged

    def _drop(self) -> None:
        with self._lock:
            self._dropped = True
            if self._staged is not None:
                self._staged.discard()
