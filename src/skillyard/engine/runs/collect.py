"""What a run brings out: blobs while it works, then its result, then its log. All of it is hostile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from mimetypes import MimeTypes
from typing import Any

from skillyard.domain.errors import SkillyardError
from skillyard.domain.work.outcome import Outcome
from skillyard.engine.runs.failure import Failure
from skillyard.engine.runs.preview import Preview
from skillyard.engine.secrets.redact import Redaction
from skillyard.engine.tasks import Tasks
from skillyard.ports.blobs import BlobInfo, BlobStore

INLINE = 256 * 1024
_AHEAD = 4


class Broken(Exception):
    """The run broke a rule of the channel, or what it made cannot be stored: it is ended."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class BlobTarget:
    """Where a run's blobs go. ``prefix`` was made for this run, so no other run's id can be meant."""

    store: BlobStore
    tasks: Tasks
    owner: str
    run_id: str
    prefix: str
    ttl_s: float | None

    async def create(self, blob_id: str | None, kind: str, data: bytes | AsyncIterator[bytes]) -> BlobInfo:
        return await self.store.create(
            self.owner,
            kind,
            data,
            blob_id=blob_id,
            run_id=self.run_id,
            ttl_s=self.ttl_s,
        )


@dataclass(slots=True)
class _Open:
    """A blob that is being written: small ones wait in memory, large ones flow into the store; ``stored`` ones
    are there already."""

    kind: str
    path: str = ""
    stored: bool = False
    buffer: bytearray = field(default_factory=bytearray)
    stream: _Stream | None = None


class _Stream:
    """A blob on its way into the store, at most a few pieces ahead of it."""

    def __init__(self, target: BlobTarget, blob_id: str, kind: str) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)
        self.failed = False
        self._task = target.tasks.spawn(self._store(target, blob_id, kind), f"blob {blob_id}")

    async def put(self, data: bytes) -> None:
        await self._queue.put(data)

    async def finish(self) -> BlobInfo:
        try:
            await self._queue.put(None)
            return await self._task
        except BaseException:
            self._task.cancel()  # nobody else knows it any more
            raise

    async def abort(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _store(self, target: BlobTarget, blob_id: str, kind: str) -> BlobInfo:
        try:
            return await target.create(blob_id, kind, self._pieces())
        except SkillyardError:
            self.failed = True
            while await self._queue.get() is not None:  # so that no writer waits for ever
                pass
            raise

    async def _pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._queue.get()) is not None:
            yield piece


class BlobSink:
    """The blobs of one run, by the number that the guest gave them. What is called when is the business of
    the frame reader: it lets at most so many be open, and each takes at most ``INLINE`` bytes of memory."""

    def __init__(self, target: BlobTarget) -> None:
        self._target = target
        self._open: dict[int, _Open] = {}
        self._replayed = False
        self._stored: set[str] = set()
        self.ids: list[str] = []
        self.files: list[dict[str, Any]] = []

    async def replay(self) -> None:
        """Forget what was interrupted: the channel will be given again from its start."""
        await self.abort()
        self._replayed = True
        self._stored |= set(self.ids)
        self.ids.clear()
        self.files.clear()

    def begin(self, n: int, kind: str, path: str = "") -> None:
        kind = mime_of(path) if path else kind
        self._open[n] = _Open(kind, path, stored=self._id(n) in self._stored)

    async def piece(self, n: int, data: bytes) -> None:
        blob = self._open[n]
        if blob.stored:
            return
        if blob.stream is not None:
            if blob.stream.failed:
                await self._finish(n, self._open.pop(n))
                return
            await blob.stream.put(data)
            return
        blob.buffer += data
        if len(blob.buffer) > INLINE:
            blob.stream = _Stream(self._target, self._id(n), blob.kind)
            await blob.stream.put(bytes(blob.buffer))
            blob.buffer = bytearray()

    async def end(self, n: int, size: int) -> None:
        blob = self._open.pop(n)
        await self._finish(n, blob)
        self.ids.append(self._id(n))
        if blob.path:
            self.files.append({"path": blob.path, "blob_id": self._id(n), "size": size, "mime": blob.kind})

    async def _finish(self, n: int, blob: _Open) -> None:
        try:
            if blob.stored or (self._replayed and await self._exists(n)):
                await self._drop(blob)
            elif blob.stream is not None:
                await blob.stream.finish()
            else:
                await self._target.create(self._id(n), blob.kind, bytes(blob.buffer))
        except SkillyardError as error:
            raise Broken(_not_stored(error)) from error

    async def abandon(self, n: int) -> None:
        """The guest gave this blob up."""
        await self._drop(self._open.pop(n))

    async def abort(self) -> None:
        """Drop what was not complete when the run ended."""
        for blob in self._open.values():
            await self._drop(blob)
        self._open.clear()

    async def _drop(self, blob: _Open) -> None:
        if blob.stream is not None:
            await blob.stream.abort()

    async def _exists(self, n: int) -> bool:
        """Whether the creation that was interrupted had happened."""
        return await self._target.store.stat(self._id(n)) is not None

    def _id(self, n: int) -> str:
        return f"{self._target.prefix}{n}"


def _not_stored(error: SkillyardError) -> Failure:
    return Failure("PolicyRefused", f"a blob could not be stored: {error.message}", Outcome.DISK)


_KINDS = MimeTypes(filenames=())


def mime_of(path: str) -> str:
    """Returns the MIME type by the name's end alone, the same on every host."""
    kind, encoding = _KINDS.guess_type(f"/{path}")
    return kind if kind and not encoding else "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Log:
    """``blob`` is the whole log, None when it is empty or could not be kept (``problem`` says why)."""

    preview: str = ""
    blob: str | None = None
    problem: str = ""


NO_LOG = Log()


async def keep_log(source: AsyncIterator[bytes], redaction: Redaction, target: BlobTarget) -> Log:
    """Store a log, redacted, and give its preview. Small logs go in one piece."""
    preview = Preview()
    pieces = _tapped(source, redaction, preview)
    start = bytearray()
    async for piece in pieces:
        start += piece
        if len(start) > INLINE:
            break
    if not start:
        return NO_LOG
    data = bytes(start) if len(start) <= INLINE else _joined(bytes(start), pieces)
    try:
        info = await target.create(None, "text/plain", data)
    except SkillyardError as error:
        async for _ in pieces:  # the preview is still wanted
            pass
        return Log(preview.text(), None, f"the full log was not kept: {error.message}")
    return Log(preview.text(), info.blob_id)


async def _tapped(source: AsyncIterator[bytes], redaction: Redaction, preview: Preview) -> AsyncIterator[bytes]:
    if not redaction:
        async for data in source:
            preview.feed(data)
            yield data
        return
    redactor = redaction.stream()
    async for data in source:
        piece = redactor.feed(data)
        preview.feed(piece)
        yield piece
    rest = redactor.flush()
    preview.feed(rest)
    yield rest


async def _joined(start: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for piece in rest:
        yield piece
