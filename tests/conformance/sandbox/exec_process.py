"""A program of the exec backend: its streams on disk, its deadline, how it ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from skillyard.domain.errors import OutputDropped, SandboxGone
from skillyard.domain.sandbox.spec import AtCap, Stream, StreamLimits
from skillyard.domain.work.record import Ending, Outcome, Usage

CHUNK = 1 << 18


class Spool:
    """The bytes of one stream: appended while its pipe gives, read from any offset by many. The last ``kept`` count."""

    def __init__(self, kept: int | None = None) -> None:
        self._kept = kept
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._changed = asyncio.Event()
        self._ended = False
        self.size = 0

    def append(self, data: bytes) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(data)
        self._file.flush()
        self.size += len(data)
        self._notify()

    def end(self) -> None:
        self._ended = True
        self._notify()

    def close(self) -> None:
        self.end()
        self._file.close()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        while True:
            if self._file.closed:
                raise SandboxGone("the sandbox was destroyed")
            first = 0 if self._kept is None else max(0, self.size - self._kept)
            if offset < first:
                raise OutputDropped(first)
            if data := os.pread(self._file.fileno(), CHUNK, offset):
                offset += len(data)
                yield data
            elif self._ended:
                return
            else:
                await self._changed.wait()


class Tap:
    """Moves what comes out of a pipe into a spool, up to a budget of bytes."""

    def __init__(self, spool: Spool, budget: list[int], overflow: Callable[[], None]) -> None:
        self._read, self.write = os.pipe()
        os.set_blocking(self._read, False)
        self._spool, self._budget, self._overflow = spool, budget, overflow
        asyncio.get_running_loop().add_reader(self._read, self._take)

    def started(self) -> None:
        """The program has its end; ours is closed, so that the pipe can end."""
        os.close(self.write)

    def _take(self) -> bool:
        """Whether the pipe gave anything and may give more."""
        try:
            data = os.read(self._read, CHUNK)
        except BlockingIOError:
            return False
        kept = data[: self._budget[0]]
        self._budget[0] -= len(kept)
        if kept:
            self._spool.append(kept)
        if len(kept) < len(data):
            self._overflow()
        if not data:
            asyncio.get_running_loop().remove_reader(self._read)
        return bool(data)

    def finish(self) -> None:
        """Take what is left of an ended program."""
        while self._take():
            pass
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)


@dataclass(frozen=True)
class Launch:
    """What to run: ``command`` builds the argv from the numbers of the descriptors that it is given; ``request``
    is what one of them reads."""

    command: Callable[[Mapping[str, int]], list[str]]
    merged: bool
    stdin: bool
    request: bytes = b""


class ExecProcess:
    def __init__(self, id: str, streams: StreamLimits, timeout_ms: int) -> None:
        self._id = id
        self._timeout = timeout_ms / 1000
        ring = streams.at_cap is AtCap.RING
        stderr = streams.log_bytes if streams.stderr_bytes is None else streams.stderr_bytes
        kept = {Stream.STDOUT: streams.log_bytes, Stream.STDERR: stderr} if ring else {}
        self._spools = {stream: Spool(kept.get(stream)) for stream in Stream}
        self._logs, self._frames = [sys.maxsize if ring else streams.log_bytes], [streams.channel_bytes]
        self._errors = self._logs if streams.stderr_bytes is None or ring else [streams.stderr_bytes]
        self._verdict: tuple[Outcome, str] | None = None
        self._ended = asyncio.Event()
        self._ending = Ending(Outcome.LOST)
        self._pidfd: int | None = None

    @property
    def id(self) -> str:
        return self._id

    async def launch(self, launch: Launch) -> None:
        self._began = time.monotonic()
        self._taps = self._make_taps(launch.merged)
        report, report_end = os.pipe()
        info, info_end = os.pipe()
        leash_end, self._leash = os.pipe()
        taps = self._taps
        out, channel = taps[Stream.STDOUT].write, taps[Stream.CHANNEL].write
        error = out if launch.merged else taps[Stream.STDERR].write
        request = _readable(launch.request)
        ends = {"report": report_end, "info": info_end, "leash": leash_end, "request": request}
        numbers = {**ends, "channel": channel}
        try:
            self._bwrap = await asyncio.create_subprocess_exec(
                *launch.command(numbers),
                stdin=subprocess.PIPE if launch.stdin else subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                pass_fds=tuple(numbers.values()),
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        finally:
            for fd in ends.values():
                os.close(fd)
            for tap in taps.values():
                tap.started()
        self._task = asyncio.create_task(self._supervise(report, info))

    def _make_taps(self, merged: bool) -> dict[Stream, Tap]:
        def full() -> None:
            self._end(Outcome.OUTPUT, "it wrote more than its limit")

        budgets = {Stream.STDOUT: self._logs, Stream.STDERR: self._errors, Stream.CHANNEL: self._frames}
        if merged:
            del budgets[Stream.STDERR]
        return {stream: Tap(self._spools[stream], budget, full) for stream, budget in budgets.items()}

    async def _init(self, info: int) -> int | None:
        """A pidfd of the program's pid 1; None when it is gone already or never was."""
        with os.fdopen(info, "rb") as file:
            told = await asyncio.to_thread(file.read)
        try:
            return os.pidfd_open(json.loads(told)["child-pid"])
        except (ValueError, ProcessLookupError):
            return None

    async def _supervise(self, report: int, info: int) -> None:
        timer = asyncio.get_running_loop().call_later(self._timeout, self._end, Outcome.TIMEOUT, "")
        self._pidfd = await self._init(info)
        if self._verdict is not None:
            self._kill()
        await self._bwrap.wait()
        timer.cancel()
        for tap in self._taps.values():
            tap.finish()
        for spool in self._spools.values():
            spool.end()
        with os.fdopen(report, "rb") as file:
            told = file.read()
        self._ending = self._judge(json.loads(told) if told else {})
        self._close_inputs()
        self._ended.set()

    def _judge(self, told: Mapping[str, Any]) -> Ending:
        wall = (time.monotonic() - self._began) * 1000
        usage = Usage(cpu_ms=told.get("cpu_ms"), peak_memory_bytes=told.get("rss"), wall_ms=wall)
        if self._verdict is not None:
            outcome, reason = self._verdict
            return Ending(outcome, reason=reason or f"after {wall:.0f} ms", usage=usage)
        if "status" not in told:
            return Ending(Outcome.LOST, reason="its init ended without a report", usage=usage)
        code = os.waitstatus_to_exitcode(told["status"])
        if code < 0:
            return Ending(Outcome.SIGNAL, signal=-code, reason=f"signal {-code}", usage=usage)
        return Ending(Outcome.EXIT, code=code, usage=usage)

    def _close_inputs(self) -> None:
        os.close(self._leash)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self._bwrap.stdin is not None:
            self._bwrap.stdin.close()

    def _end(self, outcome: Outcome, reason: str) -> None:
        if self._verdict is None and not self._ended.is_set():
            self._verdict = (outcome, reason)
            self._kill()

    def _kill(self) -> None:
        """pid 1 dies and the kernel takes its whole pid namespace along before bwrap can end."""
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                return

    async def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        async for data in self._spools[stream].read(offset):
            yield data

    async def send(self, data: bytes) -> None:
        pipe = self._bwrap.stdin
        if pipe is None or pipe.is_closing() or self._ended.is_set():
            raise SandboxGone("nobody reads this standard input")
        try:
            pipe.write(data)
            await pipe.drain()
        except (BrokenPipeError, ConnectionResetError) as failure:
            raise SandboxGone("nobody reads this standard input") from failure

    async def close_stdin(self) -> None:
        if self._bwrap.stdin is not None:
            self._bwrap.stdin.close()

    async def wait(self) -> Ending:
        await self._ended.wait()
        return self._ending

    async def kill(self, reason: str = "") -> None:
        self._end(Outcome.CANCELLED, reason)

    async def discard(self) -> Usage:
        """End it and forget its output."""
        await self.kill("the sandbox is destroyed")
        ending = await self.wait()
        for spool in self._spools.values():
            spool.close()
        return ending.usage


def _readable(data: bytes) -> int:
    """A descriptor that reads ``data``, of a file without a name."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return os.dup(file.fileno())
