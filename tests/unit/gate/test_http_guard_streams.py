"""HTTP on a connection for one host, as it streams: what servers say, how much is held, and properties of it all."""

from __future__ import annotations

import contextlib

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.gate.addresses import parse_host_port
from skillyard.gate.http.guard import HttpGuard
from skillyard.gate.http.head import MOST_HEAD
from skillyard.gate.relay.guard import Failure, Refused, Unreachable
from tests.unit.gate.guarded_http import NAME, OK, SWITCHED, answer, get, post, say


def test_a_server_that_speaks_unasked() -> None:
    guard = HttpGuard(NAME, 80)
    guard.server_says(OK)
    assert guard.over
    assert guard.for_client() == b""


def test_more_than_one_answer_ends_the_connection() -> None:
    """So that no answer is taken for that of a request that was not judged."""
    guard = HttpGuard(NAME, 80)
    guard.client_says(get() + get())
    guard.server_says(OK + SWITCHED)
    assert guard.for_client() == OK
    assert guard.over
    assert not guard.raw


def test_a_switch_that_nobody_asked_for() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(get())
    with pytest.raises(Unreachable):
        guard.server_says(SWITCHED)
    assert not guard.raw
    assert guard.for_client().startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 2000 x\r\n\r\n", b"HTTP/1.1 200 OK\r\nX\r\n\r\n"])
def test_what_is_no_answer(said: bytes) -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(get())
    with pytest.raises(Unreachable):
        guard.server_says(said)
    assert guard.for_client().startswith(b"HTTP/1.1 502 ")


def test_an_answer_that_is_cut_off_is_not_made_whole() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(get())
    with pytest.raises(Unreachable):
        answer(guard, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", b"")
    assert guard.over
    assert not guard.for_client().endswith(b"0\r\n\r\n")


def test_an_endless_head() -> None:
    guard = HttpGuard(NAME, 80)
    with pytest.raises(Refused, match="too long"):
        say(guard, b"GET / HTTP/1.1\r\nX: ", *[b"y" * (MOST_HEAD // 50)] * 100)
    with pytest.raises(Refused):
        HttpGuard(NAME, 80).client_says(get(more=b"a: b\r\n" * 1000))


def test_a_client_that_sends_ahead_is_not_read() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(get())
    sent = 0
    while guard.wants_client:
        guard.client_says(get() * 100)
        sent += len(get()) * 100
        assert sent < 1 << 20
    guard.server_says(OK)


def test_bodies_stream() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(post(b"Content-Length: %d\r\n" % (64 << 20), b""))
    guard.for_server()
    piece = b"x" * (1 << 16)
    for _ in range(1 << 10):
        guard.client_says(piece)
        assert len(guard.for_server()) == len(piece)
    guard.server_says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 << 20))
    guard.for_client()
    for _ in range(1 << 10):
        guard.server_says(piece)
        assert len(guard.for_client()) == len(piece)
    assert not guard.over


def test_tiny_chunks_take_turns() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(post(b"Transfer-Encoding: chunked\r\n", b""))
    guard.for_server()
    guard.client_says(b"1\r\nx\r\n" * 1000)
    turns = 1
    passed = len(guard.for_server())
    while guard.busy:
        guard.go_on()
        turns += 1
        passed += len(guard.for_server())
    assert passed == 6000
    assert turns > 10


def test_a_head_of_single_bytes() -> None:
    said = get(more=b"".join(b"X-%d: %s\r\n" % (at, b"y" * 240) for at in range(20)))
    guard = HttpGuard(NAME, 80)
    for at in range(len(said)):
        guard.client_says(said[at : at + 1])
    assert guard.for_server() == said


_lines = st.lists(
    st.sampled_from([
        b"Host: a.x.com\r\n", b"Host: b.x.com\r\n", b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"X: y\r\n",
        b"Transfer-Encoding: chunked\r\n", b" fold\r\n", b"Connection: keep-alive\r\n", b"Y: z\n",
        b"Expect: 100-continue\r\n",
        b"Transfer-Encoding:\tchunked \r\n", b"Content-Length:\t3\r\n",
    ]),
    max_size=5,
)  # fmt: skip
_bodies = st.sampled_from(
    [b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"0\r\n\r\n", b"0\r\n\r\nGET /s HTTP/1.1\r\nHost: b.x.com\r\n\r\n"]
)
_requests = st.builds(
    lambda line, fields, body: line + b"".join(fields) + b"\r\n" + body,
    st.sampled_from(
        [b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\n", b"GET http://a.x.com/ HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n"]
    ),
    _lines,
    _bodies,
)


@given(st.lists(_requests, max_size=3), st.integers(1, 60))
def test_whatever_is_passed_on_is_for_the_host(requests: list[bytes], step: int) -> None:
    """Read again by another parser, every request on the server's side names the one host."""
    said = b"".join(requests)
    guard = HttpGuard(NAME, 80)
    passed = bytearray()
    with contextlib.suppress(Failure):
        for at in range(0, len(said), step):
            if guard.over:
                break
            guard.client_says(said[at : at + step])
            passed += guard.for_server()
            guard.server_says(OK) if guard.asked else None
            passed += guard.for_server()
    server = h11.Connection(h11.SERVER)
    server.receive_data(bytes(passed))
    while True:
        event = server.next_event()
        if isinstance(event, h11.Request):
            hosts = [value for name, value in event.headers if name == b"host"]
            assert len(hosts) == 1
            assert parse_host_port(hosts[0].decode(), 80) == (NAME, 80)
        elif event is h11.PAUSED:
            server.send(h11.Response(status_code=200, headers=[]))
            server.send(h11.EndOfMessage())
            if server.our_state is not h11.DONE:
                break
            server.start_next_cycle()
        elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
            break


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_anything_at_all(client: bytes, server: bytes) -> None:
    guard = HttpGuard(NAME, 80)
    with contextlib.suppress(Failure):
        guard.client_says(client)
        guard.client_says(get())
        guard.server_says(server)
        say(guard, client)
