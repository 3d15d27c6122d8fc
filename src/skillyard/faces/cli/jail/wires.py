"""This process's standard streams as the wires of a jail: no byte of ours is on them.

The descriptors may be shared with other programs, so their flags stay as they are. A write never blocks the loop: a
pipe is opened anew, and a socket is asked each time.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import socket
import stat
from collections.abc import Callable
from contextlib import suppress

from skillyard.domain.sandbox.spec import Stream

_PIECE = 256 * 1024
_SURE = 4096
"""Bytes that a pipe, a socket or a terminal takes at once when it says that it takes any (pipe(7))."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_NUMBERS = {Stream.STDOUT: 1, Stream.STDERR: 2}


class StandardWires:
    """The wires of this process, within ``async with``. ``signal`` is the one that asked for the end; 0 for none."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[str] = self._loop.create_future()
        self.signal = 0
        self._writers = {stream: _writer(number) for stream, number in _NUMBERS.items()}
        self._hung_up: set[int] = set()
        self._watch = select.epoll()
        self._parent = -1

    async def __aenter__(self) -> StandardWires:
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._signalled, number)
        self._watch_client()
        self._watch_parent()
        return self

    async def __aexit__(self, *_: object) -> None:
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)
        self._loop.remove_reader(self._watch.fileno())
        self._watch.close()
        if self._parent >= 0:
            self._loop.remove_reader(self._parent)
            os.close(self._parent)
        if not self.gone.done():
            self.gone.cancel()

    async def read(self) -> bytes:
        await self._ready(0, self._loop.add_reader, self._loop.remove_reader)
        try:
            return os.read(0, _PIECE)
        except OSError:  # a terminal that hung up
            return b""

    async def write(self, stream: Stream, data: bytes) -> None:
        number, view, put = _NUMBERS[stream], memoryview(data), self._writers[stream]
        while view:
            try:
                view = view[put(view) :]
            except BlockingIOError:
                await self._ready(number, self._loop.add_writer, self._loop.remove_writer)
                with suppress(BlockingIOError):
                    view = view[put(view[:_SURE]) :]

    def close(self, stream: Stream) -> None:
        """Lets go of a stream, so that its reader sees the end. Ours is silent from then on.

        Standard error stays: this command's own last word goes there, such as why it ended the program.
        """
        self._writers[stream] = _nowhere
        if stream is Stream.STDERR:
            return
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, _NUMBERS[stream])
        os.close(null)

    async def _ready(self, fd: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        """Waits until a descriptor is ready; a file always is."""
        waiting: asyncio.Future[None] = self._loop.create_future()
        try:
            add(fd, _set, waiting)
        except PermissionError:  # epoll does not take files
            return
        try:
            await waiting
        finally:
            remove(fd)

    def _signalled(self, number: signal.Signals) -> None:
        self.signal = self.signal or number
        self._end(f"{number.name} was sent to it")

    def _watch_client(self) -> None:
        """Hears when nobody writes to standard input and nobody reads standard output any more."""
        for fd in (0, 1):
            with suppress(OSError):  # a file has no other end
                self._watch.register(fd, 0)
        self._loop.add_reader(self._watch.fileno(), self._hear)

    def _hear(self) -> None:
        for fd, _ in self._watch.poll(0):
            self._hung_up.add(fd)
            self._watch.unregister(fd)
        if self._hung_up >= {0, 1}:
            self._end("its client hung up")

    def _watch_parent(self) -> None:
        """Hears of the end of the process that started this one."""
        parent = os.getppid()
        try:
            self._parent = os.pidfd_open(parent)
        except OSError:
            self._end("its client is gone")
            return
        if os.getppid() != parent:
            self._end("its client is gone")
            return
        self._loop.add_reader(self._parent, self._end, "its client is gone")

    def _end(self, reason: str) -> None:
        if self._parent >= 0:
            self._loop.remove_reader(self._parent)
        if not self.gone.done():
            self.gone.set_result(reason)


def _writer(number: int) -> Callable[[memoryview], int]:
    """Returns the way to write to a descriptor. It raises BlockingIOError rather than to wait."""
    kind = os.fstat(number).st_mode
    if stat.S_ISSOCK(kind):
        sock = socket.socket(fileno=os.dup(number))
        return lambda data: sock.send(data, socket.MSG_DONTWAIT)
    if stat.S_ISFIFO(kind):
        # Another open file description, with flags of its own; its end is ours to close, so it is made for each write.
        return lambda data: _write_to_pipe(number, data)
    if stat.S_ISREG(kind) or fcntl.fcntl(number, fcntl.F_GETFL) & os.O_NONBLOCK:
        return lambda data: os.write(number, data)
    return lambda data: os.write(number, data[:_SURE])


def _write_to_pipe(number: int, data: memoryview) -> int:
    fd = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def _set(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _nowhere(data: memoryview) -> int:
    return len(data)
