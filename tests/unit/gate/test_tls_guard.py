"""TLS on a connection for one host: the name in the ClientHello, and in the second one that a server may ask for."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillyard.gate.addresses import Host
from skillyard.gate.relay.guard import Refused
from skillyard.gate.tls.guard import ACCESS_DENIED, TlsGuard
from tests.conformance.gate.programs.authority import Authority
from tests.unit.gate.hellos import HELLO_RANDOM, extension, hello, message, records, server_name, vector

NAME = "a.x.com"
RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
NO_NAME = records(message())


def server_hello(random: bytes = HELLO_RANDOM) -> bytes:
    body = b"\x03\x03" + random + b"\x00" + b"\x13\x01" + b"\x00" + vector(2, extension(43, b"\x03\x04"))
    return records(b"\x02" + vector(3, body), version=b"\x03\x03")


RETRY = server_hello(RETRY_RANDOM)
EMPTY_CHANGE = b"\x14\x03\x03\x00\x01\x01"


def refused(guard: TlsGuard, said: bytes) -> str:
    with pytest.raises(Refused) as caught:
        guard.client_says(said)
    assert guard.over
    assert guard.for_server() == b""
    assert guard.for_client() == ACCESS_DENIED
    return caught.value.reason


def test_the_name_it_is_for() -> None:
    guard = TlsGuard(NAME)
    guard.client_says(hello(b"A.x.com")[:50])
    assert guard.for_server() == b""
    guard.client_says(hello(b"A.x.com")[50:])
    assert guard.for_server() == hello(b"A.x.com")
    guard.server_says(server_hello())
    assert guard.raw
    assert guard.for_client() == server_hello()
    guard.client_says(b"anything")
    assert guard.for_server() == b"anything"


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (NAME, hello(b"b.x.com")),
        (NAME, hello(b"x.com")),
        (NAME, hello(b"a.x.com.b.com")),
        (NAME, hello(b"a.x.com.")),
        (NAME, NO_NAME),
        (NAME, hello(b"a.x.com", extension(0xFE0D, bytes(100)))),
        (NAME, hello(b"a.x.com", server_name(b"b.x.com"))),
        (NAME, b"\x15\x03\x01\x00\x02\x01\x5a" + hello()),
        (NAME, b"GET / HTTP/1.1\r\nHost: a.x.com\r\n\r\n"),
        (ipaddress.ip_address("192.0.2.7"), hello(b"a.x.com")),
        (ipaddress.ip_address("192.0.2.7"), hello(b"192.0.2.7")),
    ],
)
def test_another_name(host: Host, said: bytes) -> None:
    refused(TlsGuard(host), said)


def test_an_address_has_no_name() -> None:
    guard = TlsGuard(ipaddress.ip_address("192.0.2.7"))
    guard.client_says(NO_NAME)
    assert guard.for_server() == NO_NAME


def test_the_second_hello_is_held_to_the_name_too() -> None:
    for before in (b"", EMPTY_CHANGE, records(bytes(50), kind=23)):
        guard = TlsGuard(NAME)
        guard.client_says(hello() + before)
        guard.server_says(RETRY)
        assert guard.for_server() == hello() + before
        assert not guard.raw
        guard.for_client()
        refused(guard, hello(b"b.x.com"))


def test_a_second_hello_in_pieces_is_not_passed_on_before_it_is_whole() -> None:
    guard = TlsGuard(NAME)
    guard.client_says(hello())
    guard.server_says(RETRY)
    guard.for_server(), guard.for_client()
    pieces = records(hello(b"b.x.com")[5:], 10)
    guard.client_says(pieces[:-1])
    assert guard.for_server() == b""
    refused(guard, pieces[-1:])


def test_nothing_goes_on_before_the_server_answered() -> None:
    """Else the second hello could be with the server before we know that it is one."""
    guard = TlsGuard(NAME)
    guard.client_says(hello())
    guard.for_server()
    assert "before the server answered" in refused(guard, hello())


def test_early_data_passes() -> None:
    early = records(bytes(100), kind=23)
    guard = TlsGuard(NAME)
    guard.client_says(hello() + early)
    assert guard.for_server() == hello() + early


@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_retry_is_seen_in_pieces(size: int) -> None:
    guard = TlsGuard(NAME)
    guard.client_says(hello())
    said = b"\x15\x03\x03\x00\x02\x01\x70" + RETRY  # after a warning: unrecognized_name
    for at in range(0, len(said), size):
        guard.server_says(said[at : at + size])
    assert guard.for_client() == said
    assert not guard.raw
    guard.for_server()
    refused(guard, hello(b"b.x.com"))


def test_both_hellos_of_a_real_client_and_server() -> None:
    names: list[str | None] = []
    client, guard = _client(NAME), TlsGuard(NAME)
    with _server(names) as server:
        _talk(client, guard, server)
    assert client.shaken
    assert server.shaken
    assert guard.raw
    assert names == [NAME, NAME]  # it was asked twice


def test_a_real_server_takes_the_name_from_the_second_hello() -> None:
    """Why the second one matters: without the guard, the server would serve another name than the first hello's."""
    names: list[str | None] = []
    with _server(names) as server:
        client = _client(NAME)
        client.shake()
        server.hear(client.said())
        client.hear(server.said())
        server.hear(client.said().replace(b"a.x.com", b"b.x.com"))
    assert names == [NAME, "b.x.com"]
    guard = TlsGuard(NAME)
    with _server([]) as server:
        client = _client(NAME)
        client.shake()
        guard.client_says(client.said())
        server.hear(guard.for_server())
        guard.server_says(server.said())
        client.hear(guard.for_client())
        refused(guard, client.said().replace(b"a.x.com", b"b.x.com"))


class _End:
    def __init__(self, context: ssl.SSLContext, name: str | None) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=name is None, server_hostname=name)
        self.shaken = False

    def shake(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.shaken = True

    def hear(self, data: bytes) -> None:
        self._in.write(data)
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLError):
            self.shake()

    def said(self) -> bytes:
        return self._out.read()


def _client(name: str) -> _End:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return _End(context, name)


@contextlib.contextmanager
def _server(names: list[str | None]) -> Iterator[_End]:
    """One that wants a key of a curve that clients do not send first, and tells which names it was asked for."""
    with tempfile.TemporaryDirectory() as directory:
        context = Authority(Path(directory)).context(NAME)
    context.set_ecdh_curve("secp384r1")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    yield _End(context, None)


def _talk(client: _End, guard: TlsGuard, server: _End) -> None:
    client.shake()
    while not (client.shaken and server.shaken):
        said = client.said(), server.said()
        assert any(said)
        for says, data in zip((guard.client_says, guard.server_says), said, strict=True):
            if data:
                says(data)
        server.hear(guard.for_server())
        client.hear(guard.for_client())
