"""One end of a TLS connection without input or output.

The holder of the socket passes on received bytes and takes the bytes to write.
"""

from __future__ import annotations

import contextlib
import ssl

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
