"""TLS ended here, on top of a stream that may have been read from already."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from skillyard.egress.stream import PIECE, Stream


class TlsFault(OSError):
    """The handshake, or what came after it, is no TLS that we accept. ``reason`` is OpenSSL's, without content."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TlsStream:
    """One task may read while another writes. Methods raise what :class:`Stream`'s do, and TlsFault."""

    def __init__(self, stream: Stream, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """The client's side when ``server_name`` says whom to meet, else the server's."""
        self.stream = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._writing = asyncio.Lock()

    async def handshake(self, within: float) -> None:
        """Raises TlsFault, and TimeoutError after ``within`` seconds, however slowly bytes come."""
        async with asyncio.timeout(within):
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    await self._more()
                except ssl.SSLError as error:
                    with contextlib.suppress(OSError):
                        await self._flush()  # the alert
                    raise _fault(error) from None
                else:
                    await self._flush()
                    return

    async def read(self) -> bytes:
        """The next bytes, at most :data:`PIECE`; empty at the end, whether or not it was announced: HTTP says where its
        messages end."""
        while (data := self._decrypted()) is None:
            await self._more()
        return data

    async def write(self, data: bytes) -> None:
        """Returns when the kernel has all of it."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise _fault(error) from None
        await self._flush()

    async def end(self) -> None:
        """Nothing more is written, and the other side is told; what it still says is not read."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        await self._flush()
        self.stream.end()

    def _decrypted(self) -> bytes | None:
        """As many records as make a piece; None when there is no whole one."""
        pieces: list[bytes] = []
        size = 0
        try:
            while size < PIECE:
                pieces.append(self._tls.read(PIECE - size))
                size += len(pieces[-1])
                if not pieces[-1]:
                    break
        except ssl.SSLWantReadError:
            if not pieces:
                return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass  # said again by the next read
        except ssl.SSLError as error:
            raise _fault(error) from None
        return b"".join(pieces)

    async def _more(self) -> None:
        await self._flush()
        data = await self.stream.read(PIECE)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        async with self._writing:
            if self._outgoing.pending:
                await self.stream.write(self._outgoing.read())


def _fault(error: ssl.SSLError) -> TlsFault:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFault(f"the server's certificate is not accepted: {error.verify_message.rstrip('.')}")
    return TlsFault((error.reason or "TLS failed").lower().replace("_", " "))
