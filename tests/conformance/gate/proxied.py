"""A client of the gate's HTTP proxy, and a server behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skillyard.domain.network.session import PROXY_PORT
from tests.conformance.gate.gates import Plugged, echo


class Origin:
    """A server of HTTP/1.1 that keeps what it was told. ``answers`` are by path."""

    def __init__(self, answers: dict[str, bytes] | None = None) -> None:
        self.heard: list[bytes] = []
        self._answers = answers or {}

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await read_head(reader):
            body = await read_body(reader, head)
            self.heard.append(head + body)
            path = head.split()[1].decode()
            usual = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path.encode())
            writer.write(self._answers.get(path, usual))
            await writer.drain()
            if path == "/end":
                return
            if path == "/ws":
                await echo(reader, writer)


async def read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


async def read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return await reader.readexactly(int(length[0].split(b":")[1])) if length else b""


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, data: bytes) -> bytes:
        """The answer: its head and as much of a body as that says."""
        self.writer.write(data)
        head = await read_head(self.reader)
        return head + await read_body(self.reader, head)

    async def all(self, data: bytes = b"") -> bytes:
        """Everything until the end."""
        self.writer.write(data)
        async with asyncio.timeout(20):
            return await self.reader.read()


@asynccontextmanager
async def client(box: Plugged) -> AsyncIterator[Client]:
    reader, writer = await box.connect("127.0.0.1", PROXY_PORT)
    yield Client(reader, writer)
    writer.close()


def get(port: int, path: str = "/", name: str = "a.test", more: str = "") -> bytes:
    return f"GET http://{name}:{port}{path} HTTP/1.1\r\nHost: {name}:{port}\r\n{more}\r\n".encode()


def passed(port: int, path: str = "/", name: str = "a.test", more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\n{more}\r\n".encode()


def connect(port: int | str, name: str = "a.test") -> bytes:
    return f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n".encode()
