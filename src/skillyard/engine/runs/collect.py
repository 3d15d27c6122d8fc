"""The output of a run while it works: frames on its channel, blobs, files. All is hostile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from mimetypes import MimeTypes
from typing import Any

from skillyard.domain.errors import SkillyardError, StoreFault
from skillyard.domain.sandbox.frames import (
    START,
    BlobAbandon,
    BlobBegin,
    BlobData,
    BlobEnd,
    Frame,
    FrameFault,
    FrameLimits,
    FramePlace,
    FrameReader,
    Notes,
    Result,
    State,
)
from skillyard.domain.sandbox.frames import Failure as Raised
from skillyard.domain.sandbox.spec import Guest, Stream, StreamLimits, collect_request
from skillyard.domain.work.command import Command
from skillyard.domain.work.record import Outcome, RunRecord
from skillyard.engine.runs.failure import Failure, LeftBehind
from skillyard.engine.tasks import Tasks
from skillyard.ports.blobs import BlobInfo, BlobStore
from skillyard.ports.sandbox import Sandbox
from skillyard.values import dataclass

INLINE = 256 * 1024
NOTED_BYTES = 8 * 1024 * 1024
"""Bytes on the channel of a run that outlives its server, after which its record says how far they were taken."""
_AHEAD = 4
LEFT_MS = 5000
"""How long the program may take that sends what another one left."""
_LEFT_LOG = 64 * 1024
_LEFT_BESIDE = 4 * 1024 * 1024


Took = Callable[[Callable[[RunRecord], RunRecord]], Awaitable[None]]
"""Notes output that was taken for good; its argument gives the record that says so."""


class Broken(Exception):
    """The run broke a rule of the channel, or what it made cannot be stored: it is ended."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class BlobTarget:
    """Where a run's blobs go. ``prefix`` was made for this run, so no other run's id can be meant.

    ``stable`` is for a run that outlives its server. Each blob has an id that a later server gives it too. The run is
    left behind while the store fails, since its output waits in the sandbox. ``again`` says that a server before may
    have stored it.
    """

    store: BlobStore
    tasks: Tasks
    owner: str
    run_id: str
    prefix: str
    ttl_s: float | None
    stable: bool = False
    again: bool = False

    def named(self, word: str) -> str | None:
        """Returns the id of a blob of ours beside those that the guest numbers; None for any id."""
        return f"{self.prefix}{word}" if self.stable else None

    async def stored(self, blob_id: str | None) -> BlobInfo | None:
        """Returns the blob that an earlier server stored under ``blob_id``, if it did."""
        return await self.exists(blob_id) if self.again and blob_id is not None else None

    async def exists(self, blob_id: str) -> BlobInfo | None:
        with self._kept():
            return await self.store.stat(blob_id)

    async def create(self, blob_id: str | None, kind: str, data: bytes | AsyncIterator[bytes]) -> BlobInfo:
        """Stores a blob. One that was stored before stays, and its ``data`` is not read. Raises LeftBehind."""
        if (before := await self.stored(blob_id)) is not None:
            return before
        with self._kept():
            return await self.store.create(
                self.owner,
                kind,
                data,
                blob_id=blob_id,
                run_id=self.run_id,
                ttl_s=self.ttl_s,
            )

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except StoreFault as error:
            if not self.stable:
                raise
            raise LeftBehind(error.message) from error


@dataclass(slots=True)
class _Open:
    """A blob that is being written.

    A small one waits in memory, a large one flows into the store, a ``stored`` one is there already.
    """

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
        self._all_taken = False
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
        except (SkillyardError, LeftBehind):
            self.failed = True
            async for _ in self._pieces():  # so that no writer waits for ever
                pass
            raise

    async def _pieces(self) -> AsyncIterator[bytes]:
        while not self._all_taken:
            piece = await self._queue.get()
            if piece is None:
                self._all_taken = True
            else:
                yield piece


class BlobSink:
    """The blobs of one run, by the number that the guest gave them.

    The frame reader keeps the order of the calls. It lets few be open at once, each of which takes at most ``INLINE``
    bytes of memory.
    """

    def __init__(self, target: BlobTarget, ids: Iterable[str] = ()) -> None:
        """``ids`` are those of the blobs that an earlier server took."""
        self._target = target
        self.unfinished: dict[int, _Open] = {}
        self._replayed = target.again
        self._stored: set[str] = set()
        self.ids: list[str] = list(ids)
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
        self.unfinished[n] = _Open(kind, path, stored=self._id(n) in self._stored)

    async def piece(self, n: int, data: bytes) -> None:
        blob = self.unfinished[n]
        if blob.stored:
            return
        if blob.stream is not None:
            if blob.stream.failed:
                await self._finish(n, self.unfinished.pop(n))
                return
            await blob.stream.put(data)
            return
        blob.buffer += data
        if len(blob.buffer) > INLINE:
            if self._replayed and await self._exists(n):
                blob.stored, blob.buffer = True, bytearray()
                return
            blob.stream = _Stream(self._target, self._id(n), blob.kind)
            await blob.stream.put(bytes(blob.buffer))
            blob.buffer = bytearray()

    async def end(self, n: int, size: int) -> None:
        blob = self.unfinished.pop(n)
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
        await self._drop(self.unfinished.pop(n))

    async def abort(self) -> None:
        """Drop what was not complete when the run ended."""
        for blob in self.unfinished.values():
            await self._drop(blob)
        self.unfinished.clear()

    async def _drop(self, blob: _Open) -> None:
        if blob.stream is not None:
            await blob.stream.abort()

    async def _exists(self, n: int) -> bool:
        """Returns whether the creation that was interrupted had happened."""
        return await self._target.exists(self._id(n)) is not None

    def _id(self, n: int) -> str:
        return f"{self._target.prefix}{n}"


def _not_stored(error: SkillyardError) -> Failure:
    return Failure("PolicyRefused", f"a blob could not be stored: {error.message}", Outcome.DISK)


_KINDS = MimeTypes(filenames=())


def mime_of(path: str) -> str:
    """Returns the MIME type by the name's end alone, the same on every host."""
    kind, encoding = _KINDS.guess_type(f"/{path}")
    return kind if kind and not encoding else "application/octet-stream"


class Channel:
    """The guest's frames, sorted into blobs and the one that says how the program ended.

    Fed with the bytes of the channel as they come, from ``offset`` on; ``final`` is the last frame once it came."""

    def __init__(self, sink: BlobSink, limits: FrameLimits, place: FramePlace = START) -> None:
        self.sink = sink
        self.offset = self._noted = place.offset
        self.final: Result | Raised | None = None
        self.notes = Notes()
        self._state: State | None = None
        self._limits = limits
        self._reader = FrameReader(limits, place)

    async def note(self, took: Took) -> None:
        """Notes a service's state, and how far the channel was taken when that is worth a write.

        A later reader can go on from there: everything before it is stored.
        """
        if (state := self._state) is not None:
            self._state = None
            told = {"ready": state.ready, "restarts": state.restarts, "exit_code": state.exit_code}
            await took(lambda held: replace(held, service={**(held.service or {}), **told}))
        place = self._reader.place
        if place.offset - self._noted >= NOTED_BYTES:
            self._noted, blobs = place.offset, tuple(self.sink.ids[: place.ended])
            await took(lambda held: replace(held, output_blobs=blobs, offsets=replace(held.offsets, channel=place)))

    async def feed(self, data: bytes) -> None:
        """Raises Broken for what breaks the protocol, and for a blob that cannot be stored."""
        try:
            for frame in self._reader.feed(data):
                if not isinstance(frame, Result | Raised):
                    await self._take(frame)
            self.final = self._reader.finish()
        except FrameFault as fault:
            message = f"the run's channel was misused: {fault}"
            raise Broken(Failure("SandboxError", message, Outcome.OUTPUT)) from None

    async def replay(self) -> None:
        """Begin again: the channel will be given from its start."""
        await self.sink.replay()
        self.offset = 0
        self._reader = FrameReader(self._limits)

    async def _take(self, frame: Frame) -> None:
        match frame:
            case BlobData():
                await self.sink.piece(frame.n, frame.data)
            case BlobBegin():
                self.sink.begin(frame.n, frame.kind, frame.path)
            case BlobEnd():
                await self.sink.end(frame.n, frame.size)
            case BlobAbandon():
                await self.sink.abandon(frame.n)
            case Notes():
                self.notes = frame
            case State():
                self._state = frame


class Left:
    """Files of a program that ended without a word: a second program in its sandbox sends them.

    Its files and notes as far as they came; ``prefix`` begins the ids of the files."""

    def __init__(self, limits: FrameLimits, target: BlobTarget, prefix: str, command: Command | None = None) -> None:
        own = replace(target, prefix=f"{prefix}-")
        self._channel = Channel(BlobSink(own), limits)
        self._request = Guest(collect_request(own.prefix, limits, command))
        self._streams = StreamLimits(_LEFT_LOG, limits.files_bytes + _LEFT_BESIDE)

    @property
    def sink(self) -> BlobSink:
        return self._channel.sink

    @property
    def notes(self) -> Notes:
        notes = self._channel.notes
        return notes if self._channel.final is not None else replace(notes, lost=True)

    async def collect(self, sandbox: Sandbox, program: str) -> None:
        """Never raises for what is not to be had."""
        try:
            async with asyncio.timeout(2 * LEFT_MS / 1000):
                id = f"{program}-left"
                process = await sandbox.start(self._request, id=id, timeout_ms=LEFT_MS, streams=self._streams)
                async for data in process.output(Stream.CHANNEL):
                    await self._channel.feed(data)
                await process.wait()
        except (SkillyardError, Broken, TimeoutError):
            return
