"""A program of the twin: a callable that writes, reads its input, and ends or is ended."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from skillyard.domain.errors import OutputDropped, SandboxGone
from skillyard.domain.sandbox.spec import AtCap, Guest, Program, Stream, StreamLimits
from skillyard.domain.work.record import Ending, Outcome, Usage
from skillyard.testing.twin_sandbox.files import Files

_PIECE = 128 * 1024


class TwinProcess:
    """Written to by its callable, and read as the port's ``Process``."""

    def __init__(self, program: Program, id: str, streams: StreamLimits, files: Files) -> None:
        self.id = id
        self.program = program
        self.files = files
        self.killed: str | None = None
        """The reason of the first kill."""
        self.cuts = 0
        """How often the connection to it breaks from now on, at once."""
        self.deaf = False
        """Whether deadlines and kills do not reach it."""
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._streams = streams
        self._logs = {stream: _Log() for stream in Stream}
        self._changed = asyncio.Event()
        self._input = bytearray()
        self._input_open = not isinstance(program, Guest) and program.stdin
        self._began = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    @property
    def request(self) -> Mapping[str, Any]:
        """Returns the request of a Guest; a command has none."""
        return self.program.request if isinstance(self.program, Guest) else {}

    def play(self, script: Script, timeout_ms: int) -> None:
        """Starts the callable, which is ended at its deadline."""
        late = Ending(Outcome.TIMEOUT, reason="it took too long")
        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._end, late)
        self.ended.add_done_callback(lambda _: timer.cancel())
        self._task = asyncio.create_task(self._play(script))

    async def _play(self, script: Script) -> None:
        try:
            told = await script(self)
        except asyncio.CancelledError:
            self.end(Ending(Outcome.CANCELLED))
            raise
        except Exception:  # noqa: BLE001 - a program that fails says so on stderr and exits 1, as Python does
            self.write(traceback.format_exc().encode(), Stream.STDERR)
            told = 1
        self.end(Ending(Outcome.EXIT, code=told or 0) if told is None or isinstance(told, int) else told)

    def write(self, data: bytes, stream: Stream = Stream.CHANNEL) -> None:
        """Appends to a stream. At its cap the oldest bytes go, or the program ends."""
        if self.ended.done():
            return
        log, most = self._logs[stream], self._room(stream)
        if self._rings(stream):
            log.append(data)
            log.drop_before(log.end - most)
        else:
            log.append(data[: max(0, most)])
            if len(data) > most:
                self.end(Ending(Outcome.OUTPUT, reason="it wrote more than its limit"))
        self._tell()

    def log(self, data: bytes) -> None:
        self.write(data, Stream.STDOUT)

    def drop(self, before: int, stream: Stream = Stream.STDOUT) -> None:
        """Forgets all before an offset, as a ring does, also what is still to come."""
        self._logs[stream].drop_before(before)

    async def read(self) -> bytes:
        """Returns the input that came since, when there is any; none at its end."""
        while not self._input and self._input_open:
            await self._next()
        data = bytes(self._input)
        self._input.clear()
        return data

    def end(self, ending: Ending | None = None) -> None:
        """The program ends, and its callable with it. The first end counts; ``usage`` is added where it has none."""
        if self.ended.done():
            return
        ending = ending or Ending(Outcome.EXIT, code=0)
        if ending.usage == Usage():
            wall_ms = (time.monotonic() - self._began) * 1000
            ending = replace(ending, usage=Usage(1.0, 1 << 20, wall_ms, source="cgroup", whole=True))
        self.ended.set_result(ending)
        self._input_open = False
        self._tell()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def cut_off(self, times: int = 1) -> None:
        """The connection to it breaks: readers end, and LOST is told that often."""
        self.cuts = times
        self._tell()

    async def discard(self) -> None:
        """Ends it with its sandbox; returns when its callable has ended."""
        self.end(Ending(Outcome.CANCELLED, reason="the sandbox was destroyed"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        log = self._logs[stream]
        while True:
            if offset < log.first:
                raise OutputDropped(log.first)
            if data := bytes(log.data[offset - log.first : offset - log.first + _PIECE]):
                offset += len(data)
                yield data
            elif self.ended.done() or self.cuts:
                return
            else:
                await self._next()

    async def send(self, data: bytes) -> None:
        if not self._input_open:
            raise SandboxGone("nobody reads this standard input")
        self._input += data
        self._tell()

    async def close_stdin(self) -> None:
        self._input_open = False
        self._tell()

    async def wait(self) -> Ending:
        if self.cuts:
            self.cuts -= 1
            return Ending(Outcome.LOST, cut_off=True)
        return await asyncio.shield(self.ended)

    async def kill(self, reason: str = "") -> None:
        if not self.ended.done():
            self.killed = reason
            self._end(Ending(Outcome.CANCELLED, reason=reason))

    def _end(self, ending: Ending) -> None:
        if not self.deaf:
            self.end(ending)

    def _rings(self, stream: Stream) -> bool:
        return self._streams.at_cap is AtCap.RING and stream is not Stream.CHANNEL

    def _room(self, stream: Stream) -> int:
        """Returns the bytes of a ring, or those that may still come."""
        limits = self._streams
        if stream is Stream.CHANNEL:
            return limits.channel_bytes - self._logs[stream].end
        own = limits.log_bytes if stream is Stream.STDOUT or limits.stderr_bytes is None else limits.stderr_bytes
        if limits.at_cap is AtCap.RING:
            return own
        shared = (Stream.STDOUT, Stream.STDERR) if limits.stderr_bytes is None else (stream,)
        return own - sum(self._logs[each].end for each in shared)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _next(self) -> None:
        """Waits for a change; nobody polls."""
        await self._changed.wait()


Script = Callable[[TwinProcess], Awaitable[Ending | int | None]]
"""A program: it returns its exit code, or how it ended; nothing is 0."""


class _Log:
    """A stream: the bytes from ``first`` on."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.first = 0
        self._skip = 0

    @property
    def end(self) -> int:
        return self.first + len(self.data) - self._skip

    def append(self, data: bytes) -> None:
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self.data += data[skipped:]

    def drop_before(self, offset: int) -> None:
        if offset > self.first:
            self._skip = max(0, offset - self.end)
            del self.data[: offset - self.first]
            self.first = offset
