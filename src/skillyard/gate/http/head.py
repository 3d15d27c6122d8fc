"""Heads of HTTP/1 messages, cut from a stream with bounds.

Requests are judged before a lenient parser reads them. A head that two servers could frame or route differently is
refused (RFC 9112 §11.2).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import h11

from skillyard.gate.addresses import Host, parse_host_port, write_host_port
from skillyard.gate.relay.guard import Refused

MOST_HEAD = 1 << 16
MOST_FIELDS = 256

_BARE = re.compile(rb"(?<!\r)\n|\r(?=[^\n])")
_END = re.compile(rb"\n\r?\n")
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(_TOKEN + rb" [\x21-\x7e]+ HTTP/1\.[01]")
_FIELD_LINE = re.compile(_TOKEN + rb":[\t\x20-\x7e\x80-\xff]*")
_ABSOLUTE = re.compile(rb"[Hh][Tt][Tt][Pp]://([^/?#]*)(/[^#]*|\?[^#]*)?")
_ONCE = (b"host", b"content-length", b"transfer-encoding", b"upgrade", b"expect")
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding", b"authorization", b"cookie"})
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"upgrade",
})  # fmt: skip
"""Fields for the next hop alone (RFC 9110 §7.6.1); ``Transfer-Encoding`` is h11's."""
_NO_TRAILER = _FRAMING | HOP_BY_HOP | {b"content-encoding", b"content-type", b"content-range", b"range", b"expect"}

Fields = list[tuple[bytes, bytes]]


class Headers(Protocol):
    """The headers of h11: lower-case names when iterated, names as written in ``raw_items``."""

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...

    def raw_items(self) -> Fields: ...


class Heads:
    """Gathers one head after the other. ``strict`` refuses line ends other than CRLF at once."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._buffer = bytearray()
        self._searched = 0

    def __len__(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def cut(self) -> bytes | None:
        """Returns the next head with the empty line that ends it, None until more is fed.

        Raises Refused."""
        start = max(0, self._searched - 3)
        found = _END.search(self._buffer, start)
        end = found.end() if found else len(self._buffer)
        if self._strict and _BARE.search(self._buffer, start, end):
            raise Refused("HTTP with a line that does not end in CRLF")
        self._searched = 0 if found else end
        if end > MOST_HEAD or self._buffer.count(b"\n", 0, end) > MOST_FIELDS:
            raise Refused("HTTP with a head that is too long")
        return self.rest(end) if found else None

    def rest(self, most: int | None = None) -> bytes:
        """Returns fed bytes from their beginning, once."""
        taken = bytes(self._buffer[:most])
        del self._buffer[:most]
        self._searched = 0
        return taken


def check_written(head: bytes) -> None:
    """Checks that a request's head is written as RFC 9112 §2.2 to §5.1 say.

    Fields that count may not stand twice. Raises Refused."""
    request_line, *lines = head[:-4].split(b"\r\n")
    if _REQUEST_LINE.fullmatch(request_line) is None:
        raise Refused("the first line is not a valid HTTP/1 request line")
    if not all(_FIELD_LINE.fullmatch(line) for line in lines):
        raise Refused("HTTP with a header line that is malformed or folded")
    names = Counter(line.partition(b":")[0].lower() for line in lines)
    if any(names[name] > 1 for name in _ONCE):
        raise Refused("HTTP with two Host or framing header fields")
    if names[b"content-length"] and names[b"transfer-encoding"]:
        raise Refused("HTTP with both Content-Length and Transfer-Encoding")
    if request_line.endswith(b"1.0") and names[b"transfer-encoding"]:
        raise Refused("HTTP/1.0 with Transfer-Encoding")


def split_target(request: h11.Request) -> tuple[tuple[Host, int] | None, bytes]:
    """Returns host and port of an absolute request target, or None, and its origin form.

    See RFC 9112 §3.2. Raises Refused."""
    target = request.target
    if request.method.upper() == b"CONNECT":
        raise Refused("HTTP with a CONNECT inside of a connection")
    if target.startswith(b"/") or (target == b"*" and request.method == b"OPTIONS"):
        if b"#" in target:
            raise Refused("HTTP with a fragment in its request target")
        return None, target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise Refused("HTTP with a request target that is neither a path nor an http:// address")
    named = parse_host_port(match[1].decode("latin-1"), 80)
    if named is None:
        raise Refused("HTTP with a request target whose host or port is malformed")
    path = match[2] or (b"*" if request.method == b"OPTIONS" else b"/")
    return named, b"/" + path if path.startswith(b"?") else path


def check_host(request: h11.Request, host: Host, port: int, default_port: int) -> None:
    """Checks that ``Host`` names the host and port that the connection is for. Raises Refused."""
    said = next((value for name, value in request.headers if name == b"host"), None)
    if said is None:
        raise Refused("HTTP without a Host header field")
    named = parse_host_port(said.decode("latin-1"), default_port)
    if named is None:
        raise Refused("HTTP with a malformed Host header field")
    if named != (host, port):
        raise Refused(f"HTTP for {write_host_port(*named)}, not {write_host_port(host, port)}")


def check_connection(request: h11.Request) -> bool:
    """Returns whether the request asks for a WebSocket, the only upgrade (RFC 6455 §4.1).

    Raises Refused."""
    fields = dict(request.headers)
    tokens = listed(request.headers, b"connection")
    if tokens & _FRAMING:
        raise Refused("HTTP whose Connection field names a field that must arrive")
    if b"upgrade" not in fields:
        return False
    if fields[b"upgrade"].lower() != b"websocket":
        raise Refused("HTTP with an Upgrade other than to websocket")
    proper = (
        request.method == b"GET"
        and request.http_version == b"1.1"
        and b"upgrade" in tokens
        and fields.get(b"sec-websocket-version") == b"13"
        and b"sec-websocket-key" in fields
        and fields.get(b"content-length", b"0") == b"0"
        and b"transfer-encoding" not in fields
    )
    if not proper:
        raise Refused("HTTP with a malformed upgrade to websocket")
    return True


def check_trailer(fields: Headers) -> None:
    """Checks that a request's trailer has no field that belongs into its head (RFC 9110 §6.5.1).

    Raises Refused."""
    if any(name in _NO_TRAILER for name, _ in fields):
        raise Refused("HTTP with a trailer field that may stand in a head only")


def listed(fields: Headers, name: bytes) -> frozenset[bytes]:
    """Returns the lower-case elements of a field that is a list."""
    values = b",".join(value for key, value in fields if key == name).lower()
    return frozenset(filter(None, (part.strip() for part in values.split(b","))))


def end_to_end(fields: Headers) -> Fields:
    """Returns the fields without those for one hop.

    These are the usual ones and those that ``Connection`` names."""
    gone = HOP_BY_HOP | listed(fields, b"connection")
    return [(name, value) for name, value in fields.raw_items() if name.lower() not in gone]
