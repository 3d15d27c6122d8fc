"""The channel of a run: the guest's frames, sorted into blobs and the one that says how it ended."""

from __future__ import annotations

from typing import Any

from skillyard.domain.sandbox.frames import (
    BlobAbandon,
    BlobBegin,
    BlobData,
    BlobEnd,
    Frame,
    FrameFault,
    FrameLimits,
    FrameReader,
    Notes,
    Result,
    ResultFault,
)
from skillyard.domain.sandbox.frames import Failure as Raised
from skillyard.domain.work.outcome import Outcome
from skillyard.engine.runs.collect import BlobSink, Broken
from skillyard.engine.runs.failure import Failure
from skillyard.engine.runs.output import not_serializable


class Channel:
    """Fed with the bytes of the channel as they come; ``final`` is the last frame once it came."""

    def __init__(self, sink: BlobSink, limits: FrameLimits) -> None:
        self.sink = sink
        self.final: Result | Raised | None = None
        self.notes = Notes()
        self._limits = limits
        self._reader = FrameReader(limits)

    async def feed(self, data: bytes) -> None:
        """Raises Broken for what breaks the protocol, and for a blob that cannot be stored."""
        try:
            for frame in self._reader.feed(data):
                await self._take(frame)
            self.final = self._reader.finish()
        except FrameFault as fault:
            message = f"the run's channel was misused: {fault}"
            raise Broken(Failure("SandboxError", message, Outcome.OUTPUT)) from None

    async def replay(self) -> None:
        """Begin again: the channel will be given from its start."""
        await self.sink.replay()
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


def value_of(result: Result) -> dict[str, Any]:
    """The object that was returned. Raises Unfit."""
    try:
        return result.value()
    except ResultFault as fault:
        raise not_serializable(str(fault)) from None
