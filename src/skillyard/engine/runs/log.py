"""The log of a run: kept as a blob, shown as a preview, read by pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine.runs.active import ActiveRun
from skillyard.engine.runs.collect import INLINE, BlobTarget
from skillyard.engine.secrets.redact import Redaction
from skillyard.engine.text import cut_head, cut_tail
from skillyard.ports.blobs import BlobStore

MAX = 2048
HEAD = 512

FIRST_S = 0.5
"""How long a page of a running run waits for something new: on a busy host, what is there takes a while to come."""
IDLE_S = 0.05
"""How long it waits for more once it has something."""
PAGE_S = 1.0
"""How long a page takes at most, however the run goes on writing: what is not read by then is for the next page."""


class Preview:
    """The short form of a log: its first 512 bytes, a marker, its end (skills-protocol §4, rows 4 and 9).

    Fed with a log piece by piece; keeps what :meth:`text` needs and no more."""

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


async def read_logs(
    active: ActiveRun | None, blobs: BlobStore, record: RunRecord, offset: int, max_bytes: int
) -> dict[str, Any]:
    """Returns a page: from the sandbox while the run works, from its blob when it has ended.

    At most ``max_bytes`` of the log from ``offset`` on, ending between characters where there is more to
    come. Offsets count bytes of the redacted log."""
    if active is not None:
        data, last = await _live(active, offset, max_bytes), False
    else:
        data, last = await _stored(blobs, record, offset, max_bytes)
    if not last:
        data = cut_head(data)
    running = active is not None or record.status is RunStatus.RUNNING
    return {
        "run_id": record.run_id,
        "content": data.decode("utf-8", "replace"),
        "encoding": "utf-8",
        "offset": offset,
        "next_offset": offset + len(data),
        "running": running,
        "complete": last and not running,
    }


async def _stored(blobs: BlobStore, record: RunRecord, offset: int, max_bytes: int) -> tuple[bytes, bool]:
    """The bytes, and whether they are the last ones."""
    info = await blobs.stat(record.logs_blob) if record.logs_blob else None
    if info is None or offset >= info.size:
        return b"", True
    length = min(max_bytes, info.size - offset)
    data = b"".join([chunk async for chunk in blobs.read(info.blob_id, offset, length)])
    return data, offset + length == info.size


async def _live(active: ActiveRun, offset: int, max_bytes: int) -> bytes:
    """Returns what the process has written up to now: read until it pauses. Empty when it is silent for a while."""
    if active.process is None:
        return b""
    redactor = active.redactor()
    kept, seen = bytearray(), 0
    source = active.process.output(Stream.STDOUT)
    clock = asyncio.get_running_loop().time
    end = clock() + PAGE_S
    try:
        while len(kept) < max_bytes:
            async with asyncio.timeout_at(min(end, clock() + (IDLE_S if kept else FIRST_S))):
                piece = redactor.feed(await anext(source))
            start = max(0, offset - seen)
            kept += piece[start:]
            seen += len(piece)
    except (TimeoutError, StopAsyncIteration):
        pass
    return bytes(kept[:max_bytes])
