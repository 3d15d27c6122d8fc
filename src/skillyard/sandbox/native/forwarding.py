"""Connections to ports of a sandbox that has a network namespace of its own.

The keeper makes the socket inside that namespace and hands it to the server. So a connection costs the keeper nothing,
and nothing inside gets a descriptor or an address of the outside.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from skillyard.domain.errors import InvalidInput, SandboxGone, shown
from skillyard.sandbox.native.link import Link

CONNECT_BOUND_S = 5.0
"""How long a listener inside may leave a connection in its queue."""
_TURN = 1024 * 1024
"""Bytes that pass without a wait before others get their turn."""


class SocketStream:
    """A connected socket as the port's ``ByteStream``, for one reader and one writer.

    It has no buffer of its own: what was not read is in the kernel, where :meth:`quiet` sees it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiting = self._passed = 0
        self._over = False

    async def read(self, most: int = 65536) -> bytes:
        while not self._over:
            try:
                data = self._sock.recv(most)
            except BlockingIOError:
                await self._until(self._loop.add_reader, self._loop.remove_reader)
            except OSError:
                break
            else:
                await self._take_turns(len(data))
                return data
        return b""

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                written = self._sock.send(view)
            except BlockingIOError:
                await self._until(self._loop.add_writer, self._loop.remove_writer)
            except OSError:
                raise SandboxGone("nobody reads the connection any more") from None
            else:
                view = view[written:]
                await self._take_turns(written)

    async def end(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def quiet(self) -> bool:
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return not self._over
        except OSError:
            return False
        return False

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Ends both directions at once."""
        if not self._over:
            self._over = True
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes those who wait
        self._let_go()

    async def _until(self, watch: Callable[[int, Callable[[], None]], object], leave: Callable[[int], object]) -> None:
        number, ready = self._sock.fileno(), self._loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        watch(number, wake)
        self._waiting += 1
        try:
            await ready
        finally:
            leave(number)
            self._waiting -= 1
            self._let_go()

    def _let_go(self) -> None:
        """Closes the socket, whose number the kernel gives to others then, once nobody waits for it."""
        if self._over and not self._waiting:
            self._sock.close()

    async def _take_turns(self, count: int) -> None:
        self._passed += count
        if self._passed >= _TURN:
            self._passed = 0
            await asyncio.sleep(0)


async def dial(link: Link, handle: str, port: int) -> SocketStream:
    """Connects to ``port``, by IPv4 or else by IPv6. Raises InvalidInput, SandboxGone, SandboxFault."""
    if type(port) is not int or not 1 <= port <= 65535:
        raise InvalidInput("port", "must be a number from 1 to 65535", shown(port))
    for six in (False, True):
        answer, _ = await link.answer({"op": "forward", "handle": handle, "port": port, "six": six})
        for sock in answer.get("sockets", ()):
            if await _connected(sock):
                return SocketStream(sock)
    raise InvalidInput("port", "no program of the sandbox listens there", shown(port))


async def _connected(sock: socket.socket) -> bool:
    """Waits for the connection; returns whether it stands. One that does not is closed."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(sock.fileno(), ready.set)
    try:
        async with asyncio.timeout(CONNECT_BOUND_S):
            await ready.wait()
        stands = not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) and not _itself(sock)
    except TimeoutError:
        stands = False
    except BaseException:
        loop.remove_writer(sock.fileno())
        sock.close()
        raise
    loop.remove_writer(sock.fileno())
    if not stands:
        sock.close()
    return stands


def _itself(sock: socket.socket) -> bool:
    """Whether a connection to a port without listener met its own end, as TCP allows."""
    return bool(sock.getsockname() == sock.getpeername())
