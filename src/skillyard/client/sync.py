"""The client for callers without an event loop, over HTTP/1.1 on a plain socket.

The coroutines of :class:`BlockingTransport` never suspend, so :func:`drive` runs them without an event loop. It exists
because a command has 150 ms: httpx2 alone costs 105 ms to import, this about 15.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import h11

from skillyard.client.client import Client
from skillyard.client.discovery import START_ONE, Server, ServerUrl
from skillyard.client.errors import BadReply, ConnectionLost, ResponseTimeout, Unreachable
from skillyard.client.methods.calling import blocking
from skillyard.client.methods.protocol import SyncProtocolMethods
from skillyard.client.transport import CONNECT_TIMEOUT_S, Request, Response, Transport

T = TypeVar("T")

_READ = 256 * 1024
_TOGETHER = 64 * 1024
"""Longest request that is copied to be sent at once. Each part by itself would be a packet that wakes the server."""
_INTERIM = 16
"""Responses that may come before the one that counts (RFC 9110 §15.2); the last of them is that one."""


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine over the blocking transport suspended")


class BlockingTransport:
    """Connections to one server, kept while idle; may be shared between threads."""

    def __init__(self, url: ServerUrl) -> None:
        self._url = url
        self._idle: deque[_Connection] = deque()

    @asynccontextmanager
    async def send(self, request: Request) -> AsyncGenerator[Response, None]:
        connection = self._take(request.timeout)
        try:
            with _translated(self._url):
                await connection.write(request)
                head = connection.head()
            yield _SocketResponse(connection, head, self._url)
        finally:
            if connection.reset():
                self._idle.append(connection)

    def _take(self, timeout: float | None) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.fresh(timeout):
                return connection
            connection.close()
        return _Connection(self._connected(timeout), self._url)

    def _connected(self, timeout: float | None) -> socket.socket:
        address = (self._url.host, self._url.port)
        try:
            sock = socket.create_connection(address, CONNECT_TIMEOUT_S)
            if self._url.scheme == "https":
                sock = _secured(sock, self._url.host)
        except (OSError, UnicodeError) as error:  # the latter for what can be no host's name
            reason = getattr(error, "strerror", None) or error
            raise Unreachable(f"cannot connect to {self._url} ({reason}): {START_ONE}") from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(timeout)
        return sock

    async def offload(self, work: Callable[[], T]) -> T:
        return work()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this transport blocks by design

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class _Connection:
    """One socket and its HTTP state."""

    def __init__(self, sock: socket.socket, url: ServerUrl) -> None:
        self._sock = sock
        self._url = url
        self._http = h11.Connection(h11.CLIENT)

    async def write(self, request: Request) -> None:
        headers = {"host": self._url.netloc, "user-agent": "skillyard", **request.headers}
        streamed = not isinstance(request.body, bytes)
        length = request.length if streamed else len(request.body)  # type: ignore[arg-type]
        headers |= {"transfer-encoding": "chunked"} if length is None else {"content-length": str(length)}
        target = self._url.prefix + request.path
        head = h11.Request(method=request.method, target=target, headers=list(headers.items()))
        try:
            await self._write(head, request.body)
        except (BrokenPipeError, ConnectionResetError):
            self._http.send_failed()  # the server may have answered before it closed: read that

    async def _write(self, head: h11.Request, body: bytes | AsyncIterator[bytes]) -> None:
        if isinstance(body, bytes):
            self._send(head, h11.Data(data=body), h11.EndOfMessage())
            return
        self._send(head)
        async for chunk in body:
            if self._answered():
                return
            self._send(h11.Data(data=chunk))
        self._send(h11.EndOfMessage())

    def _send(self, *events: h11.Event) -> None:
        pieces = [piece for event in events for piece in self._http.send_with_data_passthrough(event) or ()]
        if sum(map(len, pieces)) <= _TOGETHER:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            self._sock.sendall(piece)

    def _answered(self) -> bool:
        """Returns whether the server spoke while we were still sending: a refusal. Unknowable below TLS."""
        return self._url.scheme == "http" and _readable(self._sock)

    def head(self) -> h11.Response:
        for _ in range(_INTERIM):
            event = self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise ConnectionLost(f"{self._url} closed the connection without an answer")
        raise BadReply(f"{self._url} only ever says that it goes on")

    def body(self) -> Iterator[bytes]:
        while isinstance(event := self._next(), h11.Data):
            yield bytes(event.data)

    def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(self._sock.recv(_READ))
        except h11.RemoteProtocolError as error:
            if self._http.trailing_data[1]:
                raise ConnectionLost(f"{self._url} closed the connection before its answer was complete") from None
            raise BadReply(f"{self._url} does not speak HTTP/1.1: {error}") from error
        return event

    def reset(self) -> bool:
        """Ready for another request? Else it is closed."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        self.close()
        return False

    def fresh(self, timeout: float | None) -> bool:
        """Returns whether an idle connection still stands: a server's end of it shows as readable."""
        if _readable(self._sock):
            return False
        self._sock.settimeout(timeout)
        return True

    def close(self) -> None:
        self._sock.close()


class _SocketResponse:
    def __init__(self, connection: _Connection, head: h11.Response, url: ServerUrl) -> None:
        self.status = head.status_code
        self.headers: Mapping[str, str] = {k.decode("latin-1"): v.decode("latin-1") for k, v in head.headers}
        self._connection = connection
        self._url = url

    async def chunks(self) -> AsyncIterator[bytes]:
        with _translated(self._url):
            for chunk in self._connection.body():
                yield chunk


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _secured(sock: socket.socket, host: str) -> socket.socket:
    import ssl  # 18 ms that plain HTTP does not need

    try:
        return ssl.create_default_context().wrap_socket(sock, server_hostname=host)
    except OSError:
        sock.close()
        raise


@contextmanager
def _translated(url: ServerUrl) -> Iterator[None]:
    """Raises errors of sockets as those of a client."""
    try:
        yield
    except TimeoutError as error:
        raise ResponseTimeout(f"{url} kept silent for too long; raise the client's timeout") from error
    except OSError as error:
        raise ConnectionLost(f"the connection to {url} broke: {error.strerror or error}") from error


class SyncClient(SyncProtocolMethods):
    """:class:`Client` without ``await``. Starts no loop and no thread; may be shared between threads."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        retries: int = 2,
        transport: Callable[[ServerUrl], Transport] = BlockingTransport,
    ) -> None:
        self._inner: Client = Client(
            url, token, data_dir=data_dir, timeout=timeout, retries=retries, transport=transport
        )

    @property
    def server(self) -> Server:
        return self._inner.server

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return drive(coroutine)

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = blocking(Client.close)
    put_blob = blocking(Client.put_blob)
    get_blob = blocking(Client.get_blob)
    publish_skill = blocking(Client.publish_skill)
    export_skill = blocking(Client.export_skill)

    def stream_blob(self, blob_id: str, *, offset: int = 0, length: int | None = None) -> Generator[bytes, None, None]:
        """The bytes of a blob as they come."""
        chunks = self._inner.stream_blob(blob_id, offset=offset, length=length)
        try:
            while True:
                try:
                    yield drive(anext(chunks))
                except StopAsyncIteration:
                    return
        finally:
            drive(chunks.aclose())
