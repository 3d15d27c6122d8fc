"""Files of a program that ended without a word: a second program in its sandbox sends them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.frames import Notes
from skillyard.domain.sandbox.spec import Guest, Stream, StreamLimits
from skillyard.engine.runs.channel import Channel
from skillyard.engine.runs.collect import BlobSink, BlobTarget, Broken
from skillyard.engine.runs.grant import Grant
from skillyard.ports.sandbox import Sandbox

BOUND_MS = 5000
_LOG_BYTES = 64 * 1024
_BESIDE = 4 * 1024 * 1024


class Left:
    """Its files and notes as far as they came; ``prefix`` begins the ids of the files."""

    def __init__(self, grant: Grant, target: BlobTarget, prefix: str) -> None:
        own = replace(target, prefix=f"{prefix}-")
        self._channel = Channel(BlobSink(own), grant.limits)
        self._request = Guest({**grant.collect, "blob_prefix": own.prefix})
        self._streams = StreamLimits(_LOG_BYTES, grant.limits.files_bytes + _BESIDE)

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
            async with asyncio.timeout(2 * BOUND_MS / 1000):
                id = f"{program}-left"
                process = await sandbox.start(self._request, id=id, timeout_ms=BOUND_MS, streams=self._streams)
                async for data in process.output(Stream.CHANNEL):
                    await self._channel.feed(data)
                await process.wait()
        except (SkillyardError, Broken, TimeoutError):
            return
