"""A server that means harm: it answers each request with the bytes that it was given, whatever was asked."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

Script = Callable[[int], Iterable[bytes]]
"""The pieces of the answer to the n-th request; the connection is closed behind them."""

CRLF = b"\r\n"


class Hostile:
    """Listens on loopback. ``requests`` are the heads that came, in order."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._numbers = itertools.count()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self.requests: list[bytes] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Hostile:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        self.requests.append(_head(connection))
        for piece in self._script(next(self._numbers)):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            continue


def _head(connection: socket.socket) -> bytes:
    """Head and body of a request that says its length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.lower().split(CRLF) if line.startswith(b"content-length")]
    while len(body) < (int(lengths[0]) if lengths else 0):
        body += connection.recv(65536)
    return head


def answer(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    return CRLF.join((b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers, b"", b"")) + body


def result(value: Any) -> bytes:
    """The answer to a client's first call on its connection."""
    return answer(json.dumps({"jsonrpc": "2.0", "id": 1, "result": value}).encode())


def endless(head: bytes, piece: bytes, count: int = 4000) -> Iterator[bytes]:
    """So much that nobody should take it all."""
    yield head
    for _ in range(count):
        yield piece
