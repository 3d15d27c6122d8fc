"""One end of a TLS connection without input or output: whoever has the socket tells it what was said, and takes what
is to be written."""

from __future__ import annotations

import contextlib
import ssl

_PIECE = 1 << 16


class TlsFault(Exception):
    """The handshake, or what came after it, is no TLS that we accept. ``reason`` is OpenSSL's, without content; an
    alert for the other side may be left to :meth:`TlsEnd.take`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TlsEnd:
    """The client's when ``server_name`` says whom to meet, else the server's."""

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._over = False
        self.ready = False
        """Whether hands were shaken."""
        self.ended = False
        """Whether the other side said that it says nothing more, or is gone: HTTP knows where its messages end, so the
        two are one to us."""
        if server_name is not None:
            self._shake()

    def hear(self, data: bytes) -> bytes:
        """What ``data``, empty at the end of the connection, means. Raises TlsFault."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        if not self.ready:
            self._shake()
        return self._decrypted() if self.ready else b""

    def say(self, data: bytes) -> None:
        """Once hands were shaken; nothing after :meth:`end`."""
        if not self._over:
            self._tls.write(data)

    def end(self) -> None:
        """Nothing more is said, and the other side is told. Idempotent."""
        if self.ready and not self._over:
            self._over = True
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()

    def take(self) -> bytes:
        """What is to be written; perhaps empty."""
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
