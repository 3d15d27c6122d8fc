"""What the door of an OpenSandbox sandbox answers to those who have its token, and to others."""

from __future__ import annotations

import hashlib
import socket
import threading

from hypothesis import given
from hypothesis import strategies as st

from skillyard.sandbox.opensandbox.http_entry import HEADER, Sandbox, Visit

TOKEN = "token-of-the-tests"
BOUND_S = 60.0
CLOSED = "Connection: close\r\n\r\n"


def told(sent: bytes) -> bytes:
    """All that a connection gets which sends this and no more."""
    ours, theirs = socket.socketpair()
    behind, maker = socket.socketpair()
    ours.settimeout(BOUND_S)
    visit = Visit(theirs, Sandbox(0, behind), hashlib.sha256(TOKEN.encode()).hexdigest())
    serving = threading.Thread(target=visit.serve)
    serving.start()
    found = b""
    try:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        while data := ours.recv(65536):
            found += data
        return found
    except ConnectionError:  # it was closed before all of it was read
        return found
    finally:
        serving.join(BOUND_S)
        for end in (ours, behind, maker):
            end.close()


def request(first: str, *more: str, token: str = TOKEN) -> bytes:
    return "\r\n".join([f"{first} HTTP/1.1", f"{HEADER}: {token}", *more, "", ""]).encode()


def test_several_requests_come_on_one_connection() -> None:
    assert told(request("GET /ready") * 3) == b"HTTP/1.1 204 -\r\n\r\n" * 3


def test_the_path_may_be_that_of_the_servers_proxy() -> None:
    assert told(request("GET /sandboxes/one/proxy/8080/ready")) == b"HTTP/1.1 204 -\r\n\r\n"


def test_nobody_enters_without_the_token() -> None:
    for first in ("GET /ready", "PUT /upload/guest", "POST /start", "PUT /channel/" + "a" * 32):
        for token in ("", "token", TOKEN + "x", hashlib.sha256(TOKEN.encode()).hexdigest()):
            assert told(request(first, token=token)) == b"HTTP/1.1 403 -\r\nContent-Length: 0\r\n\r\n"


def test_a_body_of_a_stranger_is_not_taken_for_a_request() -> None:
    inner = request("GET /ready")
    answer = told(request("POST /start", f"Content-Length: {len(inner)}", token="no") + inner).decode()
    assert answer == f"HTTP/1.1 403 -\r\nContent-Length: 0\r\n{CLOSED}"


def test_what_two_could_read_in_two_ways_is_not_answered() -> None:
    inner = request("GET /ready").decode()
    for more in (
        ("Content-Length: 0", f"Content-Length: {len(inner)}"),
        ("Transfer-Encoding: chunked",),
        ("Content-Length: -1",),
        ("Content-Length: 1_0",),
        ("content-length: x",),
    ):
        assert told(request("POST /start", *more) + inner.encode()) == b""


def test_other_ways_and_channels_before_the_start_are_not_found() -> None:
    for first in ("GET /", "DELETE /ready", "PUT /channel/" + "a" * 32, "PUT /channel/../x"):
        assert told(request(first)).startswith(b"HTTP/1.1 404 ")
    assert told(request("PUT /upload/other", "Content-Length: 1") + b"x").startswith(b"HTTP/1.1 500 ")
    assert told(request("GET /channel/" + "a" * 32 + "?from=0")).startswith(b"HTTP/1.1 410 ")


def test_a_head_without_an_end_is_not_kept() -> None:
    assert told(b"GET /ready HTTP/1.1\r\n" + b"x: y\r\n" * 100_000) == b""


@given(st.binary(max_size=300))
def test_any_bytes_get_an_answer_for_strangers_or_none(sent: bytes) -> None:
    answer = told(sent + b"\r\n\r\n")
    assert not answer or answer.startswith(b"HTTP/1.1 403 ")
