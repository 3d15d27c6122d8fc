"""The HTTP proxy (RFC 9112 §3.2.2): requests for ``http://`` addresses, and CONNECT.

Each request is judged and dialled on its own. After CONNECT, the connection is held to the host that was named.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib

import h11

from skillyard.gate.addresses import Host, parse_host_port, write_host_port
from skillyard.gate.http.content import ANY, ContentRules
from skillyard.gate.http.exchange import ClientSide, Exchange
from skillyard.gate.http.guard import refusal
from skillyard.gate.http.head import Fields, check_connection, check_host, end_to_end, split_target
from skillyard.gate.relay.first_bytes import HTTP_PORT, TLS_PORT
from skillyard.gate.relay.guard import ROOM, Failure, Refused, TimedOut, Unreachable
from skillyard.gate.relay.relay import relay, relay_exchange, tunnel
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Door, Session
from skillyard.gate.upstream import IdleUpstreams, Upstream

VIA, VIA_CONNECT = "http", "connect"
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def serve(session: Session, client: Stream, door: Door | None = None) -> None:
    """Serves one connection, each of whose requests ``door`` lets in.

    Raises as streams do, and Failure once the client was told."""
    connection = _Connection(session, client, door)
    try:
        while await connection.exchange():
            pass
    finally:
        connection.close()


class _Connection:
    """A client's connection with the servers' connections that its next requests may use."""

    def __init__(self, session: Session, client: Stream, door: Door | None) -> None:
        self._session = session
        self._client = client
        self._door = door
        self._side = ClientSide()
        self._idle = IdleUpstreams()

    def close(self) -> None:
        self._idle.close()

    async def exchange(self) -> bool:
        """Serves one request; returns whether there may be another.

        Raises Failure once the client was told."""
        try:
            request = await self._next_request()
        except Refused as refused:
            self._session.refuse(VIA, "", 0, refused.reason)
            await self._tell(refused)
            raise
        if request is None:
            await self._client.finish()
            return False
        if self._door is not None:
            await self._let_in(self._door, request)
        if request.method == b"CONNECT":
            await self._connect(request)
            return False
        return await self._forward(request)

    async def _next_request(self) -> h11.Request | None:
        """Returns the next request, None at the client's end. Raises Refused, TimeoutError."""
        limits, now = self._session.limits, asyncio.get_running_loop().time
        async with asyncio.timeout(limits.idle_s) as bound:
            begun = False
            while (request := self._side.request()) is None:
                if self._side.held and not begun:
                    begun = True
                    bound.reschedule(now() + limits.header_s)
                data = await self._client.read()
                if not data:
                    return None
                self._side.feed(data)
        return request

    async def _let_in(self, door: Door, request: h11.Request) -> None:
        """Raises Refused once the client was told."""
        shown = _shown(request)
        try:
            door.check(VIA, shown)
        except Refused as refused:
            await self._tell(refused, 403 if door.knows(shown) else 407)
            raise

    async def _tell(self, failure: Failure, refused: int = 403) -> None:
        status = refused if isinstance(failure, Refused) else 504 if isinstance(failure, TimedOut) else 502
        with contextlib.suppress(OSError):
            await self._client.write(refusal(failure.reason, status))
        await self._client.finish()

    async def _reach(self, via: str, host: Host, port: int) -> Upstream:
        """Returns a connection to the server. Raises Failure once the client was told."""
        try:
            return await self._session.reach(via, host, port)
        except Failure as failure:
            await self._tell(failure)
            raise

    async def _connect(self, request: h11.Request) -> None:
        try:
            host, port = _connect_target(request)
            ahead = self._said_ahead()
        except Refused as refused:
            self._session.refuse(VIA_CONNECT, "", 0, refused.reason)
            await self._tell(refused)
            raise
        upstream = await self._reach(VIA_CONNECT, host, port)
        try:
            await self._client.write(_ESTABLISHED)
        except BaseException:
            upstream.close()
            raise
        self._client.unread(ahead)
        await tunnel(self._session, self._client, upstream)

    def _said_ahead(self) -> bytes:
        """Returns bytes that the client sent before it was told that it may. Raises Refused."""
        if not isinstance(self._side.body(), h11.EndOfMessage):
            raise Refused("CONNECT with a body")
        return self._side.rest()

    async def _forward(self, request: h11.Request) -> bool:
        """Forwards a request; returns whether there may be another.

        Raises Failure once the client was told."""
        host, port, target = await self._judged(request)
        reused = self._idle.take((host, port))
        upstream = reused or await self._reach(VIA, host, port)
        guard: _ProxyExchange | None = None
        try:
            guard = _ProxyExchange(self._side, _passed_on(request, target), self._content())
            guard.go_on()
            await relay_exchange(self._client, upstream, guard)
        except (Refused, Unreachable) as failure:
            if isinstance(failure, Refused):
                upstream.refuse(failure.reason)
            upstream.close()
            if guard is not None and guard.answering:
                self._client.reset()
            else:
                await self._tell(failure)
            raise
        except OSError:
            upstream.close()
            if reused is not None or (guard is not None and guard.answering):
                raise
            await self._tell(Unreachable(f"{write_host_port(host, port)} ended without an answer"))
            return False
        except BaseException:
            upstream.close()
            raise
        if guard.raw:
            await relay(self._client, upstream)
            return False
        return await self._after(guard, upstream, (host, port), reused is not None)

    async def _judged(self, request: h11.Request) -> tuple[Host, int, bytes]:
        """Returns host, port and origin form of a request. Raises Refused once the client was told."""
        host: Host = ""
        port = 0
        try:
            named, target = split_target(request)
            if named is None:
                raise Refused("HTTP to a proxy needs an http:// address in its request line, or CONNECT")
            host, port = named
            check_host(request, host, port, HTTP_PORT)
            check_connection(request)
            if port == TLS_PORT:
                raise Refused(f"port {TLS_PORT} is for TLS, and what comes is HTTP")
        except Refused as refused:
            self._session.refuse(VIA, str(host), port, refused.reason)
            await self._tell(refused)
            raise
        return host, port, target

    def _content(self) -> ContentRules:
        interception = self._session.interception
        return ANY if interception is None else interception.plain_content()

    async def _after(self, guard: _ProxyExchange, upstream: Upstream, key: tuple[Host, int], reused: bool) -> bool:
        """Keeps or closes the connections after an exchange; returns whether the client may go on."""
        if not guard.complete:
            upstream.close()
            if guard.answered:  # before all was asked
                await self._client.finish()
                return False
            if guard.client_ended or guard.answering or reused:
                # What was cut off must not look whole; and a client asks again when a connection that it kept ends.
                self._client.reset()
                return False
            await self._tell(Unreachable(f"{write_host_port(*key)} ended without an answer"))
            return False
        if guard.server_may_go_on and not guard.server_ended:
            self._idle.put(key, upstream)
        else:
            upstream.close()
        if not self._side.may_go_on:
            await self._client.finish()
            return False
        self._side.next()
        return True


class _ProxyExchange(Exchange):
    """Guards one judged request and its answer (:class:`~skillyard.gate.relay.guard.Guard`)."""

    def __init__(self, side: ClientSide, request: h11.Request, content: ContentRules) -> None:
        super().__init__(side, request, hop=True, content=content)
        self.client_ended = False
        self.server_ended = False

    @property
    def raw(self) -> bool:
        return self.switched

    @property
    def wants_client(self) -> bool:
        return self._client.held < ROOM

    @property
    def over(self) -> bool:
        return not self.busy and (self.complete or self.server_ended or (self.client_ended and self._client.in_body))

    def client_says(self, data: bytes) -> None:
        if data:
            self._client.feed(data)
        self.client_ended = not data
        self.go_on()

    def server_says(self, data: bytes) -> None:
        self.server_ended = not data
        super().server_says(data)
        self.go_on()


def _connect_target(request: h11.Request) -> tuple[Host, int]:
    """Returns the target of CONNECT. Raises Refused."""
    named = parse_host_port(request.target.decode("latin-1"))
    if named is None:
        raise Refused("CONNECT to a target that is not a valid HOST:PORT")
    if any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers):
        raise Refused("CONNECT with a body")
    return named


def _shown(request: h11.Request) -> bytes | None:
    """Returns the user and password that a request shows (RFC 9110 §11.7.2, RFC 7617)."""
    fields = [value for name, value in request.headers if name == b"proxy-authorization"]
    scheme, _, coded = fields[0].partition(b" ") if len(fields) == 1 else (b"", b"", b"")
    try:
        return base64.b64decode(coded.strip(), validate=True) if scheme.lower() == b"basic" else None
    except binascii.Error:
        return None


def _passed_on(request: h11.Request, target: bytes) -> h11.Request:
    """Returns the request as the server gets it: in origin form, without fields for the proxy."""
    fields: Fields = [(name, value) for name, value in end_to_end(request.headers) if not _for_proxy(name)]
    if check_connection(request):
        fields += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    return h11.Request(method=request.method, target=target, headers=fields)


def _for_proxy(name: bytes) -> bool:
    return name.lower().startswith(b"proxy-")
