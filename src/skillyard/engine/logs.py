"""A run's log by pages: from its blob when the run has ended, from the sandbox while it works."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from skillyard.domain.run import RunRecord, RunStatus
from skillyard.domain.sandbox import Stream
from skillyard.engine.text import cut_head

if TYPE_CHECKING:
    from skillyard.engine.active import ActiveRun
    from skillyard.engine.engine import Engine

IDLE_S = 0.05


async def read_logs(engine: Engine, record: RunRecord, offset: int, max_bytes: int) -> dict[str, Any]:
    """``max_bytes`` of the log from ``offset`` on. Offsets count bytes of the redacted log."""
    active = engine.active.get(record.run_id)
    data = await _live(active, offset, max_bytes) if active else await _stored(engine, record, offset, max_bytes)
    running = active is not None or record.status is RunStatus.RUNNING
    if len(data) == max_bytes or running:
        data = cut_head(data)
    next_offset = offset + len(data)
    return {
        "run_id": record.run_id,
        "content": data.decode("utf-8", "replace"),
        "encoding": "utf-8",
        "offset": offset,
        "next_offset": next_offset,
        "running": running,
        "complete": not running and len(data) < max_bytes,
    }


async def _stored(engine: Engine, record: RunRecord, offset: int, max_bytes: int) -> bytes:
    if record.logs_blob is None:
        return b""
    info = await engine.blobs.stat(record.logs_blob)
    if info is None or offset >= info.size:
        return b""
    length = min(max_bytes, info.size - offset)
    return b"".join([chunk async for chunk in engine.blobs.read(record.logs_blob, offset, length)])


async def _live(active: ActiveRun, offset: int, max_bytes: int) -> bytes:
    """What the process has written up to now: read until it pauses."""
    if active.process is None:
        return b""
    redactor = active.redactor()
    kept, seen = bytearray(), 0
    source = active.process.output(Stream.STDOUT)
    try:
        while len(kept) < max_bytes:
            async with asyncio.timeout(IDLE_S):
                piece = redactor.feed(await anext(source))
            start = max(0, offset - seen)
            kept += piece[start:]
            seen += len(piece)
    except (TimeoutError, StopAsyncIteration):
        pass
    return bytes(kept[:max_bytes])
