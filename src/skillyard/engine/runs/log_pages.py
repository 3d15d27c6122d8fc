"""Pages of a run's log: from its sandbox while it works, from its blob when it has ended."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from skillyard.domain.errors import OutputDropped
from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.work.record import RunKind, RunRecord
from skillyard.engine.commands.output import MARK_EVERY, STDOUT, Unmarker, stream_at
from skillyard.engine.runs.active import ActiveRun
from skillyard.engine.secrets.redact import Redactor
from skillyard.engine.text import cut_head
from skillyard.ports.blobs import BlobStore
from skillyard.ports.records import RecordStore
from skillyard.values import dataclass

FIRST_S = 0.5
"""How long a page of a running run waits for something new: on a busy host, what is there takes a while to come."""
IDLE_S = 0.05
"""How long it waits for more once it has something."""
FOLLOW_S = 0.01
"""The same for a follower, who asks again at once."""
PAGE_S = 1.0
"""How long a page takes at most behind its first bytes, however the run goes on writing: the rest is for the next."""
ATTEMPT_BYTES = 1 << 32
"""More than any log has. Offsets of each attempt of a task begin at a multiple of it."""
_READINGS = 64
_MOST_MADE = 256 * 1024


@dataclass(slots=True)
class _Reading:
    """A reading of a redacted log.

    ``taken`` bytes of the log were read. ``made`` was made of them, from ``offset`` of the redacted log on, and nobody
    got it yet. ``marks`` follows the streams of a command up to there; None for another run."""

    redactor: Redactor
    taken: int
    offset: int
    made: bytearray
    marks: Unmarker | None

    @property
    def some(self) -> bool:
        """Returns whether there is something to hand on: half a mark waits for the other half."""
        return bool(self.made) and (self.marks is None or self.made != b"\0")

    def whole(self, most: int) -> bytes:
        """Returns the first bytes of it, to the end of a character and of a mark."""
        return _whole(bytes(self.made[:most]), marked=self.marks is not None)

    def take(self, data: bytes, wanted: int) -> None:
        """Adds ``data``. Bytes before ``wanted`` of the redacted log are dropped."""
        self.taken += len(data)
        piece = self.redactor.feed(data)
        skipped = min(len(piece), max(0, wanted - self.offset))
        self.pass_over(piece[:skipped])
        self.made += piece[skipped:]

    def pass_over(self, data: bytes) -> None:
        """Goes on behind ``data``, the first bytes that were made."""
        self.offset += len(data)
        if self.marks is not None:
            self.marks.plain(data)

    def skip(self, first: int) -> None:
        """Goes on at ``first`` of the log: the bytes before it were dropped. They count as they are."""
        self.offset += first - self.taken + self.redactor.break_off()
        self.taken = first


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of a run's log, from ``offset`` on. ``dropped`` bytes at its beginning are not kept any more.
    ``problem`` says why output of a run at work is not taken now.

    ``data`` is without secrets. The log of a command has marks, and its page begins in ``stream``.
    """

    run_id: str
    data: bytes
    marked: bool
    stream: str
    offset: int
    next_offset: int
    dropped: int
    running: bool
    complete: bool
    problem: str = ""

    @property
    def news(self) -> bool:
        """Returns whether a caller who waits should have it."""
        return self.next_offset > self.offset or self.complete

    def text(self) -> str:
        """Returns the output of both streams as it came."""
        return (Unmarker().plain(self.data) if self.marked else self.data).decode("utf-8", "replace")


class LogPages:
    """Reads logs. Offsets count bytes of the redacted log; those of a task's attempts follow each other.

    A follower of a log with secrets goes on from its last page: few such readings are kept, so that nobody reads the
    whole log for each page of it.
    """

    def __init__(self, blobs: BlobStore, records: RecordStore) -> None:
        self._blobs = blobs
        self._records = records
        self._readings: OrderedDict[tuple[str, int], _Reading] = OrderedDict()

    async def page(
        self,
        active: ActiveRun | None,
        record: RunRecord,
        offset: int,
        max_bytes: int,
        first_s: float,
        idle_s: float = IDLE_S,
    ) -> LogPage:
        """Returns a page of at most ``max_bytes`` from ``offset`` on.

        It ends between characters where more may come. Of a run at work it waits ``first_s`` for the first byte, and
        ``idle_s`` for more.
        """
        if active is not None and active.ledger is not None:
            record = active.ledger.record
        before = len(record.attempts)
        if offset < before * ATTEMPT_BYTES:
            return await self._of_attempt(record, offset, max_bytes)
        base = before * ATTEMPT_BYTES
        dropped, marked = 0, record.kind is RunKind.COMMAND
        if active is not None and record.service is not None:
            data, dropped, stream = await self._kept(active, offset - base, max_bytes, first_s)
            last = False
        elif active is not None:
            times = first_s, idle_s
            data, dropped, stream = await self._live(active, base, offset - base, max_bytes, *times, marked=marked)
            last = False
        else:
            gone = record.offsets.log.gone
            dropped = max(0, gone - (offset - base))
            at = max(0, offset - base - gone)
            data, last, stream = await self._stored(record.logs_blob, at, max_bytes, marked=marked)
            data = data if last else _whole(data, marked=marked)
        running = active is not None or record.status.live
        end = offset + dropped + len(data)
        problem = "" if active is None else active.log_problem
        over = last and not running
        return LogPage(record.run_id, data, marked, stream, offset, end, dropped, running, over, problem)

    async def _of_attempt(self, record: RunRecord, offset: int, max_bytes: int) -> LogPage:
        """Returns a page of the log of an earlier attempt. Behind its end is the beginning of the next one."""
        number, inner = divmod(offset, ATTEMPT_BYTES)
        blob_id = record.attempts[number]["logs_blob"]
        data, last, stream = await self._stored(blob_id, inner, max_bytes, marked=True)
        data = data if last else _whole(data, marked=True)
        end = (number + 1) * ATTEMPT_BYTES if last else offset + len(data)
        running = record.status.live
        return LogPage(record.run_id, data, True, stream, offset, end, 0, running, complete=False)

    def _forget(self, record: RunRecord) -> None:
        """Drops the readings of a run that has ended; they know its secrets."""
        if record.status.live:
            return
        for key in [key for key in self._readings if key[0] == record.run_id]:
            del self._readings[key]
        if not self._readings:
            self._records.ignore(self._forget)

    async def _stored(
        self, blob_id: str | None, offset: int, max_bytes: int, *, marked: bool
    ) -> tuple[bytes, bool, str]:
        """Returns the bytes, whether they are the last ones, and the stream that they begin in."""
        info = await self._blobs.stat(blob_id) if blob_id else None
        if info is None or offset >= info.size:
            return b"", True, STDOUT
        before = min(offset, MARK_EVERY) if marked else 0
        length = min(max_bytes, info.size - offset)
        read = self._blobs.read(info.blob_id, offset - before, before + length)
        data = b"".join([chunk async for chunk in read])
        return data[before:], offset + length == info.size, stream_at(data[:before])

    async def _kept(self, active: ActiveRun, offset: int, max_bytes: int, first_s: float) -> tuple[bytes, int, str]:
        """Returns the same as :meth:`_live`, of a log whose latest output alone is kept."""
        if active.live is None:
            await asyncio.wait([active.starting()], timeout=first_s)
        if active.live is None or active.live.log is None:
            return b"", 0, STDOUT
        data, dropped, stream = await active.live.log.page(offset, max_bytes, first_s)
        return _whole(data, marked=True), dropped, stream

    async def _live(
        self, active: ActiveRun, base: int, offset: int, max_bytes: int, first_s: float, idle_s: float, *, marked: bool
    ) -> tuple[bytes, int, str]:
        """Returns the bytes written up to now, the number of dropped ones, and the first stream.

        ``offset`` counts from ``base``, where those of the attempt begin. It reads until the process pauses, and stops
        before a gap: the next page begins behind that.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + first_s
        latest = end + PAGE_S
        if active.process is None:
            await asyncio.wait([active.starting()], timeout=first_s)
        ledger = active.ledger
        if active.process is None or (ledger is not None and len(ledger.record.attempts) * ATTEMPT_BYTES != base):
            return b"", 0, STDOUT
        reading = self._reading(active, base, offset, marked=marked)
        source = active.process.output(Stream.STDOUT, reading.taken)
        try:
            while len(reading.made) < max_bytes:
                try:
                    async with asyncio.timeout_at(min(end, clock() + idle_s) if reading.some else end):
                        data = await anext(source)
                except OutputDropped as gap:
                    if reading.some:
                        break
                    reading.skip(gap.first)
                    source = active.process.output(Stream.STDOUT, reading.taken)
                    continue
                if not reading.some:
                    end = min(latest, clock() + PAGE_S)
                reading.take(data, offset)
        except (TimeoutError, StopAsyncIteration):
            pass
        dropped, data = max(0, reading.offset - offset), reading.whole(max_bytes)
        stream = STDOUT if reading.marks is None else reading.marks.stream
        self._keep(active, reading, data, base + offset + dropped + len(data))
        return data, dropped, stream

    def _reading(self, active: ActiveRun, base: int, offset: int, *, marked: bool) -> _Reading:
        kept = self._readings.pop((active.run_id, base + offset), None)
        if kept is not None:
            return kept
        redactor = active.redactor()
        start = offset if redactor.idle else 0
        return _Reading(redactor, start, start, bytearray(), Unmarker() if marked else None)

    def _keep(self, active: ActiveRun, reading: _Reading, given: bytes, next_offset: int) -> None:
        """Keeps a reading for the page behind the bytes that were ``given``. One without secrets is made anew."""
        if reading.redactor.idle or len(reading.made) - len(given) > _MOST_MADE:
            return
        del reading.made[: len(given)]
        reading.pass_over(given)
        self._readings[active.run_id, next_offset] = reading
        self._records.listen(self._forget)
        if len(self._readings) > _READINGS:
            self._readings.popitem(last=False)


def _whole(data: bytes, *, marked: bool) -> bytes:
    """Returns ``data`` without a cut character or mark at its end, which the next page has."""
    data = cut_head(data)
    return data[:-1] if marked and data.endswith(b"\0") else data
