"""A connected socket, which one task reads and one writes.

Nothing is read ahead: bytes that no task asks for stay in the kernel, which slows the sender down.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

from skillyard.domain.network.address import Address
from skillyard.gate.addresses import endpoint

PIECE = 1 << 16
TURN = 1 << 20
"""Bytes after which one connection lets the others have their turn."""
_FINISH_S, _FINISH_BYTES = 2.0, 1 << 20
_RST_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER, socket(7)


class Stream:
    """Reads and writes with bounds in time.

    ``patience`` is how many seconds one read or write may wait. Every method may raise OSError, TimeoutError when
    patience ends, and the fault that :meth:`abort` was given."""

    def __init__(self, sock: socket.socket, patience: float) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # else what is said in two pieces waits for the other side's delayed ACK
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.patience = patience
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.moved = self._loop.time()
        """The time by the loop's clock at which a byte last came or went."""
        self._held = b""
        self._turn = TURN
        self._fault: Exception | None = None
        self._waits: dict[str, asyncio.Future[None]] = {}
        self._watchers: list[Callable[[], None]] = []

    @property
    def local(self) -> tuple[Address, int]:
        """Returns the address and port that the other side dialled.

        They need not be ours: the kernel may have made them so."""
        return endpoint(self.sock.getsockname())

    async def read(self, most: int = PIECE, *, patient: bool = False) -> bytes:
        """Returns the next bytes as they come, none at the end. Cancelled, it has read nothing.

        With ``patient`` it waits for ever: somebody else watches this connection."""
        if self._held:
            data, self._held = self._held[:most], self._held[most:]
            return data
        if self._turn <= 0:
            await self._let_others()
        while True:
            self._check()
            try:
                data = self.sock.recv(most)
            except (BlockingIOError, InterruptedError):
                await self._wait("read", None if patient else self.patience)
                continue
            self._turn -= len(data)
            self.moved = self._loop.time()
            self.received(len(data))
            return data

    def read_into(self, buffer: bytearray) -> int | None:
        """Returns how much came at once, 0 at the end; None when there is nothing yet."""
        self._check()
        try:
            count = self.sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None
        self.moved = self._loop.time()
        self.received(count)
        return count

    def unread(self, data: bytes) -> None:
        """Gives ``data`` back: the next read begins with it."""
        self._held = data + self._held

    def take_held(self) -> bytes:
        """Returns bytes that were given back and not read again."""
        data, self._held = self._held, b""
        return data

    async def write(self, data: bytes) -> None:
        """Writes all of ``data``; returns when the kernel has it."""
        view = memoryview(data)
        while view := view[self.write_some(view) :]:
            await self.writable()

    async def writable(self) -> None:
        """Returns when the kernel would take something."""
        await self._wait("write", self.patience)

    def write_some(self, data: bytes | memoryview) -> int:
        """Writes at once; returns how many bytes the kernel took."""
        self._check()
        room = self.sending()
        try:
            sent = self.sock.send(data if room is None else data[:room])
        except (BlockingIOError, InterruptedError):
            return 0
        self.moved = self._loop.time()
        self.sent(sent)
        return sent

    def end(self) -> None:
        """Ends writing; the other side reads the end."""
        self._check()
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes it. Waiting tasks get ConnectionAbortedError. Idempotent."""
        self.abort(ConnectionAbortedError("closed"), orderly=True)

    async def finish(self) -> None:
        """Ends what is said, reads the rest for a moment, and closes.

        Never raises; takes two seconds at most. With something unread, the kernel would send a reset, which overtakes
        what was written last."""
        with contextlib.suppress(OSError, Exception):
            async with asyncio.timeout(_FINISH_S):
                self.end()
                room = _FINISH_BYTES
                while room > 0 and (data := await self.read()):
                    room -= len(data)
        self.close()

    def reset(self) -> None:
        """Closes it so that the other side is told of an abort (RST) and not of an end."""
        self.abort(ConnectionAbortedError("reset"))

    def abort(self, fault: Exception, *, orderly: bool = False) -> None:
        """Closes it at once; tasks that read or write here get ``fault``."""
        if self.closed:
            return
        self.closed = True
        self._fault = fault
        self._held = b""
        for watcher in self._watchers:
            watcher()
        for way, wait in self._waits.items():
            (self._loop.remove_reader if way == "read" else self._loop.remove_writer)(self.sock.fileno())
            if not wait.done():
                wait.set_exception(fault)
        self._waits.clear()
        if not orderly:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        self.sock.close()

    @property
    def fault(self) -> Exception | None:
        return self._fault

    def watch(self, closed: Callable[[], None]) -> None:
        """Has ``closed`` called once, just before the socket is closed."""
        self._watchers.append(closed)

    def unwatch(self, closed: Callable[[], None]) -> None:
        self._watchers.remove(closed)

    def received(self, count: int) -> None:
        """Counts bytes in a subclass; may raise."""

    def sending(self) -> int | None:
        """Returns how many bytes may be written, None for any number. A subclass may raise."""
        return None

    def sent(self, count: int) -> None:
        """Counts bytes in a subclass."""

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault

    async def _let_others(self) -> None:
        self._turn = TURN
        await asyncio.sleep(0)

    async def _wait(self, way: str, within: float | None) -> None:
        self._turn = TURN
        wait: asyncio.Future[None] = self._loop.create_future()
        self._waits[way] = wait
        # By number: a selector that looks for a socket writes out what it is first.
        (self._loop.add_reader if way == "read" else self._loop.add_writer)(self.sock.fileno(), _wake, wait)
        timer = self._loop.call_later(within, _give_up, wait) if within is not None else None
        try:
            await wait
        finally:
            if timer is not None:
                timer.cancel()
            if self._waits.get(way) is wait:
                del self._waits[way]
                (self._loop.remove_reader if way == "read" else self._loop.remove_writer)(self.sock.fileno())


def _wake(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_result(None)


def _give_up(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_exception(TimeoutError("no byte in time"))
