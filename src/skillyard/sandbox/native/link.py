"""The server's connection to its keeper: questions with answers, and the endings that the keeper announces."""

from __future__ import annotations

import array
import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.sandbox.native.keeper.connection import FrameBuffer, encode
from skillyard.sandbox.native.keeper.outbox import close_all

Header = dict[str, Any]
_READ = 1 << 20
_MOST_DESCRIPTORS = 1024
"""That came before the frame that names them is whole."""
_INT = array.array("i").itemsize
_BESIDE = socket.CMSG_SPACE(253 * _INT)


class Link:
    """The server's end of a keeper's socket; it reports to three callbacks. ``on_end(header, body)`` is called for each
    ending, ``on_lost()`` once when the keeper is gone, ``on_fault(text)`` for each fault of the keeper's own that did
    not end it.

    ``sockets`` in the header of an answer are socket objects, which belong to whoever asked."""

    def __init__(
        self,
        sock: socket.socket,
        on_end: Callable[[Header, bytes], None],
        on_lost: Callable[[], None],
        on_fault: Callable[[str], None] = lambda _: None,
    ):
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._on_lost = on_lost
        self._on_fault = on_fault
        self._frames = FrameBuffer()
        self._descriptors: deque[int] = deque()
        self._out = bytearray()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[tuple[Header, bytes]]] = {}
        self._hello: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.alive = True
        self.ended = asyncio.Event()
        """Set when the connection is over: a keeper that was told to stop has ended then."""
        self._loop.add_reader(sock.fileno(), self._readable)

    async def facts(self) -> dict[str, Any]:
        """What the keeper says of its host. Raises SandboxFault when it turns us away, SandboxGone when it ended."""
        return await asyncio.shield(self._hello)

    @property
    def told(self) -> dict[str, Any]:
        """:meth:`facts`, once they have come."""
        return self._hello.result()

    def ask(self, header: Header, body: bytes = b"") -> asyncio.Future[tuple[Header, bytes]]:
        """The answer, to be awaited through :meth:`answer`."""
        number = next(self._numbers)
        header["q"] = number
        future: asyncio.Future[tuple[Header, bytes]] = self._loop.create_future()
        self._asked[number] = future
        self.tell(header, body)
        return future

    async def answer(self, header: Header, body: bytes = b"") -> tuple[Header, bytes]:
        """Ask and wait. Raises SandboxGone for what the keeper no longer has, SandboxFault for what failed."""
        got, content = await self.ask(header, body)
        if "gone" in got:
            raise SandboxGone(str(got["gone"]))
        if "error" in got:
            raise SandboxFault(str(got["error"]))
        return got, content

    def tell(self, header: Header, body: bytes = b"") -> None:
        """Send without waiting for an answer. Raises SandboxGone when the keeper is gone."""
        if not self.alive:
            raise SandboxGone("the keeper is gone")
        data = encode(header, body)
        if self._out:
            self._out += data
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lost()
            raise SandboxGone("the keeper is gone") from None
        if sent < len(data):
            self._out += data[sent:]
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def close(self) -> None:
        self._lost()

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except BlockingIOError:
            return
        except OSError:
            self._lost()
            return
        del self._out[:sent]
        if not self._out:
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            data, beside, flags, _ = self._sock.recvmsg(_READ, _BESIDE, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, beside, flags = b"", [], 0
        if beside:
            self._descriptors.extend(_descriptors(beside))
        if not data or flags & socket.MSG_CTRUNC or len(self._descriptors) > _MOST_DESCRIPTORS:
            self._lost()
            return
        try:
            frames = self._frames.feed(data)
        except ValueError:
            self._lost()
            return
        for header, body in frames:
            try:
                self._heard(header, body)
            except Exception as error:  # noqa: BLE001 - what came with it is heard all the same
                self._loop.call_exception_handler({"message": "a frame of the keeper's", "exception": error})

    def _heard(self, header: Header, body: bytes) -> None:
        if "sockets" in header:
            header["sockets"] = self._sockets(header["sockets"])
        if "a" in header:
            future = self._asked.pop(header["a"], None)
            if future is not None and not future.done():
                future.set_result((header, body))
            else:
                close_all(header.get("sockets", ()))
        elif header.get("event") == "end":
            self._on_end(header, body)
        elif header.get("event") == "fault":
            self._on_fault(str(header["text"]))
        elif header.get("event") == "hello":
            self._hello.set_result(header["facts"])
        elif header.get("event") == "refused":
            self._hello.set_exception(SandboxFault(str(header["why"])))

    def _sockets(self, count: int) -> list[socket.socket]:
        """They came before the frame was whole, in the order of the frames."""
        return [socket.socket(fileno=self._descriptors.popleft()) for _ in range(min(count, len(self._descriptors)))]

    def _lost(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        for future in self._asked.values():
            if not future.done():
                future.set_result(({"gone": "the keeper is gone"}, b""))
        self._asked.clear()
        if not self._hello.done():
            self._hello.set_exception(SandboxGone("the keeper ended before it said hello"))
            self._hello.exception()
        self.ended.set()
        self._on_lost()


def _descriptors(beside: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % _INT])
    return list(found)
