"""Pages of a run's log: from its sandbox while it works, from its blob when it has ended."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from skillyard.domain.errors import OutputDropped
from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.work.record import RunKind, RunRecord
from skillyard.engine.commands.output import Unmarker
from skillyard.engine.driver import ActiveRun
from skillyard.engine.secrets.redact import Redactor
from skillyard.engine.text import cut_head
from skillyard.ports.blobs import BlobStore
from skillyard.ports.records import RecordStore

FIRST_S = 0.5
"""How long a page of a running run waits for something new: on a busy host, what is there takes a while to come."""
IDLE_S = 0.05
"""How long it waits for more once it has something."""
FOLLOW_S = 0.01
"""The same for a follower, who asks again at once."""
PAGE_S = 1.0
"""How long a page takes at most behind its first bytes, however the run goes on writing: the rest is for the next."""
_READINGS = 64
_MOST_MADE = 256 * 1024


@dataclass(slots=True)
class _Reading:
    """A reading of a redacted log.

    ``taken`` bytes of the log were read. ``made`` was made of them, from ``offset`` of the redacted log on, and nobody
    got it yet."""

    redactor: Redactor
    taken: int
    offset: int
    made: bytearray

    def take(self, data: bytes, wanted: int) -> None:
        """Adds ``data``. Bytes before ``wanted`` of the redacted log are dropped."""
        self.taken += len(data)
        piece = self.redactor.feed(data)
        skipped = min(len(piece), max(0, wanted - self.offset))
        self.offset += skipped
        self.made += piece[skipped:]

    def skip(self, first: int) -> None:
        """Goes on at ``first`` of the log: the bytes before it were dropped. They count as they are."""
        self.offset += first - self.taken + self.redactor.break_off()
        self.taken = first


class LogPages:
    """Reads logs. Offsets count bytes of the redacted log.

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
    ) -> dict[str, Any]:
        """Returns a page of at most ``max_bytes`` from ``offset`` on.

        It ends between characters where more may come. Of a run at work it waits ``first_s`` for the first byte, and
        ``idle_s`` for more. ``dropped`` bytes at its beginning are not kept any more.
        """
        dropped = 0
        if active is not None:
            (data, dropped), last = await self._live(active, offset, max_bytes, first_s, idle_s), False
        else:
            data, last = await self._stored(record, offset, max_bytes)
            data = data if last else cut_head(data)
        marked = record.kind is RunKind.COMMAND
        if marked and not last and data.endswith(b"\0"):
            data = data[:-1]  # the mark that begins with it comes in the next page
        running = active is not None or record.status.live
        return {
            "run_id": record.run_id,
            "content": (Unmarker().plain(data) if marked else data).decode("utf-8", "replace"),
            "encoding": "utf-8",
            "offset": offset,
            "next_offset": offset + dropped + len(data),
            "dropped": dropped,
            "running": running,
            "complete": last and not running,
        }

    def _forget(self, record: RunRecord) -> None:
        """Drops the readings of a run that has ended; they know its secrets."""
        if record.status.live:
            return
        for key in [key for key in self._readings if key[0] == record.run_id]:
            del self._readings[key]
        if not self._readings:
            self._records.ignore(self._forget)

    async def _stored(self, record: RunRecord, offset: int, max_bytes: int) -> tuple[bytes, bool]:
        """Returns the bytes, and whether they are the last ones."""
        info = await self._blobs.stat(record.logs_blob) if record.logs_blob else None
        if info is None or offset >= info.size:
            return b"", True
        length = min(max_bytes, info.size - offset)
        data = b"".join([chunk async for chunk in self._blobs.read(info.blob_id, offset, length)])
        return data, offset + length == info.size

    async def _live(
        self, active: ActiveRun, offset: int, max_bytes: int, first_s: float, idle_s: float
    ) -> tuple[bytes, int]:
        """Returns the bytes that are written up to now, and the number of dropped ones before.

        It reads until the process pauses, and stops before a gap: the next page begins behind that.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + first_s
        latest = end + PAGE_S
        if active.process is None:
            await asyncio.wait([active.starting()], timeout=first_s)
        if active.process is None:
            return b"", 0
        reading = self._reading(active, offset)
        source = active.process.output(Stream.STDOUT, reading.taken)
        try:
            while len(reading.made) < max_bytes:
                try:
                    async with asyncio.timeout_at(min(end, clock() + idle_s) if reading.made else end):
                        data = await anext(source)
                except OutputDropped as gap:
                    if reading.made:
                        break
                    reading.skip(gap.first)
                    source = active.process.output(Stream.STDOUT, reading.taken)
                    continue
                if not reading.made:
                    end = min(latest, clock() + PAGE_S)
                reading.take(data, offset)
        except (TimeoutError, StopAsyncIteration):
            pass
        dropped = max(0, reading.offset - offset)
        data = cut_head(bytes(reading.made[:max_bytes]))
        self._keep(active, reading, offset + dropped, len(data))
        return data, dropped

    def _reading(self, active: ActiveRun, offset: int) -> _Reading:
        kept = self._readings.pop((active.run_id, offset), None)
        if kept is not None:
            return kept
        redactor = active.redactor()
        start = offset if redactor.idle else 0
        return _Reading(redactor, start, start, bytearray())

    def _keep(self, active: ActiveRun, reading: _Reading, offset: int, given: int) -> None:
        """Keeps a reading for the page behind the bytes that were ``given``. One without secrets is made anew."""
        if reading.redactor.idle or len(reading.made) - given > _MOST_MADE:
            return
        del reading.made[:given]
        reading.offset += given
        self._readings[active.run_id, offset + given] = reading
        self._records.listen(self._forget)
        if len(self._readings) > _READINGS:
            self._readings.popitem(last=False)
