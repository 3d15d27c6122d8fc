"""Configures uvicorn, and adds the deadlines and bounds that its HTTP/1.1 lacks.

uvicorn waits for ever for a request's head, for a peer that does not read the end of an answer, and takes any number of
connections; and while a pipelined request waits behind a running one it does not notice that the client has gone. It
answers what is not HTTP as plain text and always with 400, and stumbles when it comes behind an answer that was begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any, cast

import h11
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from skillyard.faces.http.errors import BadRequest, HeadTooLarge, HttpRefusal, NotImplementedHere
from skillyard.faces.http.guard import HEAD_BYTES
from skillyard.faces.http.replies import SECURITY_HEADERS, refusal
from skillyard.faces.rpc.wire import CallerGone

HEAD_PATIENCE_S = 15.0
CLOSE_PATIENCE_S = 15.0
READ_PATIENCE_S = 30.0
PIPELINE_BYTES = 64 * 1024
_JOINED = 16 * 1024
"""Longest part of an answer that is copied to go along with its head."""
SWITCH = "skillyard.switch"
"""The extension of a scope by which an application takes the connection over."""
MAX_CONNECTIONS = min(1000, getrlimit(RLIMIT_NOFILE)[0] // 2)
"""Half of the descriptors that we may have, so that the rest of the server can always open a file."""

_PARTING = 64
"""Connections beyond all that stay for a moment, to hear that there was no room."""
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(H11Protocol):
    """A connection with its deadlines.

    ``since`` is the time at which it last began to wait for its client to send a head or to take the rest of an answer;
    ``stalled`` is the time at which the client stopped reading an answer, None while it reads. ``refused`` is one that
    had no room. It is ``told`` so once it asks, and what else it says is passed over: data that comes to a closed
    connection resets it, and its client may never read the answer.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.since = self.loop.time()
        self.stalled: float | None = None
        self.refused = self.told = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", _Joining(transport, self.loop))
        if len(self.connections) > MAX_CONNECTIONS:
            everybody = _all(self.server_state)
            parting = sum(one.refused for one in everybody)
            self.refused = len(everybody) - parting > MAX_CONNECTIONS and not _make_room(everybody, self)
            if self.refused and parting >= _PARTING:
                transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.refused:
            if not self.told:
                self.told = True
                self.transport.write(_FULL)
                cast("_Joining", self.transport).itself().write_eof()
            return
        super().data_received(data)
        self._keep_listening()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        cast("_Joining", self.transport).flush()
        super().on_response_complete()

    def overdue(self, now: float) -> bool:
        """Returns whether its client has kept us waiting for too long."""
        if self.transport.is_closing() or self.refused:
            return now - self.since > CLOSE_PATIENCE_S
        if self.stalled is not None and now - self.stalled > READ_PATIENCE_S:
            return True
        return self.waits_for_head and now - self.since > max(HEAD_PATIENCE_S, self.timeout_keep_alive)

    @property
    def waits_for_head(self) -> bool:
        """Returns whether nothing is in work for its client."""
        return self.cycle is None or self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature; ours says more
        """Ends a connection that h11 could not go on reading. An application that is at work is told that its client is
        gone: after this the connection takes no other answer."""
        cycle = None if self.waits_for_head else self.cycle
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        if cycle is None or not cycle.response_started:
            self._refuse(_refusal_of(sys.exception()), with_body=cycle is None or cycle.scope["method"] != "HEAD")
        self.transport.close()

    def pause_writing(self) -> None:
        self.stalled = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stalled = None
        super().resume_writing()

    def shutdown(self) -> None:
        self.since = self.loop.time()
        super().shutdown()

    def _refuse(self, exc: HttpRefusal, *, with_body: bool) -> None:
        status, headers, body = refusal(exc)
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        raw += [*SECURITY_HEADERS, (b"connection", b"close")]
        reason = HTTPStatus(status).phrase.encode()
        head = h11.Response(status_code=status, headers=raw, reason=reason)
        for event in (head, h11.Data(data=body if with_body else b""), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _should_upgrade(self) -> bool:
        """Returns False: the application may switch protocols itself. An upgrade that it does not take is ignored.

        See RFC 9110 §7.8.
        """
        if any(name == b"upgrade" for name, _ in self.headers):
            extensions: dict[Any, Any] = {SWITCH: self._switch}
            self.scope["extensions"] = extensions
        return False

    def _switch(self, fields: list[tuple[bytes, bytes]]) -> Stream:
        """Answers 101 and returns the connection as a stream. Raises CallerGone.

        It counts as this connection until it is lost.
        """
        if self.transport.is_closing() or self.cycle.disconnected:
            raise CallerGone("the client went away")
        head = h11.InformationalResponse(status_code=101, headers=fields, reason=b"Switching Protocols")
        self.transport.write(self.conn.send(head) or b"")
        self.cycle.disconnected = True  # for uvicorn, whose part ends here
        reader = asyncio.StreamReader(limit=PIPELINE_BYTES)
        protocol = _Switched(reader, self._over)
        self.flow.resume_reading()
        self.transport = cast("_Joining", self.transport).itself()
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if ahead := self.conn.trailing_data[0]:
            reader.feed_data(ahead)
        return Stream(self, reader, asyncio.StreamWriter(self.transport, protocol, reader, self.loop))

    def _over(self) -> None:
        self.connections.discard(self)

    def _keep_listening(self) -> None:
        """Goes on reading while a request waits its turn, so that the end of the connection is seen."""
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= PIPELINE_BYTES:
            self.flow.resume_reading()


class _Joining:
    """A transport that sends a head and a small body, written in one turn of the loop, together."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if len(data) > _JOINED:
            self.flush()
            self._transport.write(data)
            return
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def itself(self) -> asyncio.Transport:
        self.flush()
        return self._transport

    def flush(self) -> None:
        """Sends what is held."""
        held, self._held = self._held, []
        if held:
            self._transport.write(b"".join(held))


class _Switched(asyncio.StreamReaderProtocol):
    def __init__(self, reader: asyncio.StreamReader, over: Callable[[], None]) -> None:
        super().__init__(reader)
        self._over_now = over

    def connection_lost(self, exc: Exception | None) -> None:
        self._over_now()
        super().connection_lost(exc)


class Stream:
    """A connection that speaks another protocol than HTTP."""

    def __init__(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connection = connection
        self._reader = reader
        self._writer = writer

    async def read(self, most: int) -> bytes:
        """Returns at most ``most`` bytes; none at the end. Raises ConnectionError."""
        return await self._reader.read(most)

    async def write(self, data: bytes) -> None:
        """Writes all of it, and waits until there is room for more. Raises ConnectionError."""
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        """Ends our direction. The client may go on with its own."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def close(self) -> None:
        """Ends the connection. A client that does not take the rest is cut off by the sweep."""
        self._connection.since = self._connection.loop.time()
        self._writer.close()


def abort_overdue(state: ServerState, now: float) -> int:
    """Cuts the connections whose clients are overdue and returns how many."""
    late = [c for c in _all(state) if c.overdue(now)]
    for connection in late:
        connection.transport.abort()
    return len(late)


def _all(state: ServerState) -> set[Connection]:
    return cast("set[Connection]", state.connections.copy())


def _make_room(connections: Iterable[Connection], newcomer: Connection) -> bool:
    """Cuts the connection that has waited longest without a request; False when all are at work."""
    others = (c for c in connections if c is not newcomer and not c.refused)
    idle = [c for c in others if c.waits_for_head and not c.transport.is_closing()]
    if not idle:
        return False
    min(idle, key=lambda connection: connection.since).transport.abort()
    return True


def _refusal_of(error: BaseException | None) -> HttpRefusal:
    """Returns the refusal by the status that h11 gives."""
    match getattr(error, "error_status_hint", 400):
        case 431:
            return HeadTooLarge(f"the head of a request has at most {HEAD_BYTES} bytes")
        case 501:
            return NotImplementedHere("Transfer-Encoding: only 'chunked' is taken")
        case _:
            return BadRequest("this is not HTTP/1.1")


KEEP_ALIVE_S = 30
SWEEP_S = 5
LEAVE_S = 5
"""Seconds that connections have to end once the runs in flight have."""


class HttpServer(Server):
    """Serves an application on bound sockets until told to stop. Signals are the caller's business."""

    def __init__(self, app: ASGIApp) -> None:
        self.listening = asyncio.Event()
        self._stopped = asyncio.Event()
        super().__init__(
            Config(
                app,
                http=Connection,
                ws="none",
                loop="asyncio",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=1024,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LEAVE_S,
                timeout_notify=SWEEP_S,
                callback_notify=self._sweep,
                h11_max_incomplete_event_size=HEAD_BYTES,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Keeps house once a second, and stops without delay when it is told to."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopped.wait()

    def stop_accepting(self) -> None:
        """Refuses new connections from here on; those that are open are served."""
        for server in self.servers:
            server.close()

    def stop(self) -> None:
        self.should_exit = True
        self._stopped.set()

    async def _sweep(self) -> None:
        abort_overdue(self.server_state, asyncio.get_running_loop().time())


def listen(host: str, port: int) -> socket.socket:
    """Returns a bound and listening socket; port 0 lets the system choose. Raises OSError."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def url_of(host: str, sock: socket.socket) -> str:
    """Returns the URL of ``sock``; an address that means all addresses is shown as loopback."""
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
