"""The log of a run: kept as a blob, shown as a preview."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from skillyard.domain.errors import BlobNotFound, OutputDropped, SkillyardError
from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.work.record import LogPlace
from skillyard.engine.commands.output import MARK_EVERY, STDOUT, stream_at
from skillyard.engine.commands.tails import Live
from skillyard.engine.runs.collect import INLINE, BlobTarget, Took
from skillyard.engine.runs.patience import Patience
from skillyard.engine.secrets.redact import Redaction
from skillyard.engine.text import cut_head, cut_tail
from skillyard.ports.sandbox import Process
from skillyard.values import dataclass

MAX = 2048
HEAD = 512
PART_BYTES = 1024 * 1024
_KIND = "text/plain"
_MOST_LEFT = 64
"""Parts that a server which died may have noted as dropped without removing them."""


class Preview:
    """The short form of a log: its first 512 bytes, a marker and its end.

    Rows 4 and 9 of skills-protocol §4. It is fed piece by piece and keeps only the bytes that :meth:`text` needs.
    """

    __slots__ = ("_head", "_tail", "size")

    def __init__(self) -> None:
        self.size = 0
        self._head = b""
        self._tail = b""

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        if len(self._head) < MAX:
            self._head = (self._head + data)[:MAX]
        self._tail = data[-MAX:] if len(data) >= MAX else (self._tail + data)[-MAX:]

    def text(self) -> str:
        """At most 2,048 bytes of UTF-8; bytes that are none show as U+FFFD."""
        whole = _valid(self._head)
        if self.size <= MAX and len(whole) <= MAX:
            return whole.decode()
        head = cut_head(whole[:HEAD])
        room = MAX - HEAD - len(_marker(self.size))
        tail = cut_tail(_valid(cut_tail(self._tail))[-room:])
        left_out = max(0, self.size - len(head) - len(tail))
        return (head + _marker(left_out) + tail).decode()


def _valid(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode()


def _marker(left_out: int) -> bytes:
    return f"\n[... {left_out} bytes left out ...]\n".encode()


@dataclass(frozen=True, slots=True)
class Log:
    """A kept log.

    ``blob`` is the whole log, None when it is empty or could not be kept; ``problem`` says why.
    """

    preview: str = ""
    blob: str | None = None
    problem: str = ""


NO_LOG = Log()


async def keep_log(source: AsyncIterator[bytes], redaction: Redaction, target: BlobTarget) -> Log:
    """Store a log, redacted, and give its preview. Small logs go in one piece."""
    if (head := await anext(source, b"")) == b"":
        return NO_LOG
    preview = Preview()
    pieces = _tapped(_joined(head, source), redaction, preview)
    start = bytearray()
    async for piece in pieces:
        start += piece
        if len(start) > INLINE:
            break
    if not start:
        return NO_LOG
    data = bytes(start) if len(start) <= INLINE else _joined(bytes(start), pieces)
    blob_id = target.named("log")
    if (before := await target.stored(blob_id)) is not None:
        async for _ in pieces:  # the preview is still wanted
            pass
        return Log(preview.text(), before.blob_id)
    try:
        info = await target.create(blob_id, _KIND, data)
    except SkillyardError as error:
        async for _ in pieces:  # the preview is still wanted
            pass
        return Log(preview.text(), None, f"the full log was not kept: {error.message}")
    return Log(preview.text(), info.blob_id)


async def _tapped(source: AsyncIterator[bytes], redaction: Redaction, preview: Preview) -> AsyncIterator[bytes]:
    if redaction.empty:
        async for data in source:
            preview.feed(data)
            yield data
        return
    redactor = redaction.stream()
    async for data in source:
        piece = redactor.feed(data)
        preview.feed(redactor.shown(piece))
        yield piece
    rest = redactor.flush()
    preview.feed(redactor.shown(rest))
    yield rest


async def _joined(start: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for piece in rest:
        yield piece


class LogInParts:
    """The log of a run that outlives its server, stored in parts while the run works.

    A later server goes on behind them, and they are there when the sandbox is lost. Parts are blobs without secrets,
    and become one blob in the end.
    """

    def __init__(
        self,
        redaction: Redaction,
        target: BlobTarget,
        taken: LogPlace,
        took: Took,
        longer_s: float,
        patience: Patience,
        live: Live | None = None,
        ring: int | None = None,
    ) -> None:
        """``taken`` is where an earlier server was; ``took`` notes in the record where this one is.

        A part is kept ``longer_s`` than other blobs: until the run has ended. ``patience`` waits for a store that
        fails: output stays in the sandbox meanwhile. ``live`` hears the output of a command.
        With ``ring`` the last so many bytes are kept, and it can be read at work by :meth:`page`.
        """
        self._redaction = redaction
        self._target = target
        self._took = took
        self._patience = patience
        self._live = live
        ttl_s = None if target.ttl_s is None else target.ttl_s + longer_s
        self._part_target = replace(target, ttl_s=ttl_s)
        self._rest: bytes | None = None
        """The redacted log behind the parts, once it was read to its end."""
        self._most = taken.parts + target.again
        self._ring = ring
        self._part_bytes = PART_BYTES if ring is None else max(1, min(PART_BYTES, ring // 4))
        self._sizes: list[int] | None = None
        """The bytes of the parts that are kept, in a ring; None until they were looked at."""
        self._part = bytearray()
        self._news = asyncio.Event()
        if live is not None and ring is not None:
            live.log = self
        self._go_back(taken)

    async def take(self, process: Process) -> None:
        """Takes the log as it comes, to its end.

        Where a part cannot be stored when the program has ended, :meth:`keep` reads the rest. Raises LeftBehind.
        """
        part, silence = self._part, None if self._live is None else self._live.silence
        if silence is not None:
            silence.begin()
        try:
            await self._patience.through(self._look_back)
            async for piece in self._pieces(process, anew=self._ring is not None):
                if self._live is not None:
                    self._live.hear(piece)
                part += piece
                if len(part) >= self._part_bytes:
                    await self._store(bytes(part))
                if piece:
                    self._tell_news()
        except SkillyardError:
            return
        finally:
            if silence is not None:
                silence.end()
        self._rest = bytes(part)

    def end(self) -> None:
        """Says that the program has ended: what cannot be stored now is not waited for."""
        self._patience.end()

    async def _look_back(self) -> None:
        """Finds out what an earlier server stored."""
        if self._target.again:  # it may have stored one more part, which it did not come to note
            await self._target.store.delete(self._id(self._taken.parts))
        if self._ring is not None:
            await self._measure()
        if self._target.again:
            await self._tell_last_part()

    async def page(self, offset: int, most: int, first_s: float) -> tuple[bytes, int, str]:
        clock = asyncio.get_running_loop().time
        until = clock() + first_s
        while self._end <= offset and clock() < until:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._news.wait()
        data, dropped, stream = b"", 0, STDOUT
        while len(data) < most and (start := offset + dropped + len(data)) < self._end:
            gone = self._taken.gone
            if start < gone and data:
                break
            dropped += max(0, gone - start)
            try:
                before, piece = await self._piece(max(start, gone), most - len(data))
            except BlobNotFound:
                if self._taken.gone == gone:  # it was not dropped, so it was removed
                    break
                continue
            stream = stream if data else stream_at(before)
            data += piece
        return data, dropped, stream

    @property
    def _end(self) -> int:
        return 0 if self._sizes is None else self._taken.size + len(self._part)

    async def _piece(self, start: int, most: int) -> tuple[bytes, bytes]:
        """Returns bytes of one part from ``start`` on, and those before them that tell their stream.

        A part begins with a mark, so no other one is needed for that.
        """
        at = self._taken.gone
        for number, size in enumerate(self._sizes or (), self._taken.first):
            if start < at + size:
                back = min(start - at, MARK_EVERY)
                length = back + min(most, at + size - start)
                read = self._target.store.read(self._id(number), start - at - back, length)
                data = b"".join([chunk async for chunk in read])
                return data[:back], data[back:]
            at += size
        return bytes(self._part[: start - at]), bytes(self._part[start - at : start - at + most])

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _measure(self) -> None:
        """Looks how large the parts of an earlier server are.

        It removes those that the server had no time to remove.
        """
        taken = self._taken
        await self._remove(range(max(0, taken.first - _MOST_LEFT), taken.first))
        sizes: list[int] = []
        for number in reversed(range(taken.first, taken.parts)):
            info = await self._target.store.stat(self._id(number))
            if info is None:  # somebody removed it: the log begins behind it
                break
            sizes.insert(0, info.size)
        first = taken.parts - len(sizes)
        if first != taken.first:
            await self._note(replace(taken, first=first, gone=taken.size - sum(sizes)))
        self._sizes = sizes

    async def _tell_last_part(self) -> None:
        last = self._taken.parts - 1
        if self._live is not None and last >= 0:
            with suppress(SkillyardError):
                async for piece in self._target.store.read(self._id(last)):
                    self._live.before(piece, first=last == 0)

    async def keep(self, process: Process | None) -> Log:
        """Returns the whole log, stored as one blob; the rest of it is read from ``process``."""
        if self._rest is None:
            self._go_back(self._taken)
        log = await keep_log(self._whole(process), self._redaction.done(), self._target)
        dropped, gone = self._dropped, self._taken.gone
        told = (
            f"{dropped} bytes of the log were dropped before they could be read" if dropped else "",
            f"the first {gone} bytes of the log were dropped: the latest are kept" if gone else "",
            log.problem,
        )
        return replace(log, problem="; ".join(filter(None, told)))

    async def discard(self) -> None:
        """Removes the parts, when the record has the whole log."""
        for number in range(self._taken.first, self._most):
            with suppress(SkillyardError):  # it expires
                await self._target.store.delete(self._id(number))

    @property
    def begun(self) -> bool:
        """Returns whether there are parts."""
        return self._taken.parts > 0

    def _go_back(self, taken: LogPlace) -> None:
        self._taken = taken
        self._read, self._dropped = taken.offset, taken.dropped
        self._redactor = self._redaction.resumed(taken)

    async def _pieces(self, process: Process, *, anew: bool = False) -> AsyncIterator[bytes]:
        """Yields the redacted log from where it was read.

        Behind a gap the kept log begins ``anew``; else a line of it tells of the gap.
        """
        redactor, reading = self._redactor, True
        while reading:
            try:
                async for data in process.output(Stream.STDOUT, self._read):
                    self._read += len(data)
                    if self._live is not None:
                        self._live.silence.broken()
                    yield redactor.feed(data)
                reading = False
            except OutputDropped as gap:
                dropped = gap.first - self._read + redactor.break_off()
                self._read = gap.first
                if anew:
                    await self._begin_anew(dropped)
                    continue
                self._dropped += dropped
                yield redactor.aside(f"\n[... {dropped} bytes were dropped ...]\n".encode())
        yield redactor.flush()

    async def _store(self, part: bytes) -> None:
        """Stores a part, then notes it."""
        taken, redactor = self._taken, self._redactor
        number, sizes = taken.parts, [*(self._sizes or ()), len(part)]
        self._most = number + 1
        await self._patience.through(self._storing(self._id(number), part))
        while self._ring is not None and len(sizes) > 1 and sum(sizes) + self._part_bytes > self._ring:
            sizes.pop(0)
        if self._ring is not None:
            redactor.mark()
        place = replace(redactor.place(self._read), parts=number + 1, dropped=self._dropped)
        if self._ring is not None:
            size = taken.size + len(part)
            place = replace(place, first=number + 1 - len(sizes), size=size, gone=size - sum(sizes))
        await self._patience.through(partial(self._note, place))
        self._sizes = sizes
        self._part.clear()
        await self._patience.through(partial(self._remove, range(taken.first, place.first)))

    def _storing(self, blob_id: str, part: bytes) -> Callable[[], Awaitable[None]]:
        tries = 0

        async def store() -> None:
            nonlocal tries
            tries += 1
            if tries > 1:  # one before may have stored it and have failed to say so
                await self._target.store.delete(blob_id)
            await self._part_target.create(blob_id, _KIND, part)

        return store

    async def _remove(self, numbers: range) -> None:
        for number in numbers:
            await self._target.store.delete(self._id(number))

    async def _begin_anew(self, dropped: int) -> None:
        """Keeps nothing of the log before a gap: more than a ring holds came behind it.

        Bytes that were never read count as they are.
        """
        self._redactor.mark()
        taken, size = self._taken, self._taken.size + len(self._part) + dropped
        place = replace(self._redactor.place(self._read), parts=taken.parts, first=taken.parts, size=size, gone=size)
        await self._patience.through(partial(self._note, place))
        self._sizes = []
        self._part.clear()
        await self._patience.through(partial(self._remove, range(taken.first, taken.parts)))

    async def _note(self, place: LogPlace) -> None:
        await self._took(lambda held: replace(held, offsets=replace(held.offsets, log=place)))
        self._taken = place

    async def _whole(self, process: Process | None) -> AsyncIterator[bytes]:
        for number in range(self._taken.first, self._taken.parts):
            try:
                async for piece in self._target.store.read(self._id(number)):
                    yield piece
            except BlobNotFound:
                yield b"\n[... a part of the log was removed ...]\n"
        if self._rest is not None:
            yield self._rest
        elif process is not None:
            async for piece in self._pieces(process):
                yield piece

    def _id(self, number: int) -> str:
        return f"{self._target.prefix}log-{number}"
