"""HTTP on a connection for one host: what is passed on is for that host and reads in one way only. Each way round is
refused, and what ordinary programs say passes."""

from __future__ import annotations

import ipaddress

import pytest

from skillyard.gate.addresses import Host
from skillyard.gate.http.guard import HttpGuard
from skillyard.gate.relay.guard import Refused
from tests.unit.gate.guarded_http import NAME, OK, SWITCHED, UPGRADE, get, post, refused, say


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
