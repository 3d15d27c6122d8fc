"""ClientHellos as programs and attackers write them."""

from __future__ import annotations

import ssl
import struct

HELLO_RANDOM = bytes(range(32))


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size) + data


def extension(kind: int, data: bytes) -> bytes:
    return struct.pack("!H", kind) + vector(2, data)


def server_name(name: bytes, kind: int = 0) -> bytes:
    return extension(0, vector(2, bytes([kind]) + vector(2, name)))


def alpn(*protocols: bytes) -> bytes:
    return extension(16, vector(2, b"".join(vector(1, protocol) for protocol in protocols)))


def message(*extensions: bytes, version: bytes = b"\x03\x03", session: bytes = b"") -> bytes:
    """A ClientHello handshake message; without extensions, one that has not even an empty list of them."""
    body = version + HELLO_RANDOM + vector(1, session) + vector(2, b"\x13\x01") + vector(1, b"\x00")
    if extensions:
        body += vector(2, b"".join(extensions))
    return b"\x01" + vector(3, body)


def records(data: bytes, size: int = 1 << 14, kind: int = 22, version: bytes = b"\x03\x01") -> bytes:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(bytes([kind]) + version + vector(2, piece) for piece in pieces)


def hello(name: bytes | None = b"a.x.com", *more: bytes) -> bytes:
    """The record of a ClientHello for ``name``."""
    return records(message(*([] if name is None else [server_name(name)]), *more))


def of_python(name: str, protocols: list[str] | None = None) -> bytes:
    """What Python's ssl says first."""
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(protocols)
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("nobody answered")
