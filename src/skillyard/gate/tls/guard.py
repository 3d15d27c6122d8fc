"""Holds a TLS connection to a host.

Its ClientHello must name that host and may hide no other. So must the second one, which a server can ask for
(HelloRetryRequest, RFC 8446 §4.1.4) and from which servers take the name again.
"""

from __future__ import annotations

from enum import Enum, auto

from skillyard.gate.addresses import Host
from skillyard.gate.relay.guard import Prompt, Refused
from skillyard.gate.tls.client_hello import HANDSHAKE, Hello, HelloReader, Malformed, Records

ALERT = 21
ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"
"""The fatal alert for a refused TLS client (RFC 8446 §6.2)."""
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")  # RFC 8446 §4.1.3
_SERVER_HELLO = 2
_HEAD = 4 + 2 + 32
"""Bytes of a ServerHello up to the end of its random."""
_MOST_ALERTS = 4


def why_not(hello: Hello, host: Host) -> str:
    """Returns why a client with ``hello`` does not talk to ``host``; empty if it does."""
    if hello.encrypted:
        return "TLS with an encrypted ClientHello (ECH), which hides the server's name"
    if hello.name is None:
        return "TLS without a server name (SNI)" if isinstance(host, str) else ""
    return "" if hello.name == host else f"TLS for {hello.name}, not {host}"


class _Phase(Enum):
    FIRST = auto()
    """Waits for the ClientHello."""
    ASKED = auto()
    """It went to the server, which has not answered."""
    RETRY = auto()
    """The server wants another one."""
    RAW = auto()


class TlsGuard(Prompt):
    """Guards TLS (:class:`~skillyard.gate.relay.guard.Guard`) until the name is certain."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host
        self._phase = _Phase.FIRST
        self._reader = HelloReader()
        self._said = Records()
        self._hello_records = bytearray()
        self._answer = _Answer()
        self.hello: Hello | None = None
        """The first ClientHello, once it was judged."""
        self.over = False
        self.wants_client = True

    @property
    def raw(self) -> bool:
        return self._phase is _Phase.RAW

    def client_says(self, data: bytes) -> None:
        if self.raw:
            self._to_server += data
        elif not data:
            self.over = True
        else:
            self._said.feed(data)
            self._judge()

    def server_says(self, data: bytes) -> None:
        self._to_client += data
        if not data:
            self.over = not self.raw
        if self._phase is not _Phase.ASKED:
            return
        retry = self._answer.feed(data)
        if retry is None:
            return
        if retry:
            self._phase, self._reader = _Phase.RETRY, HelloReader()
            self._judge()
        else:
            self._go_raw()

    def _judge(self) -> None:
        try:
            while not self.raw and (record := self._said.next()) is not None:
                self._record(*record)
        except Malformed as error:
            self._refuse(f"the connection {error.reason}")

    def _record(self, kind: int, record: bytes) -> None:
        hello_expected = self._phase is not _Phase.ASKED
        if kind != HANDSHAKE and self._phase is not _Phase.FIRST:
            self._to_server += record  # early data, an alert, or the empty change of ciphers for old middleboxes
            return
        if not hello_expected:
            self._refuse("TLS that goes on before the server answered")
        self._hello_records += record
        hello = self._reader.take(kind, record)
        if hello is None:
            return
        if why := why_not(hello, self._host):
            self._refuse(why)
        self.hello = self.hello or hello
        self._to_server += self._hello_records
        self._hello_records.clear()
        if self._phase is _Phase.FIRST:
            self._phase = _Phase.ASKED
        else:
            self._go_raw()

    def _go_raw(self) -> None:
        self._phase = _Phase.RAW
        self._to_server += self._said.rest()

    def _refuse(self, why: str) -> None:
        self.over = True
        self._to_server.clear()
        self._to_client += ACCESS_DENIED
        raise Refused(why)


class _Answer:
    """Finds out whether a server's first records ask for another ClientHello."""

    def __init__(self) -> None:
        self._records = Records()
        self._message = bytearray()
        self._alerts = 0

    def feed(self, data: bytes) -> bool | None:
        """Returns None until it is known. Bytes that are not TLS ask for nothing."""
        self._records.feed(data)
        try:
            while (record := self._records.next()) is not None:
                if (known := self._take(*record)) is not None:
                    return known
        except Malformed:
            return False
        return None

    def _take(self, kind: int, record: bytes) -> bool | None:
        if kind == ALERT and self._alerts < _MOST_ALERTS:  # a warning (unrecognized_name) may come first
            self._alerts += 1
            return None
        if kind != HANDSHAKE:
            return False
        self._message += record[5:]
        if self._message[:1] != bytes([_SERVER_HELLO]):
            return False
        return None if len(self._message) < _HEAD else self._message[6:_HEAD] == _RETRY
