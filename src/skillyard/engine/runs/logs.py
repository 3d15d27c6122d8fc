"""A run's log by pages: from its blob when the run has ended, from the sandbox while it works."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine.runs.text import cut_head

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine
    from skillyard.engine.runs.active import ActiveRun

FIRST_S = 0.5
"""How long a page of a running run waits for something new: on a busy host, what is there takes a while to come."""
IDLE_S = 0.05
"""How long it waits for more once it has something."""
PAGE_S = 1.0
"""How long a page takes at most, however the run goes on writing: what is not read by then is for the next page."""


async def read_logs(engine: Engine, record: RunRecord, offset: int, max_bytes: int) -> dict[str, Any]:
    """At most ``max_bytes`` of the log from ``offset`` on, ending between characters where there is more to
    come. Offsets count bytes of the redacted log."""
    active = engine.active.get(record.run_id)
    if active is not None:
        data, last = await _live(active, offset, max_bytes), False
    else:
        data, last = await _stored(engine, record, offset, max_bytes)
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


async def _stored(engine: Engine, record: RunRecord, offset: int, max_bytes: int) -> tuple[bytes, bool]:
    """The bytes, and whether they are the last ones."""
    info = await engine.blobs.stat(record.logs_blob) if record.logs_blob else None
    if info is None or offset >= info.size:
        return b"", True
    length = min(max_bytes, info.size - offset)
    data = b"".join([chunk async for chunk in engine.blobs.read(info.blob_id, offset, length)])
    return data, offset + length == info.size


async def _live(active: ActiveRun, offset: int, max_bytes: int) -> bytes:
    """What the process has written up to now: read until it pauses. Empty when it is silent for a while."""
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
