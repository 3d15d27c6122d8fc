"""HTTP on a connection for one host: what is passed on is for that host and reads in one way only. Each way round is
refused, and what ordinary programs say passes."""

from __future__ import annotations

import contextlib
import ipaddress
import time

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillyard.egress.host_port import Host, parse_host_port
from skillyard.egress.http_guard import HttpGuard
from skillyard.egress.http_head import MOST_HEAD
from skillyard.egress.trouble import Refused, Trouble, Unreachable

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


# ---- what passes


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        (NAME, 80, b"a.x.com"),
        (NAME, 80, b"A.X.com"),
        (NAME, 80, b"a.x.com:80"),
        (NAME, 8080, b"a.x.com:8080"),
        (ipaddress.ip_address("93.184.216.34"), 80, b"93.184.216.34"),
        (ipaddress.ip_address("2001:4860::1"), 8080, b"[2001:4860:0::1]:8080"),
    ],
)
def test_the_host_it_is_for(host: Host, port: int, said: bytes) -> None:
    guard = HttpGuard(host, port)
    guard.client_says(get(said))
    assert guard.for_server() == get(said)
    guard.server_says(OK)
    assert guard.for_client() == OK
    assert not guard.over


def test_one_request_after_the_other() -> None:
    guard = HttpGuard(NAME, 80)
    for at in range(3):
        said = post(b"Content-Length: 3\r\nX-At: %d\r\n" % at, b"abc")
        guard.client_says(said)
        assert guard.for_server() == said
        guard.server_says(OK)
        assert guard.for_client() == OK


def test_an_absolute_target_becomes_a_path() -> None:
    for target, path in ((b"http://a.x.com/p?q", b"/p?q"), (b"HTTP://A.x.com:80?q", b"/?q"), (b"http://a.x.com", b"/")):
        guard = HttpGuard(NAME, 80)
        guard.client_says(get(target=target))
        assert guard.for_server() == get(target=path)


def test_what_was_sent_ahead_waits_for_its_turn() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(get(target=b"/1") + get(target=b"/2"))
    assert guard.for_server() == get(target=b"/1")
    guard.server_says(OK)
    assert (guard.for_client(), guard.for_server()) == (OK, get(target=b"/2"))
    guard.server_says(OK)
    assert guard.for_client() == OK


def test_chunks_are_written_anew() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(post(b"Transfer-Encoding: chunked\r\n", b'03;ext="x"\r\nabc\r\n000\r\nX-Sum: 1\r\n\r\n'))
    assert guard.for_server() == post(b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n")
    guard.server_says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    assert guard.for_client() == b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


def test_an_answer_may_come_before_the_question_ends() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(post(b"Content-Length: 4\r\nExpect: 100-continue\r\n", b""))
    assert guard.for_server()
    guard.server_says(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert guard.for_client() == b"HTTP/1.1 100 Continue\r\n\r\n"
    guard.client_says(b"ab")
    guard.server_says(OK)
    assert guard.for_client() == OK
    guard.client_says(b"cd" + get())
    assert guard.for_server() == b"abcd" + get()


def test_an_answer_until_the_end() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(b"GET / HTTP/1.0\r\nHost: a.x.com\r\n\r\n")
    assert guard.for_server() == get()
    guard.server_says(b"HTTP/1.0 200 OK\r\n\r\nall ")
    guard.server_says(b"of it")
    guard.server_says(b"")
    assert guard.for_client() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it"
    assert guard.over


def test_a_websocket_is_raw_once_the_server_agrees() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(UPGRADE + b"\x81\x05early")
    assert guard.for_server() == UPGRADE
    guard.server_says(SWITCHED + b"\x81\x05first")
    assert guard.raw
    assert guard.for_client() == SWITCHED + b"\x81\x05first"
    assert guard.for_server() == b"\x81\x05early"
    guard.client_says(b"\x00GET / HTTP/1.1\r\n")
    assert guard.for_server() == b"\x00GET / HTTP/1.1\r\n"


def test_a_head_answer_has_no_body() -> None:
    guard = HttpGuard(NAME, 80)
    guard.client_says(b"HEAD / HTTP/1.1\r\nHost: a.x.com\r\n\r\n")
    guard.server_says(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
    assert guard.for_client() == b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
    guard.client_says(get())
    assert guard.for_server().endswith(get())


# ---- other hosts

WRONG_HOSTS = [
    b"b.x.com", b"x.com", b"a.x.com.", b"a.x.com:", b"a.x.com:443", b"a.x.com:+80", b"a.x.com:080", b"a.x.com:65616",
    b"a.x.com:80 ", b"a.x.com:8o", b"a.x.com:80:80", b"user@a.x.com", b"a.x.com@b.x.com", b"b.x.com@a.x.com",
    b"a.x.com, b.x.com", b"a.x.com b.x.com", b"a.x.com/", b"a.x.com#b", b"a.x.com?b", b"a.x.com\\b", b"a%2ex.com",
    b"\xc3\xa4.x.com", b"xn--4ca.x.com", b"", b"*", b"[a.x.com]", b"127.0.0.1", b"0x7f.1", b"2130706433", b"127.1",
    b"[::1]", b"[::ffff:127.0.0.1]", b"[fe80::1%25eth0]", b"[fe80::1%eth0]", b"a.x.com\t.b", b"http://a.x.com",
]  # fmt: skip


@pytest.mark.parametrize("said", [host for host in WRONG_HOSTS if host.rstrip() != b"a.x.com:80"])
def test_another_host(said: bytes) -> None:
    refused(get(said))


@pytest.mark.parametrize("said", [b"192.0.2.07", b"192.0.2.7.", b"0xc0000207", b"3221225991", b"192.0.519", b"a.x.com"])
def test_another_form_of_an_address(said: bytes) -> None:
    refused(get(said), ipaddress.ip_address("192.0.2.7"))


@pytest.mark.parametrize("said", [b"a.x.com", b"a.x.com:80", b"a.x.com:8081", b"a.x.com:08080", b"a.x.com:73616"])
def test_another_port(said: bytes) -> None:
    refused(get(said), NAME, 8080)


@pytest.mark.parametrize(
    "target",
    [
        b"http://b.x.com/", b"http://a.x.com:81/", b"http://user@a.x.com/", b"http://a.x.com@b.x.com/",
        b"http://a.x.com:80@b.x.com/", b"https://a.x.com/", b"ftp://a.x.com/", b"http:/a.x.com/", b"http:a.x.com",
        b"http:///", b"http://a.x.com\\@b.x.com/", b"http://a.x.com#@b.x.com/", b"http://a.x.com./", b"a.x.com", b"*",
        b"a.x.com:80", b"/#x", b"http://[::1]/", b"http://2130706433/", b"http://a.x.com:65616/", b"http://a.x.com:/",
    ],
)  # fmt: skip
def test_another_target(target: bytes) -> None:
    refused(get(target=target))


def test_an_absolute_target_and_another_host() -> None:
    refused(get(b"b.x.com", target=b"http://a.x.com/"))


def test_the_second_request_to_another_host() -> None:
    """Neither ahead, nor after, nor hidden behind a body."""
    for before in (get(), post(b"Content-Length: 2\r\n", b"hi"), post(b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n")):
        guard = HttpGuard(NAME, 80)
        guard.client_says(before + get(b"b.x.com"))
        assert b"b.x.com" not in guard.for_server()
        with pytest.raises(Refused, match=r"b\.x\.com"):
            guard.server_says(OK)
        assert guard.for_server() == b""
        told = guard.for_client()
        assert told.startswith(OK + b"HTTP/1.1 403 ")
        guard = HttpGuard(NAME, 80)
        guard.client_says(before)
        guard.server_says(OK)
        guard.for_server()
        with pytest.raises(Refused):
            guard.client_says(get(b"b.x.com"))
        assert guard.for_server() == b""


# ---- what two parsers could read differently

SMUGGLED = {
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "no host, 1.0": b"GET / HTTP/1.0\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a.x.com\r\nHost: b.x.com\r\n\r\n",
    "the same host twice": b"GET / HTTP/1.1\r\nHost: a.x.com\r\nhost: a.x.com\r\n\r\n",
    "both framings": post(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    "both framings the other way": post(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"),
    "two lengths": post(b"Content-Length: 1\r\nContent-Length: 2\r\n", b"ab"),
    "the same length twice": post(b"Content-Length: 2\r\nContent-Length: 2\r\n", b"ab"),
    "a list of lengths": post(b"Content-Length: 2, 3\r\n", b"ab"),
    "a signed length": post(b"Content-Length: +2\r\n", b"ab"),
    "a negative length": post(b"Content-Length: -2\r\n", b"ab"),
    "a hexadecimal length": post(b"Content-Length: 0x2\r\n", b"ab"),
    "a length with a space": post(b"Content-Length: 2 2\r\n", b"ab"),
    "an endless length": post(b"Content-Length: " + b"9" * 30 + b"\r\n", b"ab"),
    "two encodings": post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", b"0\r\n\r\n"),
    "an encoding before chunked": post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
    "an unknown encoding": post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
    "a quoted encoding": post(b'Transfer-Encoding: "chunked"\r\n', b"0\r\n\r\n"),
    "an encoding with a vertical tab": post(b"Transfer-Encoding:\x0bchunked\r\n", b"0\r\n\r\n"),
    "chunks in 1.0": b"POST / HTTP/1.0\r\nHost: a.x.com\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": post(b"Content-Length : 2\r\n", b"ab"),
    "a tab before the colon": post(b"Transfer-Encoding\t: chunked\r\n", b"0\r\n\r\n"),
    "a fold": post(b"X: y\r\n Host: b.x.com\r\n", b""),
    "a fold of the host": b"GET / HTTP/1.1\r\nHost: a.x.com\r\n\tb.x.com\r\n\r\n",
    "a first line that is folded": b"GET / HTTP/1.1\r\n Host: a.x.com\r\n\r\n",
    "a line without a colon": post(b"X\r\n", b""),
    "an empty field name": post(b": y\r\n", b""),
    "a field name with a space": post(b"X Y: z\r\n", b""),
    "NUL in a value": post(b"X: a\0b\r\n", b""),
    "NUL in the target": get(target=b"/a\0b"),
    "a bare CR in a value": post(b"X: a\rHost: b.x.com\r\n", b""),
    "a bare CR at an end": b"GET / HTTP/1.1\rHost: a.x.com\r\n\r\n",
    "bare LFs": b"GET / HTTP/1.1\nHost: a.x.com\n\n",
    "one bare LF": b"GET / HTTP/1.1\r\nHost: a.x.com\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare LF at the end": b"GET / HTTP/1.1\r\nHost: a.x.com\r\n\n",
    "CR CR LF": b"GET / HTTP/1.1\r\nHost: a.x.com\r\r\n\r\n",
    "an empty line first": b"\r\n" + get(),
    "a space first": b" " + get(),
    "two spaces in the first line": b"GET  / HTTP/1.1\r\nHost: a.x.com\r\n\r\n",
    "a tab in the first line": b"GET\t/ HTTP/1.1\r\nHost: a.x.com\r\n\r\n",
    "a space after the version": b"GET / HTTP/1.1 \r\nHost: a.x.com\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nHost: a.x.com\r\n\r\n",
    "another version": b"GET / HTTP/1.2\r\nHost: a.x.com\r\n\r\n",
    "a version in small letters": b"GET / http/1.1\r\nHost: a.x.com\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": b"CONNECT b.x.com:443 HTTP/1.1\r\nHost: a.x.com\r\n\r\n",
    "CONNECT to the host": b"CONNECT a.x.com:80 HTTP/1.1\r\nHost: a.x.com\r\n\r\n",
    "CONNECT of a path": get().replace(b"GET", b"CONNECT"),
    "CONNECT of an address": get(target=b"http://a.x.com/").replace(b"GET", b"connect"),
    "connect in small letters": b"connect a.x.com:80 HTTP/1.1\r\nHost: a.x.com\r\n\r\n",
    "h2c": get(more=b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"),
    "another upgrade": get(more=b"Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n"),
    "two upgrades": get(more=b"Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n"),
    "an upgrade in two fields": UPGRADE[:-2] + b"Upgrade: h2c\r\n\r\n",
    "an upgrade dressed as a websocket": UPGRADE.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
    "a websocket and more": UPGRADE.replace(b"Upgrade: websocket", b"Upgrade: websocket, h2c"),
    "a websocket with POST": UPGRADE.replace(b"GET", b"POST"),
    "a websocket in 1.0": UPGRADE.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a websocket of another version": UPGRADE.replace(b"Version: 13", b"Version: 777"),
    "a websocket without a key": UPGRADE.replace(b"Sec-WebSocket-Key", b"X-Key"),
    "a websocket with a body": UPGRADE[:-2] + b"Content-Length: 5\r\n\r\nhello",
    "a websocket without its connection": UPGRADE.replace(b"Connection: Upgrade", b"Connection: close"),
    "a host that is for one hop": get(more=b"Connection: close, Host\r\n"),
    "a length that is for one hop": post(b"Connection: content-length\r\nContent-Length: 2\r\n", b"ab"),
    "another alphabet in a name": post("ß: y\r\n".encode(), b""),
}  # fmt: skip


@pytest.mark.parametrize("what", SMUGGLED)
def test_smuggling(what: str) -> None:
    refused(SMUGGLED[what])


@pytest.mark.parametrize(
    "body",
    [
        b"g\r\n", b"-1\r\nx\r\n", b"0x1\r\nx\r\n", b"1 1\r\nx\r\n", b" 1\r\nx\r\n", b"1\nx\r\n", b"+1\r\nx\r\n",
        b";x\r\n",
        b"F" * 21 + b"\r\n", b"1\r\nxy\r\n0\r\n\r\n", b"2;\nxx\r\n2\r\nab\r\n0\r\n\r\n", b"1\r\nx\n\n0\r\n\r\n",
        b"\r\n",
        b"0\r\nHost: b.x.com\r\n\r\n", b"0\r\nContent-Length: 3\r\n\r\n", b"0\r\nTransfer-Encoding: x\r\n\r\n",
        b"0\r\n bad\r\n\r\n", b"0\r\nAuthorization: x\r\n\r\n",
    ],
)  # fmt: skip
def test_malformed_chunks(body: bytes) -> None:
    guard = HttpGuard(NAME, 80)
    with pytest.raises(Refused):
        guard.client_says(post(b"Transfer-Encoding: chunked\r\n", body))
    assert guard.for_server() == b""
    assert guard.for_client().startswith(b"HTTP/1.1 403 ")


def test_what_is_refused_is_refused_in_pieces() -> None:
    for said in (*SMUGGLED.values(), get(b"b.x.com")):
        guard = HttpGuard(NAME, 80)
        with pytest.raises(Refused):
            say(guard, *(said[at : at + 1] for at in range(len(said))))
        assert b"b.x.com" not in guard.for_server()


# ---- servers


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


# ---- bounds


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


def test_a_head_of_single_bytes_costs_little() -> None:
    said = get(more=b"".join(b"X-%d: %s\r\n" % (at, b"y" * 240) for at in range(200)))
    started = time.process_time()
    whole = HttpGuard(NAME, 80)
    whole.client_says(said)
    assert whole.for_server() == said
    started, at_once = time.process_time(), time.process_time() - started
    guard = HttpGuard(NAME, 80)
    for at in range(len(said)):
        guard.client_says(said[at : at + 1])
    assert guard.for_server() == said
    assert time.process_time() - started < 500 * at_once + 2


# ---- properties

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


@settings(deadline=None, max_examples=300)
@given(st.lists(_requests, max_size=3), st.integers(1, 60))
def test_whatever_is_passed_on_is_for_the_host(requests: list[bytes], step: int) -> None:
    """Read again by another parser, every request on the server's side names the one host."""
    said = b"".join(requests)
    guard = HttpGuard(NAME, 80)
    passed = bytearray()
    with contextlib.suppress(Trouble):
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


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_anything_at_all(client: bytes, server: bytes) -> None:
    guard = HttpGuard(NAME, 80)
    with contextlib.suppress(Trouble):
        guard.client_says(client)
        guard.client_says(get())
        guard.server_says(server)
        say(guard, client)
