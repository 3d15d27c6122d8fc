"""Files of a program that ended without a word: a second program in its sandbox sends them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox import Guest, Stream, StreamLimits
from skillyard.engine.channel import Channel
from skillyard.engine.collect import BlobSink, BlobTarget, Broken
from skillyard.engine.grant import Grant
from skillyard.ports.sandbox import Sandbox

BOUND_MS = 5000
_LOG_BYTES = 64 * 1024
_BESIDE = 4 * 1024 * 1024


async def collect_left(sandbox: Sandbox, grant: Grant, target: BlobTarget, prefix: str, program: str) -> Channel:
    """Returns its files and notes; ``prefix`` begins the ids of the files. Never raises for lost files."""
    own = replace(target, prefix=f"{prefix}-")
    channel = Channel(BlobSink(own), grant.limits)
    request = Guest({**grant.collect, "blob_prefix": own.prefix})
    try:
        async with asyncio.timeout(2 * BOUND_MS / 1000):
            streams = StreamLimits(_LOG_BYTES, grant.limits.files_bytes + _BESIDE)
            process = await sandbox.start(request, id=f"{program}-left", timeout_ms=BOUND_MS, streams=streams)
            async for data in process.output(Stream.CHANNEL):
                await channel.feed(data)
            await process.wait()
    except (SkillyardError, Broken, TimeoutError):
        pass
    await channel.sink.abort()
    if channel.final is None:
        channel.notes = replace(channel.notes, lost=True)
    return channel
