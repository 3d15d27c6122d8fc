"""Connections to ports of a sandbox that has a network namespace of its own.

The keeper makes the socket inside that namespace and hands it to the server. So a connection costs the keeper nothing,
and nothing inside gets a descriptor or an address of the outside.
"""

from __future__ import annotations

import asyncio
import socket

from skillyard.domain.errors import InvalidInput, SandboxGone, shown
from skillyard.sandbox.native.link import Link

CONNECT_BOUND_S = 5.0
"""How long a listener inside may leave a connection in its queue."""
_AHEAD = 256 * 1024
"""Bytes that are read ahead of a slow reader."""


class SocketStream:
    """A connected socket as the port's ``ByteStream``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, most: int = 65536) -> bytes:
        try:
            return await self._reader.read(most)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (ConnectionError, RuntimeError):
            raise SandboxGone("nobody reads the connection any more") from None

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Ends both directions at once."""
        self._writer.transport.abort()


async def dial(link: Link, handle: str, port: int) -> SocketStream:
    """Connects to ``port``, by IPv4 or else by IPv6. Raises InvalidInput, SandboxGone, SandboxFault."""
    if type(port) is not int or not 1 <= port <= 65535:
        raise InvalidInput("port", "must be a number from 1 to 65535", shown(port))
    for six in (False, True):
        answer, _ = await link.answer({"op": "forward", "handle": handle, "port": port, "six": six})
        for sock in answer.get("sockets", ()):
            if await _connected(sock):
                reader, writer = await asyncio.open_connection(sock=sock, limit=_AHEAD)
                return SocketStream(reader, writer)
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
