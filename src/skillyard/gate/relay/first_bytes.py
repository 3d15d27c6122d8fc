"""Tells the protocol of a connection by its first bytes.

The question is not how they look but how some server would read them: bytes that a lenient one would take for TLS or
HTTP are held to the rules of TLS and HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from skillyard.gate.addresses import Host
from skillyard.gate.http.content import ANY, ContentRules
from skillyard.gate.http.guard import HttpGuard, refusal
from skillyard.gate.relay.guard import Guard, Open, Outbox, Refused
from skillyard.gate.tls.guard import ACCESS_DENIED, TlsGuard

TLS_PORT, HTTP_PORT = 443, 80
_MOST = 1 << 16
"""Bytes of a first line after which it counts as a request."""
_SPACE = rb"\t\x0b\x0c\r\x1c-\x20\x85\xa0"  # what str.split() of a latin-1 line takes for space
_LEADING = re.compile(rb"[" + _SPACE + rb"\n]*")
_MAYBE_REQUEST = re.compile(
    rb"[\x21-\x7e\x80-\x84\x86-\x9f\xa1-\xff]+(?:\Z|[" + _SPACE + rb"])"
)  # some take any method
_VERSION = re.compile(rb"HTTP/", re.IGNORECASE)
_OLD_REQUEST = re.compile(rb"GET[" + _SPACE + rb"]+[^" + _SPACE + rb"]")
_UNNAMED = re.compile(rb"[" + _SPACE + rb"\n]*(?!GET[" + _SPACE + rb"]|PROXY )[^" + _SPACE + rb"\n].{5}", re.DOTALL)
"""A line that only a version can make a request."""
_TLS_KINDS = range(20, 24)
_PROXY_LINE, _PROXY_SIGNATURE = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"  # HAProxy's PROXY protocol, versions 1 and 2


class Kind(Enum):
    TLS = "TLS"
    HTTP = "HTTP"
    HTTP2 = "HTTP/2"
    PROXY = "the PROXY protocol"
    OTHER = "neither TLS nor HTTP"


_UNHELD = {
    Kind.HTTP2: "HTTP/2 without TLS, which cannot be held to a host",
    Kind.PROXY: "the PROXY protocol, behind which anything may follow",
}


def sniff(data: bytes) -> Kind | None:
    """Returns the protocol of all bytes of the client so far; None while it may be any."""
    if not data:
        return None
    if data[0] in _TLS_KINDS:
        return _sniff_tls(data)
    return _sniff_line(data)


def _sniff_tls(data: bytes) -> Kind | None:
    """Finds a TLS record.

    A ClientHello in a record of another version counts, since servers ignore that (RFC 8446 §5.1)."""
    if len(data) < 3:
        return None
    if data[1] == 3 and data[2] <= 4:
        return Kind.TLS
    if len(data) < 6:
        return None
    return Kind.TLS if data[0] == 22 and data[5] == 1 else Kind.OTHER


def _sniff_line(data: bytes) -> Kind | None:
    """Finds a request line.

    It may follow empty lines (RFC 9112 §2.2), be of HTTP/0.9 or have odd spaces."""
    match = _LEADING.match(data)
    start = match.end() if match else 0
    end = data.find(b"\n", start)
    if _PROXY_SIGNATURE.startswith(data[: len(_PROXY_SIGNATURE)]):
        return Kind.PROXY if len(data) >= len(_PROXY_SIGNATURE) else None
    if start == len(data):
        return None if len(data) < _MOST else Kind.HTTP
    if _MAYBE_REQUEST.match(data, start, len(data) if end < 0 else end) is None:
        return Kind.OTHER
    if end < 0:
        return None if len(data) < _MOST else Kind.HTTP
    line = data[start:end]
    if line.startswith(_PROXY_LINE):
        return Kind.PROXY
    if _VERSION.search(line) is None and _OLD_REQUEST.match(line) is None:
        return Kind.OTHER
    return Kind.HTTP2 if line.startswith(b"PRI ") else Kind.HTTP


class FirstBytes(Outbox):
    """Waits for the client's first bytes and goes on as the guard of their protocol.

    See :class:`~skillyard.gate.relay.guard.Guard`. Port 443 must be TLS and port 80 HTTP. On other ports other
    protocols pass raw; while the bytes may still become a request, as many pass as no server takes for one, even if
    nothing follows. The server may speak first. ``content`` judges HTTP in plain text; ``tls`` makes another guard of
    TLS than :class:`TlsGuard`."""

    def __init__(
        self, host: Host, port: int, *, content: ContentRules = ANY, tls: Callable[[], Guard] | None = None
    ) -> None:
        super().__init__()
        self._host = host
        self._port = port
        self._content = content
        self._tls = tls
        self._said = bytearray()
        self._passed = b""
        """Bytes that passed before there was a guard, less those that it has given back since."""
        self._waits = False
        """Whether the line would be a request if it ended now; it stays one then."""
        self._guard: Guard | None = None
        self._over = False

    @property
    def raw(self) -> bool:
        return self._guard is not None and self._guard.raw

    @property
    def wants_client(self) -> bool:
        return self._guard is None or self._guard.wants_client

    @property
    def over(self) -> bool:
        return self._over or (self._guard is not None and self._guard.over)

    @property
    def busy(self) -> bool:
        return self._guard is not None and self._guard.busy

    def go_on(self) -> None:
        if self._guard is not None:
            self._guard.go_on()
            self._hand_on()

    @property
    def holding(self) -> bool:
        return self._guard is not None and self._guard.holding

    def server_pauses(self) -> None:
        if self._guard is not None:
            self._guard.server_pauses()

    def for_server(self) -> bytes:
        rest = self._guard.for_server() if self._guard is not None and not self._passed else b""
        return super().for_server() + rest

    def for_client(self) -> bytes:
        return super().for_client() + (self._guard.for_client() if self._guard is not None else b"")

    def client_says(self, data: bytes) -> None:
        if self._guard is not None:
            self._guard.client_says(data)
            self._hand_on()
            return
        self._said += data
        said = bytes(self._said)
        kind = sniff(said) if data else _at_end(said)
        if kind is None:
            self._pass_early(said)
            return
        if not data and kind is not Kind.OTHER:
            raise self._refuse(kind, "the first line breaks off")
        if said or self._port in (TLS_PORT, HTTP_PORT):
            self._guard = self._guard_of(kind)
        else:
            self._guard = Open()  # it only listens
        self._said.clear()
        if said:
            self._guard.client_says(said)
            self._hand_on()

    def _pass_early(self, said: bytes) -> None:
        if self._waits or self._port in (TLS_PORT, HTTP_PORT):
            return
        if self._passed and _UNNAMED.match(said):  # by the new bytes alone: clients may say one after the other
            self._waits = _VERSION.search(said, max(0, len(self._passed) - len(b"HTTP"))) is not None
        else:
            self._waits = _at_end(said) is not Kind.OTHER
        if self._waits:
            return
        if self._tls is not None and said[0] in _TLS_KINDS:  # its guard answers in the server's place
            return
        self._to_server += said[len(self._passed) :]
        self._passed = said

    def _hand_on(self) -> None:
        """Drops the bytes that passed already from the guard's.

        Raises Refused when the guard writes them otherwise."""
        if not self._passed or self._guard is None or not (out := self._guard.for_server()):
            return
        size = min(len(out), len(self._passed))
        if out[:size] != self._passed[:size]:
            raise self._refuse(Kind.HTTP, "a request line that is written anew must come in one piece")
        self._passed = self._passed[size:]
        self._to_server += out[size:]

    def server_says(self, data: bytes) -> None:
        if self._guard is not None:
            self._guard.server_says(data)
            self._hand_on()
        else:
            self._to_client += data
            self._over = not data

    def _guard_of(self, kind: Kind) -> Guard:
        """Returns the guard of a protocol. Raises Refused for one that the port does not admit."""
        wanted = {TLS_PORT: Kind.TLS, HTTP_PORT: Kind.HTTP}.get(self._port, kind)
        reason = _UNHELD.get(kind, "")
        if kind is not wanted:
            reason = f"port {self._port} is for {wanted.value}, and what comes is {kind.value}"
        if reason:
            raise self._refuse(kind, reason)
        if kind is Kind.TLS:
            return TlsGuard(self._host) if self._tls is None else self._tls()
        return HttpGuard(self._host, self._port, content=self._content) if kind is Kind.HTTP else Open()

    def _refuse(self, kind: Kind, reason: str) -> Refused:
        """Ends the connection and returns the error to raise."""
        self._over = True
        self._to_client += refusal_for(kind, reason)
        return Refused(reason)


def _at_end(said: bytes) -> Kind:
    """Returns the protocol of ``said`` when nothing follows.

    Some servers take the end for a line's. No TLS record is complete."""
    kind = sniff(said + b"\n")
    return Kind.OTHER if kind is None or kind is Kind.TLS else kind


def refusal_for(kind: Kind | None, reason: str) -> bytes:
    """Returns the refusal for a client that speaks ``kind``; empty where its protocol has none."""
    if kind is Kind.TLS:
        return ACCESS_DENIED
    return refusal(reason) if kind is Kind.HTTP else b""
