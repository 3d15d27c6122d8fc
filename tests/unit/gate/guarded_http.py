"""What clients and servers say to a guard of HTTP, and how a refusal must look."""

from __future__ import annotations

import pytest

from skillyard.gate.addresses import Host
from skillyard.gate.http.guard import HttpGuard
from skillyard.gate.relay.guard import Refused

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NAME = "a.x.com"
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: a.x.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


def get(host: bytes = b"a.x.com", target: bytes = b"/", more: bytes = b"") -> bytes:
    return b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n" + more + b"\r\n"


def post(more: bytes, body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a.x.com\r\n" + more + b"\r\n" + body


def say(guard: HttpGuard, *said: bytes) -> None:
    for data in said:
        guard.client_says(data)
        while guard.busy:
            guard.go_on()


def answer(guard: HttpGuard, *said: bytes) -> None:
    for data in said:
        guard.server_says(data)


def refused(said: bytes, host: Host = NAME, port: int = 80) -> str:
    """Why the guard refuses ``said``; asserts that the server hears nothing of it and the client a 403."""
    guard = HttpGuard(host, port)
    with pytest.raises(Refused) as caught:
        say(guard, said)
    assert guard.over
    assert guard.for_server() == b""
    told = guard.for_client()
    assert told.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert told.endswith(b"\n")
    assert told.partition(b"\r\n\r\n")[2].count(b"\n") == 1
    return caught.value.reason
