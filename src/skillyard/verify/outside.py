"""A small outside for the battery's runs: listeners on this host's loopback that answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from skillyard.config.network import NetworkSettings

ALLOWED, OTHER, DOMAIN = "allowed.verify.test", "other.verify.test", "verify.test"
PROOF = b"reached"
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\n" + PROOF


@dataclass(frozen=True, slots=True)
class Outside:
    """The ports of the listeners, and what they heard.

    The caller's skill declares ``open_port`` for :data:`ALLOWED`; ``other_port`` listens beside it, and ``datagrams``
    answers datagrams. ``heard`` grows with each connection and datagram.
    """

    open_port: int
    other_port: int
    datagrams: int
    heard: list[str]

    def rules(self) -> list[str]:
        """Returns the rules that the skill declares; no declaration opens the address among them."""
        return [f"{ALLOWED}:{self.open_port}", f"127.0.0.1:{self.open_port}"]


def opened(network: NetworkSettings) -> NetworkSettings:
    """Returns the user's settings, with the names of the battery added."""
    hosts = {**network.hosts, ALLOWED: "127.0.0.1", OTHER: "127.0.0.1"}
    return network.changed(rules=(*network.rules, f"*.{DOMAIN}:*"), hosts=hosts)


@asynccontextmanager
async def outside() -> AsyncIterator[Outside]:
    """Gives an outside that listens."""
    heard: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(10):
                heard.append("stream")
                if data := await reader.read(65536):
                    writer.write(_ANSWER if b"HTTP/" in data else PROOF + data)
                    await writer.drain()
        writer.close()

    class Datagrams(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = transport

        def datagram_received(self, _: bytes, addr: object) -> None:
            heard.append("datagram")
            self._transport.sendto(PROOF, addr)  # type: ignore[attr-defined]

    servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(2)]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0), family=socket.AF_INET)
    try:
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        yield Outside(ports[0], ports[1], transport.get_extra_info("sockname")[1], heard)
    finally:
        transport.close()
        for server in servers:
            server.close()
