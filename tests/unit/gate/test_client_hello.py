"""ClientHellos: those of real programs are read, however they are cut up; what two readers could read differently is
malformed; nothing hostile costs more than its bytes."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.gate.tls.client_hello import MOST, Hello, HelloReader, Malformed
from tests.unit.gate import hellos
from tests.unit.gate.hellos import alpn, extension, hello, message, records, server_name, vector

PYTHONS = hellos.of_python("a.x.com", ["h2"])


def read(data: bytes, cuts: list[int] | None = None) -> Hello | None:
    reader, start = HelloReader(), 0
    for end in [*(cuts or []), len(data)]:
        if (found := reader.feed(data[start:end])) is not None:
            return found
        start = end
    return None


def test_pythons() -> None:
    assert read(hellos.of_python("a.x.com", ["h2", "http/1.1"])) == Hello("a.x.com", (b"h2", b"http/1.1"), False)


@pytest.mark.parametrize(
    ("program", "name", "protocols"),
    [
        (["curl", "-s", "--resolve", "a.x.com:{port}:127.0.0.1", "https://a.x.com:{port}/"], "a.x.com", b"http/1.1"),
        (["openssl", "s_client", "-connect", "127.0.0.1:{port}", "-servername", "B.x.com"], "b.x.com", None),
        (["openssl", "s_client", "-connect", "127.0.0.1:{port}", "-noservername", "-tls1_2"], None, None),
    ],
    ids=["curl", "openssl", "openssl-without-a-name"],
)
def test_programs(program: list[str], name: str | None, protocols: bytes | None) -> None:
    if shutil.which(program[0]) is None:
        pytest.skip(f"there is no {program[0]}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        port = str(server.getsockname()[1])
        command = [part.replace("{port}", port) for part in program]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(20)
                reader, found = HelloReader(), None
                while found is None:
                    data = connection.recv(100)
                    assert data
                    found = reader.feed(data)
        finally:
            process.kill()
            process.wait()
    assert found.name == name
    assert not found.encrypted
    assert protocols is None or protocols in found.alpn


@given(
    st.lists(st.integers(0, 700), max_size=8).map(sorted),
    st.integers(1, 300),
    st.sampled_from([PYTHONS[5:], message(server_name(b"a.x.com"), alpn(b"h2"))]),
)
def test_segments_and_records_make_no_difference(cuts: list[int], size: int, said: bytes) -> None:
    assert read(records(said, size), cuts) == Hello("a.x.com", (b"h2",), False)


@given(st.integers(0, 600))
def test_a_part_is_never_taken_for_the_whole(most: int) -> None:
    whole = PYTHONS
    assert read(whole[: min(most, len(whole) - 1)]) is None


def test_what_follows_is_kept() -> None:
    reader = HelloReader()
    assert reader.feed(hello() + b"\x14\x03\x03\x00\x01\x01and more") is not None
    assert reader.rest() == b"\x14\x03\x03\x00\x01\x01and more"


@pytest.mark.parametrize("kind", [0xFE0D, 0xFD00, 0xFFCE])
def test_an_encrypted_hello_is_seen(kind: int) -> None:
    assert read(hello(b"a.x.com", extension(kind, b"\x00" * 40))) == Hello("a.x.com", (), True)


def test_none_of_it_need_be_said() -> None:
    assert read(records(message())) == Hello(None, (), False)
    assert read(records(message(extension(43, b"\x02\x03\x04")))) == Hello(None, (), False)


MALFORMED = {
    "two names": hello(None, extension(0, vector(2, b"\0" + vector(2, b"a.x.com") + b"\0" + vector(2, b"b.x.com")))),
    "two server name extensions": hello(b"a.x.com", server_name(b"b.x.com")),
    "a name of another type first": hello(None, extension(0, vector(2, b"\1" + vector(2, b"x") + b"\0\0\1y"))),
    "an empty name": hello(b""),
    "an empty list of names": hello(None, extension(0, vector(2, b""))),
    "an empty server name extension": hello(None, extension(0, b"")),
    "bytes after the name": hello(None, extension(0, vector(2, b"\0" + vector(2, b"a.x.com")) + b"\0")),
    "a trailing dot": hello(b"a.x.com."),
    "an address": hello(b"127.0.0.1"),
    "an odd address": hello(b"0x7f.1"),
    "IPv6": hello(b"::1"),
    "NUL in the name": hello(b"a.x.com\0.y.com"),
    "another alphabet": hello("ä.x.com".encode()),
    "a port": hello(b"a.x.com:443"),
    "a space": hello(b"a.x.com "),
    "a name that is too long": hello(b".".join([b"a" * 63] * 5)),
    "half a cipher suite": records(b"\1" + vector(3, b"\3\3" + bytes(32) + b"\0" + vector(2, b"abc") + b"\1\0")),
    "no compression method": records(b"\1" + vector(3, b"\3\3" + bytes(32) + b"\0" + vector(2, b"ab") + b"\0")),
    "a long session id": records(message(session=bytes(33))),
    "another version": records(message(server_name(b"a.x.com"), version=b"\4\0")),
    "SSLv2": b"\x80\x2e\x01\x03\x01" + bytes(60),
    "an alert first": records(b"\1\0", kind=21) + hello(),
    "an empty record first": b"\x16\x03\x01\x00\x00" + hello(),
    "another message": records(b"\2" + message(server_name(b"a.x.com"))[1:]),
    "two hellos in one record": records(message(server_name(b"a.x.com")) + message(server_name(b"b.x.com"))),
    "more in the record of one without extensions": records(message() + vector(2, b"")),
    "extensions that are cut off": records(
        b"\1"
        + vector(3, b"\3\3" + bytes(32) + b"\0" + vector(2, b"ab") + b"\1\0" + b"\0\x20" + server_name(b"a.x.com"))
    ),
    "bytes after the extensions": records(
        b"\1" + vector(3, b"\3\3" + bytes(32) + b"\0" + vector(2, b"ab") + b"\1\0" + vector(2, b"") + b"x")
    ),
    "an empty protocol": hello(b"a.x.com", extension(16, vector(2, b"\0"))),
    "HTTP": b"GET / HTTP/1.1\r\nHost: a.x.com\r\n\r\n",
    "a record of another major version": b"\x16\x02\x01" + hello()[3:],
    "a record that is too long": b"\x16\x03\x01\xff\xff" + bytes(10),
    "a message that is too long": records(b"\1\xff\xff\xff" + bytes(100)),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed(what: str) -> None:
    with pytest.raises(Malformed) as caught:
        read(MALFORMED[what])
    assert "x.com" not in caught.value.reason
    with pytest.raises(Malformed):
        read(MALFORMED[what], list(range(1, min(len(MALFORMED[what]), 300))))


@given(st.binary(max_size=400))
def test_anything_at_all(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        read(data)


@given(st.data())
def test_a_changed_hello_says_nothing_else_in_silence(data: st.DataObject) -> None:
    """Whatever is changed, what comes out is a name in canonical form or none."""
    said = bytearray(hello(b"a.x.com", alpn(b"h2"), extension(43, b"\x02\x03\x04")))
    for _ in range(data.draw(st.integers(1, 4))):
        said[data.draw(st.integers(0, len(said) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(said))
    except Malformed:
        return
    assert found is None or found.name is None or found.name == found.name.lower()


def test_no_more_than_its_bound_is_held() -> None:
    reader = HelloReader()
    endless = b"\1" + (MOST).to_bytes(3) + bytes(MOST)
    with pytest.raises(Malformed, match="too long"):
        reader.feed(records(endless, 1000))


def test_a_hello_of_single_bytes() -> None:
    """The worst that one can send: each byte in a record and in segments of its own."""
    said = message(server_name(b"a.x.com"), extension(21, bytes(2400)))
    worst = records(said, 1)
    assert read(worst, list(range(1, len(worst)))) is not None
