"""The log of a run: kept as a blob, shown as a preview."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace

from skillyard.domain.errors import BlobNotFound, OutputDropped, SkillyardError
from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.work.record import LogPlace
from skillyard.engine.commands.tails import Live
from skillyard.engine.runs.collect import INLINE, BlobTarget, Took
from skillyard.engine.secrets.redact import Redaction
from skillyard.engine.text import cut_head, cut_tail
from skillyard.ports.sandbox import Process

MAX = 2048
HEAD = 512
PART_BYTES = 1024 * 1024
_KIND = "text/plain"


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
        live: Live | None = None,
    ) -> None:
        """``taken`` is where an earlier server was; ``took`` notes in the record where this one is.

        A part is kept ``longer_s`` than other blobs: until the run has ended. ``live`` hears the output of a command.
        """
        self._redaction = redaction
        self._target = target
        self._took = took
        self._live = live
        ttl_s = None if target.ttl_s is None else target.ttl_s + longer_s
        self._part_target = replace(target, ttl_s=ttl_s)
        self._rest: bytes | None = None
        """The redacted log behind the parts, once it was read to its end."""
        self._most = taken.parts + target.again
        self._go_back(taken)

    async def take(self, process: Process) -> None:
        """Takes the log as it comes, to its end.

        Where a part cannot be stored, it ends earlier, and :meth:`keep` reads the rest. Raises LeftBehind.
        """
        part, silence = bytearray(), None if self._live is None else self._live.silence
        if silence is not None:
            silence.begin()
        try:
            if self._target.again:  # stored by an earlier server, which did not come to note it
                await self._target.store.delete(self._id(self._taken.parts))
                await self._tell_last_part()
            async for piece in self._pieces(process):
                if self._live is not None:
                    self._live.hear(piece)
                part += piece
                if len(part) >= PART_BYTES:
                    await self._store(bytes(part))
                    part.clear()
        except SkillyardError:
            return
        finally:
            if silence is not None:
                silence.end()
        self._rest = bytes(part)

    async def _tell_last_part(self) -> None:
        last = self._taken.parts - 1
        if self._live is not None and last >= 0:
            with suppress(BlobNotFound):
                async for piece in self._target.store.read(self._id(last)):
                    self._live.before(piece, first=last == 0)

    async def keep(self, process: Process | None) -> Log:
        """Returns the whole log, stored as one blob; the rest of it is read from ``process``."""
        if self._rest is None:
            self._go_back(self._taken)
        log = await keep_log(self._whole(process), self._redaction.done(), self._target)
        if not self._dropped:
            return log
        dropped = f"{self._dropped} bytes of the log were dropped before they could be read"
        return replace(log, problem="; ".join(filter(None, (dropped, log.problem))))

    async def discard(self) -> None:
        """Removes the parts, when the record has the whole log."""
        for number in range(self._most):
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

    async def _pieces(self, process: Process) -> AsyncIterator[bytes]:
        """Yields the redacted log from where it was read."""
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
                self._read, self._dropped = gap.first, self._dropped + dropped
                yield redactor.aside(f"\n[... {dropped} bytes were dropped ...]\n".encode())
        yield redactor.flush()

    async def _store(self, part: bytes) -> None:
        """Stores a part, then notes it."""
        number, redactor = self._taken.parts, self._redactor
        self._most = number + 1
        await self._part_target.create(self._id(number), _KIND, part)
        place = replace(redactor.place(self._read), parts=number + 1, dropped=self._dropped)
        await self._took(lambda held: replace(held, offsets=replace(held.offsets, log=place)))
        self._taken = place

    async def _whole(self, process: Process | None) -> AsyncIterator[bytes]:
        for number in range(self._taken.parts):
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
