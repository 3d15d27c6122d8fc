"""What first words are: judged by what some server would take them for, not by what they look like."""

from __future__ import annotations

import contextlib
import http.server
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.gate.relay.first_bytes import FirstBytes, Kind, sniff
from skillyard.gate.relay.guard import Failure
from skillyard.gate.tls.guard import ACCESS_DENIED
from tests.unit.gate.hellos import hello, message, records, server_name

GET = b"GET / HTTP/1.1\r\nHost: a.x.com\r\n\r\n"
WORDS = {
    "a hello": (hello(), Kind.TLS),
    "a hello in a record of SSL 3": (b"\x16\x03\x00" + hello()[3:], Kind.TLS),
    "a hello in a record of no version": (b"\x16\x00\x00" + hello()[3:], Kind.TLS),
    "a hello in a record of version 4.1": (b"\x16\x04\x01" + hello()[3:], Kind.TLS),
    "a warning before a hello": (b"\x15\x03\x01\x00\x02\x01\x5a" + hello(), Kind.TLS),
    "an empty record before a hello": (b"\x16\x03\x01\x00\x00" + hello(), Kind.TLS),
    "a hello in single bytes": (records(message(server_name(b"a.x.com")), 1), Kind.TLS),
    "a request": (GET, Kind.HTTP),
    "an unusual method": (GET.replace(b"GET", b"M-SEARCH"), Kind.HTTP),
    "a method of many letters": (GET.replace(b"GET", b"A" * 200), Kind.HTTP),
    "small letters": (b"get / http/1.0\r\n\r\n", Kind.HTTP),
    "empty lines first": (b"\r\n\n\r\n" + GET, Kind.HTTP),
    "spaces first": (b" \t\x0b\x0c" + GET, Kind.HTTP),
    "tabs for spaces": (b"GET\t/\tHTTP/1.1\r\n", Kind.HTTP),
    "odd spaces": (b"GET\x1c/\x85HTTP/1.1\r\n", Kind.HTTP),
    "a bare CR for a space": (b"GET\r/\rHTTP/1.1\n", Kind.HTTP),
    "NUL in the line": (b"GET /\0 HTTP/1.1\r\n", Kind.HTTP),
    "high bytes in the line": (b"GET /\xff HTTP/1.1\r\n", Kind.HTTP),
    "a method that is none": (b"/ GET HTTP/1.1\r\n", Kind.HTTP),
    "HTTP/0.9": (b"GET /\r\n", Kind.HTTP),
    "a bare line feed": (b"POST / HTTP/1.1\n", Kind.HTTP),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Kind.HTTP2),
    "the PROXY protocol": (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 443\r\n" + hello(), Kind.PROXY),
    "the PROXY protocol, unknown": (b"PROXY UNKNOWN\r\n" + GET, Kind.PROXY),
    "the PROXY protocol, version 2": (b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00" + hello(), Kind.PROXY),
    "an endless line": (b"GET /" + b"x" * 70_000, Kind.HTTP),
    "endless space": (b"\r\n" * 40_000, Kind.HTTP),
    "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n", Kind.OTHER),
    "SMTP": (b"EHLO a.x.com\r\n", Kind.OTHER),
    "IMAP": (b"a1 LOGIN user pass\r\n", Kind.OTHER),
    "PostgreSQL": (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", Kind.OTHER),
    "MySQL": (b"\x20\x00\x00\x01\x85\xae\xff\x00", Kind.OTHER),
    "Redis": (b"*1\r\n$4\r\nPING\r\n", Kind.OTHER),
    "AMQP": (b"AMQP\x00\x00\x09\x01", Kind.OTHER),
    "MongoDB": (b"\x3a\x00\x00\x00\x01\x00\x00\x00", Kind.OTHER),
    "MongoDB, as long as a handshake": (b"\x16\x01\x00\x00\x07\x00\x00\x00", Kind.OTHER),
    "git": (b"0032git-upload-pack /x\0host=a.x.com\0", None),
    "MQTT": (b"\x10\x0c\x00\x04MQTT\x04", Kind.OTHER),
    "Kafka": (b"\x00\x00\x00\x16\x00\x12\x00\x03", Kind.OTHER),
    "memcached": (b"get key\r\n", Kind.OTHER),
}


@pytest.mark.parametrize("what", WORDS)
def test_words(what: str) -> None:
    said, kind = WORDS[what]
    assert sniff(said) is kind


@pytest.mark.parametrize("what", [what for what, (_, kind) in WORDS.items() if kind not in (Kind.OTHER, None)])
def test_it_is_never_decided_too_early(what: str) -> None:
    """No beginning of what a server may take for TLS or HTTP is something else."""
    said, kind = WORDS[what]
    for end in range(min(len(said), 300)):
        assert sniff(said[:end]) in (None, kind)


class _Lenient(http.server.BaseHTTPRequestHandler):
    """What the standard library's server makes of a first line."""

    def __init__(self, said: bytes) -> None:
        self.rfile, self.wfile = io.BytesIO(said), io.BytesIO()
        self.raw_requestline = self.rfile.readline(65537)
        self.client_address = ("", 0)
        self.taken = self.parse_request()

    def log_message(self, format: str, *args: object) -> None: ...


_parts = st.sampled_from([
    b"GET", b"POST", b"get", b"X", b"/", b"/x", b" ", b"\t", b"\x0b", b"\x1c", b"\x85", b"\xa0", b"\r", b"\0",
    b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"http/1.1", b"HTTP/2", b"\xff", b"a.x.com", b"=", b"\"",
])  # fmt: skip


@given(st.lists(_parts, max_size=8))
def test_no_request_of_a_lenient_server_is_something_else(parts: list[bytes]) -> None:
    said = b"".join(parts) + b"\n"
    lenient = _Lenient(said + b"\r\n")
    if lenient.taken and lenient.command.isprintable():  # there is no handler of any other method
        assert sniff(said) is Kind.HTTP


def talk(guard: FirstBytes, said: bytes) -> str | None:
    """Why it is refused, None if it is not."""
    try:
        guard.client_says(said)
    except Failure as trouble:
        return trouble.reason
    return None


@pytest.mark.parametrize("said", [GET, b"SSH-2.0-x\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"\x80\x2e\x01\x03\x01", b"\0"])
def test_port_443_is_for_tls(said: bytes) -> None:
    guard = FirstBytes("a.x.com", 443)
    assert talk(guard, said) is not None
    assert guard.over
    assert guard.for_server() == b""


@pytest.mark.parametrize("said", [hello(), b"SSH-2.0-x\r\n", b"\0", b"PRI * HTTP/2.0\r\n\r\n"])
def test_port_80_is_for_http(said: bytes) -> None:
    guard = FirstBytes("a.x.com", 80)
    assert talk(guard, said) is not None
    assert guard.over
    assert guard.for_server() == b""


def test_a_refusal_is_told_in_the_clients_own_words() -> None:
    for port, said, told in (
        (80, hello(), ACCESS_DENIED),
        (443, GET, b"HTTP/1.1 403 Forbidden\r\n"),
        (443, b"SSH-2.0-x\r\n", b""),
        (8080, b"PRI * HTTP/2.0\r\n\r\n", b""),
        (8443, hello(b"b.x.com"), ACCESS_DENIED),
    ):
        guard = FirstBytes("a.x.com", port)
        assert talk(guard, said) is not None
        assert guard.for_client().startswith(told)
        assert guard.for_server() == b""


@pytest.mark.parametrize("port", [80, 443, 22])
def test_what_is_its_port_s_passes(port: int) -> None:
    said = {80: GET, 443: hello(), 22: b"SSH-2.0-x\r\n"}[port]
    guard = FirstBytes("a.x.com", port)
    for at in range(len(said)):
        guard.client_says(said[at : at + 1])
    assert guard.for_server() == said


@pytest.mark.parametrize(
    "said",
    [
        hello(b"b.x.com"),
        GET.replace(b"a.x.com", b"b.x.com"),
        b"\r\n" + GET,
        b"\x15\x03\x01\x00\x02\x01\x5a" + hello(),
        b"PROXY UNKNOWN\r\n" + hello(),
        b"PRI * HTTP/2.0\r\n\r\n",
    ],
)
def test_other_ports_are_held_to_the_name_too(said: bytes) -> None:
    guard = FirstBytes("a.x.com", 8443)
    assert talk(guard, said) is not None
    assert guard.for_server() == b""


def test_a_server_may_speak_first() -> None:
    guard = FirstBytes("a.x.com", 25)
    guard.server_says(b"220 hello\r\n")
    assert guard.for_client() == b"220 hello\r\n"
    guard.client_says(b"EHLO x\r\n")
    assert guard.raw
    assert guard.for_server() == b"EHLO x\r\n"


def test_a_client_may_only_listen() -> None:
    guard = FirstBytes("a.x.com", 13)
    guard.client_says(b"")
    assert guard.raw
    assert talk(FirstBytes("a.x.com", 443), b"") is not None


@pytest.mark.parametrize(
    "said", [b"user", b"PING", b'{"id": 1}', b"0032git-upload-pack /x\0host=a.x.com\0", b"\n", b"\x16", b"GET", b"HTTP"]
)
def test_words_that_are_no_request_yet_pass_as_they_come(said: bytes) -> None:
    guard = FirstBytes("a.x.com", 79)
    guard.client_says(said)
    assert guard.for_server() == said
    guard.client_says(b"")
    assert guard.raw
    assert guard.for_server() == b""


@pytest.mark.parametrize("said", [b"GET /x", b"GET http://b.x.com/ HTTP/1.0", b"X / http/1", b"PROXY UNKNOWN"])
def test_what_is_a_request_once_its_line_ends_waits_and_is_refused_at_its_end(said: bytes) -> None:
    """There are servers that take the end of what is said for the end of a line."""
    guard = FirstBytes("a.x.com", 8080)
    for at in range(len(said)):
        guard.client_says(said[at : at + 1])
    passed = guard.for_server()
    assert said.startswith(passed)
    assert sniff(passed + b"\n") in (None, Kind.OTHER)
    assert talk(guard, b"") is not None
    assert guard.over
    assert guard.for_server() == b""


def test_what_becomes_a_request_after_it_began_to_pass_is_held_all_the_same() -> None:
    honest = b"POST / HTTP/1.1\r\nHost: a.x.com:8080\r\nContent-Length: 0\r\n\r\n"
    for rest, held in ((honest, False), (honest.replace(b"a.x", b"b.x"), True), (honest.replace(b"/ ", b"/\t"), True)):
        guard = FirstBytes("a.x.com", 8080)
        guard.client_says(b"POST")
        assert guard.for_server() == b"POST"
        assert (talk(guard, rest[4:]) is not None) is held
        assert guard.for_server().lower() == (b"" if held else honest[4:].lower())


@given(st.lists(_parts, max_size=8), st.integers(1, 3))
def test_what_passes_early_is_never_a_request(parts: list[bytes], size: int) -> None:
    said, guard, passed = b"".join(parts), FirstBytes("a.x.com", 8080), b""
    with contextlib.suppress(Failure):
        for at in range(0, len(said), size):
            guard.client_says(said[at : at + size])
            if guard.raw:
                break
            passed += guard.for_server()
            assert sniff(passed + b"\n") in (None, Kind.OTHER)
            if sniff(said[: at + size] + b"\n") in (None, Kind.OTHER):
                assert passed == said[: at + size]


def test_what_is_written_anew_cannot_have_begun_to_pass() -> None:
    guard = FirstBytes("a.x.com", 8080)
    guard.client_says(b"POST http://a.x.com:8080/x")
    assert talk(guard, b" HTTP/1.1\r\nHost: a.x.com:8080\r\n\r\n") is not None
    assert guard.for_client().startswith(b"HTTP/1.1 403 ")
    assert guard.for_server() == b"POST http://a.x.com:8080/x"  # not a request, whatever ends it


@pytest.mark.parametrize("port", [443, 80])
def test_nothing_passes_before_it_is_known_on_ports_of_the_web(port: int) -> None:
    guard = FirstBytes("a.x.com", port)
    guard.client_says(b"PO" if port == 80 else b"\x16")
    assert guard.for_server() == b""


@given(st.lists(st.binary(max_size=40), max_size=6), st.sampled_from([80, 443, 5432]))
def test_anything_at_all(said: list[bytes], port: int) -> None:
    guard = FirstBytes("a.x.com", port)
    passed = b""
    with contextlib.suppress(Failure):
        for data in said:
            guard.client_says(data)
            passed += guard.for_server()
            guard.server_says(data)
    assert b"".join(said).startswith(passed) or not guard.raw
