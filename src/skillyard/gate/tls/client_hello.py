"""A strict reader of ClientHello (RFC 8446 §4.1.2).

Bytes that two readers could understand differently are malformed. Nothing is read ahead of a complete message, and no
more than 16 KiB of one.
"""

from __future__ import annotations

from skillyard.domain.network.rule import canonical_name
from skillyard.values import dataclass

MOST = 1 << 14
"""Bytes of records that one ClientHello may take."""
HANDSHAKE = 22
_HEADER = 5
_CLIENT_HELLO = 1
_SERVER_NAME, _ALPN = 0, 16
_ENCRYPTED = frozenset({0xFE0D, 0xFD00, 0xFFCE})  # encrypted_client_hello, its outer extensions, the draft before it


class Malformed(Exception):
    """A message that is malformed because of ``reason``, which repeats nothing of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Hello:
    """The parts of a ClientHello that a guard judges.

    ``name`` is the server name in canonical form, None without one (RFC 6066 §3); ``alpn`` the protocols in the
    client's order; ``encrypted`` whether another, encrypted hello may lie inside (ECH)."""

    name: str | None
    alpn: tuple[bytes, ...]
    encrypted: bool


class Records:
    """Takes a stream of TLS records apart (RFC 8446 §5.1)."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> tuple[int, bytes] | None:
        """Returns the content type and the whole record with its header; None until more is fed."""
        if len(self._buffer) < _HEADER:
            return None
        length = int.from_bytes(self._buffer[3:_HEADER])
        if self._buffer[1] != 3 or self._buffer[2] > 4:
            raise Malformed("is not a valid TLS record")
        if length > MOST + 256:  # what encryption may add, RFC 8446 §5.2
            raise Malformed("has a TLS record that is too long")
        if len(self._buffer) < _HEADER + length:
            return None
        record = bytes(self._buffer[: _HEADER + length])
        del self._buffer[: _HEADER + length]
        return record[0], record

    def rest(self) -> bytes:
        """Returns an incomplete record, once."""
        taken = bytes(self._buffer)
        self._buffer.clear()
        return taken


class HelloReader:
    """Reads one ClientHello, however many segments and records it comes in."""

    def __init__(self) -> None:
        self._records = Records()
        self._message = bytearray()
        self._size = 0

    def feed(self, data: bytes) -> Hello | None:
        """Returns the hello, None until more is fed.

        Raises Malformed. :meth:`rest` has the bytes after it."""
        self._records.feed(data)
        while (record := self._records.next()) is not None:
            if (hello := self.take(*record)) is not None:
                return hello
        return None

    def take(self, kind: int, record: bytes) -> Hello | None:
        """Does the same by whole records, as :class:`Records` gives them."""
        fragment = record[_HEADER:]
        self._size += len(record)
        if kind != HANDSHAKE or not 0 < len(fragment) <= MOST:
            raise Malformed("does not begin with a TLS handshake")
        if self._size > MOST:
            raise Malformed("has a ClientHello that is too long")
        self._message += fragment
        if self._message[0] != _CLIENT_HELLO:
            raise Malformed("does not begin with a ClientHello")
        if len(self._message) < 4:
            return None
        length = int.from_bytes(self._message[1:4])
        if length > MOST:
            raise Malformed("has a ClientHello that is too long")
        if len(self._message) < 4 + length:
            return None
        if len(self._message) > 4 + length:
            raise Malformed("has more than a ClientHello in its record")
        return _hello(_Fields(bytes(self._message[4:])))

    def rest(self) -> bytes:
        """Returns bytes beyond the hello, once."""
        return self._records.rest()


class _Fields:
    """Reads a vector of TLS's presentation language (RFC 8446 §3) from its beginning to its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise Malformed("has a ClientHello that ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int, least: int, most: int = 0xFFFF) -> bytes:
        """Returns a vector whose length stands in ``size`` bytes."""
        length = self.number(size)
        if not least <= length <= most:
            raise Malformed("has a ClientHello with a field of a wrong length")
        return self.take(length)

    def end(self) -> None:
        if self.left:
            raise Malformed("has a ClientHello with bytes that belong to no field")


def _hello(fields: _Fields) -> Hello:
    if fields.number(1) != 3:
        raise Malformed("has a ClientHello of an unknown version")
    fields.take(1 + 32)  # the rest of the version, the random
    fields.vector(1, 0, 32)  # legacy_session_id
    if len(fields.vector(2, 2)) % 2:
        raise Malformed("has a ClientHello with half a cipher suite")
    fields.vector(1, 1)  # legacy_compression_methods
    found: dict[int, bytes] = {}
    if fields.left:
        extensions = _Fields(fields.vector(2, 0))
        fields.end()
        while extensions.left:
            kind = extensions.number(2)
            if kind in found:
                raise Malformed("has a ClientHello with an extension twice")
            found[kind] = extensions.vector(2, 0)
    name = _name(found[_SERVER_NAME]) if _SERVER_NAME in found else None
    alpn = _protocols(found[_ALPN]) if _ALPN in found else ()
    return Hello(name, alpn, not _ENCRYPTED.isdisjoint(found))


def _name(extension: bytes) -> str:
    """Returns the one name of the one type that exists."""
    fields = _Fields(extension)
    names = _Fields(fields.vector(2, 1))
    fields.end()
    if names.number(1) != 0:
        raise Malformed("has a server name of an unknown type")
    text = names.vector(2, 1)
    names.end()
    name = canonical_name(text.decode("ascii", "replace"))
    if name is None:
        raise Malformed("has a server name that is not a valid host name")
    return name


def _protocols(extension: bytes) -> tuple[bytes, ...]:
    """Returns the protocols of an ALPN extension (RFC 7301 §3.1)."""
    fields = _Fields(extension)
    listed = _Fields(fields.vector(2, 2))
    fields.end()
    found = []
    while listed.left:
        found.append(listed.vector(1, 1))
    return tuple(found)
