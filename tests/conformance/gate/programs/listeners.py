"""Plain listeners on one event loop in a thread: echoes, a server that speaks first, name servers, hostile ones."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from tests.conformance.gate.gates import stop_serving

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_BOUND_S = 60.0
A, AAAA, TXT = 1, 28, 16


class Listeners:
    """``names`` are what the name server knows; a list is answered in turns, one address a question. ``asked`` are the
    questions that it got, ``heard`` the connections and datagrams that others got, as ``(listener, first bytes)``."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {"ipv4only.arpa": ["192.0.0.170", "2600:64::192.0.0.170"]}
        self.asked: list[tuple[str, int]] = []
        self.heard: list[tuple[str, bytes]] = []
        self._turns: dict[tuple[str, int], int] = {}
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._transports: list[asyncio.DatagramTransport] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def tcp(self, sock: socket.socket, serve: Serve) -> None:
        """Serve connections to a bound socket."""

        async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(_BOUND_S):
                    await serve(reader, writer)
            writer.close()

        async def start() -> None:
            self._servers.append(await asyncio.start_server(guarded, sock=sock, backlog=512))

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(_BOUND_S)

    def udp(self, sock: socket.socket, answer: Callable[[bytes], bytes | None]) -> None:
        """Answer datagrams to a bound socket."""

        async def start() -> None:
            transport, _ = await self._loop.create_datagram_endpoint(lambda: _Datagrams(answer), sock=sock)
            self._transports.append(transport)

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(_BOUND_S)

    def close(self) -> None:
        async def stop() -> None:
            for server in self._servers:
                await stop_serving(server)
            for transport in self._transports:
                transport.close()
            own = asyncio.current_task()
            others = [task for task in asyncio.all_tasks() if task is not own]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(_BOUND_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = True
        while data := await reader.read(65536):
            if first:
                self.heard.append(("echo", data[:64]))
                first = False
            writer.write(data)
            await writer.drain()

    async def greeting(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speaks first, like SMTP and its kin."""
        writer.write(b"220 mail.yard.test ready\r\n")
        while line := await reader.readline():
            self.heard.append(("greeting", line))
            writer.write(b"221 bye\r\n" if line.startswith(b"QUIT") else b"250 as you say\r\n")
            if line.startswith(b"QUIT"):
                return

    def echo_datagram(self, data: bytes) -> bytes:
        self.heard.append(("udp", data[:64]))
        return data

    def resolve(self, packet: bytes) -> bytes | None:
        """A name server's answer (RFC 1035 §4): an address, no data, or NXDOMAIN."""
        if len(packet) < 17:
            return None
        name, end = _name_at(packet, 12)
        kind = struct.unpack_from("!H", packet, end)[0]
        self.asked.append((name, kind))
        records = self._records(name.lower(), kind)
        code = 0 if name.lower() in self.names else 3
        head = packet[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(records), 0, 0)
        return head + packet[12 : end + 4] + b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(data)) + data
                                                      for data in records)  # fmt: skip

    async def resolve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size = struct.unpack("!H", await reader.readexactly(2))[0]
            answer = self.resolve(await reader.readexactly(size)) or b""
            writer.write(struct.pack("!H", len(answer)) + answer)
            await writer.drain()

    def _records(self, name: str, kind: int) -> list[bytes]:
        version = {A: 4, AAAA: 6}.get(kind)
        known = [ipaddress.ip_address(text) for text in self.names.get(name, ())]
        fitting = [address.packed for address in known if address.version == version]
        if not fitting:
            return []
        turn = self._turns.get((name, kind), 0)
        self._turns[name, kind] = turn + 1
        return [fitting[min(turn, len(fitting) - 1)]]


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, answer: Callable[[bytes], bytes | None]) -> None:
        self._answer = answer

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if (said := self._answer(data)) is not None:
            self._transport.sendto(said, addr)


def _name_at(packet: bytes, at: int) -> tuple[str, int]:
    labels = []
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode("latin-1"))
        at += 1 + packet[at]
    return ".".join(labels), at + 1


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass


async def _garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"\x00\xffnot what you asked for\n" * 8)


async def _endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"y" * 1000 + b"\r\n")
        await writer.drain()


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    for byte in b"HTTP/1.1 200 OK\r\nx-slow: " + b"y" * 4000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.1)


async def _cut_short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nonly this")


async def _huge_chunk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nx")
    while await reader.read(65536):
        pass


async def _flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends as fast as it is taken, for ever."""
    await reader.read(1)
    while True:
        writer.write(b"z" * 65536)
        await writer.drain()


HOSTILE: Mapping[str, Serve] = {
    "reset": _reset, "silent": _silent, "garbage": _garbage, "endless_headers": _endless_headers, "drip": _drip,
    "cut_short": _cut_short, "huge_chunk": _huge_chunk, "flood": _flood,
}  # fmt: skip
