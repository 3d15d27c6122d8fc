"""Connections to hosts that a session's secrets are bound to: TLS ends here on both sides.

A placeholder in a request arrives as the value, and a value in an answer comes back as the placeholder.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import NoReturn

from skillyard.domain.network.session import GateSecret
from skillyard.gate.http.content import ContentRules, PlainContent, SecretContent, check_body
from skillyard.gate.http.guard import HttpGuard
from skillyard.gate.http.mask import Masker, Masks
from skillyard.gate.http.placeholder import Placeholders, Scanner
from skillyard.gate.relay.guard import ROOM, Ended, Failure, Refused, Unreachable
from skillyard.gate.tls.authority import Authority
from skillyard.gate.tls.client_hello import HelloReader, Malformed
from skillyard.gate.tls.guard import ACCESS_DENIED, why_not

_PIECE = 1 << 16


class TlsFault(Exception):
    """The handshake or later records are not acceptable TLS.

    ``reason`` is OpenSSL's, without content; :meth:`TlsEnd.take` may have an alert for the other side."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TlsEnd:
    """The client's end when ``server_name`` is given, else the server's."""

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._over = False
        self.ready = False
        """Whether the handshake is over."""
        self.ended = False
        """Whether the other side ended or is gone; HTTP knows where its messages end, so both count alike."""
        if server_name is not None:
            self._shake()

    def hear(self, data: bytes) -> bytes:
        """Returns the content of received bytes; none are passed at the end of the connection.

        Raises TlsFault."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        if not self.ready:
            self._shake()
        return self._decrypted() if self.ready else b""

    def say(self, data: bytes) -> None:
        """Encrypts content, after the handshake; ignores it after :meth:`end`."""
        if not self._over:
            self._tls.write(data)

    def end(self) -> None:
        """Ends writing and tells the other side. Idempotent."""
        if self.ready and not self._over:
            self._over = True
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()

    def take(self) -> bytes:
        """Returns bytes to write, once; perhaps none."""
        return self._outgoing.read()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise _fault(error) from None
        self.ready = True

    def _decrypted(self) -> bytes:
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(_PIECE):
                pieces.append(piece)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.ended = True
        except ssl.SSLError as error:
            raise _fault(error) from None
        return b"".join(pieces)


def _fault(error: ssl.SSLError) -> TlsFault:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFault(f"its certificate is not accepted: {error.verify_message.rstrip('.')}")
    return TlsFault((error.reason or "TLS failed").lower().replace("_", " "))


HTTPS = 443


class Interception:
    """Ends the TLS of one session. ``verify`` gives the context that verifies real servers.

    ``before`` is the authority (:attr:`kept`) of a session that goes on: it stays while the hosts do, and each secret
    counts as sent already. Raises ValueError for a secret that is bound to anything but names."""

    def __init__(self, secrets: Sequence[GateSecret], verify: Callable[[], ssl.SSLContext], before: str = "") -> None:
        self._placeholders = Placeholders(secrets)
        self._masks = Masks(secrets)
        self._verify = verify
        self._sent: set[str] = {secret.name for secret in secrets} if before else set()
        hosts = [rule for secret in secrets for rule in secret.hosts]
        self._authority = Authority(hosts, before) if hosts else None

    @property
    def kept(self) -> str:
        """Returns the authority's certificate and key, empty when no host is bound."""
        return "" if self._authority is None else self._authority.kept

    @property
    def trust(self) -> bytes:
        """Returns the authority's certificate (PEM) for programs to trust.

        It is empty when no host is bound."""
        return b"" if self._authority is None else self._authority.pem

    def has(self, name: str, port: int) -> bool:
        """Returns whether TLS connections to ``name`` end here."""
        return bool(self._placeholders.bound(name, port))

    def plain_content(self) -> ContentRules:
        """Returns the content rules of one connection in plain text."""
        return PlainContent(self._placeholders)

    def guard(self, name: str, port: int, used: Callable[[str], None]) -> InterceptGuard:
        """Returns the guard of one TLS connection to a host for which :meth:`has` is true.

        ``used`` is called with the name of each secret that is put in. Raises NotBound for other hosts, and Ended
        once all is forgotten."""
        if self._authority is None:
            raise Ended("the session is over")
        content = SecretContent(self._placeholders, self._placeholders.bound(name, port), self._masks, used, self._sent)
        http = HttpGuard(name, port, default_port=HTTPS, content=content)
        ours, theirs = TlsEnd(self._authority.context(name)), TlsEnd(self._verify(), name)
        return InterceptGuard(name, ours, theirs, http, Masker(self._masks, fit=True), self._placeholders.scanner())

    def forget(self) -> None:
        """Forgets every value and every key."""
        self._placeholders.forget()
        self._masks = Masks(())
        self._authority = None


class InterceptGuard:
    """Guards a TLS connection that ends here (:class:`~skillyard.gate.relay.guard.Guard`)."""

    raw = False

    def __init__(
        self,
        name: str,
        client: TlsEnd,
        server: TlsEnd,
        http: HttpGuard,
        masker: Masker,
        scanner: Scanner,
    ) -> None:
        self._name = name
        self._reader: HelloReader | None = HelloReader()
        self._hello = bytearray()
        self._client = client
        self._server = server
        self._http = http
        self._masker = masker
        self._scanner = scanner
        self._early = bytearray()
        """Bytes of the client from before the server was verified; nothing is made of them until then."""
        self._denied = b""
        self._failure: Unreachable | None = None
        """The server's failure; the client is told when it asks for something."""
        self._over = False

    @property
    def over(self) -> bool:
        return self._over or self._http.over

    @property
    def busy(self) -> bool:
        return self._http.busy and not self._over

    @property
    def wants_client(self) -> bool:
        return self._http.wants_client and len(self._early) < ROOM

    def client_says(self, data: bytes) -> None:
        if self._reader is not None:
            self._greeted(self._reader, data)
            return
        said = self._heard_client(data)
        if said and self._failure is not None:
            self._fail(self._failure)
        self._early += said
        if self._server.ready:
            self._hear_early()
        else:
            self._over = self._over or (self._client.ended and not self._early)

    def server_says(self, data: bytes) -> None:
        if self._failure is not None:
            return
        try:
            said = self._server.hear(data)
        except TlsFault as fault:
            self._failure = Unreachable(f"TLS with {self._name}: {fault.reason}")
            if self._early or self._http.asked:
                self._fail(self._failure)
            return
        if self._server.ready:
            self._hear_early()
        if said:
            self._tell(self._http.server_says, said)
        if self._server.ended and not self.over:
            self._over = self._http.raw
            self._tell(self._http.server_says, b"")

    def go_on(self) -> None:
        self._tell(lambda _: self._http.go_on(), b"")

    @property
    def holding(self) -> bool:
        return not self._over and (self._masker.holding if self._http.raw else self._http.holding)

    def server_pauses(self) -> None:
        if not self._http.raw:
            self._tell(lambda _: self._http.server_pauses(), b"")
        elif shown := self._masker.pause():
            self._client.say(shown)

    def for_server(self) -> bytes:
        if self._reader is not None:
            return b""
        if self.over:
            self._server.end()
        return self._server.take()

    def for_client(self) -> bytes:
        if self.over:
            self._client.end()
        denied, self._denied = self._denied, b""
        return self._client.take() + denied

    def _greeted(self, reader: HelloReader, data: bytes) -> None:
        """Takes the client's first bytes, which must be for this host before anything answers them."""
        if not data:
            self._over = True
            return
        self._hello += data
        try:
            hello = reader.feed(data)
        except Malformed as error:
            self._deny(f"the connection {error.reason}")
        if hello is None:
            return
        if why := why_not(hello, self._name):
            self._deny(why)
        self._reader = None
        first = bytes(self._hello)
        self._hello.clear()
        self.client_says(first)

    def _heard_client(self, data: bytes) -> bytes:
        try:
            return self._client.hear(data)
        except TlsFault as fault:
            self._over = True
            if not data:
                return b""
            raise Refused(f"TLS with the program failed, which may not trust the gate: {fault.reason}") from None

    def _hear_early(self) -> None:
        said = bytes(self._early)
        self._early.clear()
        if said:
            self._tell(self._client_said, said)
        if self._client.ended and not self.over:
            self._tell(self._client_said, b"")

    def _client_said(self, said: bytes) -> None:
        if not self._http.raw:
            self._http.client_says(said)
        elif said:
            check_body(self._scanner, said)
            self._http.client_says(said)
        else:
            self._server.end()

    def _tell(self, says: Callable[[bytes], None], said: bytes) -> None:
        """Passes bytes to HTTP; its output is encrypted, also when it raises."""
        try:
            says(said)
        except Failure:
            self._over = True
            raise
        finally:
            if to_server := self._http.for_server():
                self._server.say(to_server)
            if to_client := self._shown(self._http.for_client()):
                self._client.say(to_client)

    def _shown(self, data: bytes) -> bytes:
        """Masks the bytes of a WebSocket's server; other bytes were masked where they were parsed."""
        if not self._http.raw:
            return data
        return self._masker.feed(data) + (self._masker.flush() if self._over else b"")

    def _fail(self, failure: Failure) -> None:
        def fail(_: bytes) -> None:
            self._http.fail(failure)

        self._tell(fail, b"")

    def _deny(self, why: str) -> NoReturn:
        self._over = True
        self._denied = ACCESS_DENIED
        raise Refused(why)
