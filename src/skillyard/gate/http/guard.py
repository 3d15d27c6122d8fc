"""Guards HTTP/1 on a relayed connection.

Every request must be for the host and port of the connection.
"""

from __future__ import annotations

from typing import NoReturn

import h11

from skillyard.gate.addresses import Host, write_host_port
from skillyard.gate.http.content import ANY, ContentRules
from skillyard.gate.http.exchange import ClientSide, Exchange
from skillyard.gate.http.head import check_connection, check_host, split_target
from skillyard.gate.relay.guard import ROOM, Failure, Outbox, Refused

HTTP = 80


def refusal(reason: str, status: int = 403) -> bytes:
    """Returns the one-line answer that an HTTP client gets before its connection ends."""
    title = {
        403: b"Forbidden",
        407: b'Proxy Authentication Required\r\nProxy-Authenticate: Basic realm="skillyard"',
        502: b"Bad Gateway",
        504: b"Gateway Timeout",
    }[status]
    body = " ".join(reason.split()).encode("ascii", "backslashreplace") + b"\n"
    return b"HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        status,
        title,
        len(body),
        body,
    )


class HttpGuard(Outbox):
    """Guards HTTP (:class:`~skillyard.gate.relay.guard.Guard`), one exchange at a time.

    A request that was sent ahead is judged when the answer before it is complete, so that each answer belongs to the
    request that was judged. A Host field without a port means ``default_port``; ``content`` judges the messages beyond
    their form."""

    def __init__(self, host: Host, port: int, *, default_port: int = HTTP, content: ContentRules = ANY) -> None:
        super().__init__()
        self._host = host
        self._port = port
        self._default_port = default_port
        self._content = content
        self._client = ClientSide()
        self._exchange: Exchange | None = None
        self._client_ended = False
        self._server_ended = False
        self.raw = False
        self.over = False

    @property
    def wants_client(self) -> bool:
        return self._client.held < ROOM

    @property
    def asked(self) -> bool:
        """Returns whether a request is under way."""
        return self._exchange is not None

    @property
    def busy(self) -> bool:
        return self._exchange is not None and self._exchange.busy and not self.over

    def client_says(self, data: bytes) -> None:
        if self.raw:
            self._to_server += data
            return
        if data:
            self._client.feed(data)
        self._client_ended = not data
        self.go_on()

    def server_says(self, data: bytes) -> None:
        if self.raw:
            self._to_client += data
            return
        self._server_ended = not data
        if self._exchange is None:
            self.over = True  # its end, or words that nobody asked for
        else:
            self._exchange.server_says(data)
            self.go_on()

    @property
    def holding(self) -> bool:
        return self._exchange is not None and self._exchange.holding and not self.over and not self.raw

    def server_pauses(self) -> None:
        if self._exchange is not None and self.holding:
            self._exchange.pause()
            self._take(self._exchange)

    def go_on(self) -> None:
        try:
            while not self.over and not self.raw and self._next_step():
                pass
        except Failure as failure:
            self.fail(failure)

    def _next_step(self) -> bool:
        """Passes on what it can; returns whether there is another step."""
        exchange = self._exchange
        if exchange is None:
            request = self._client.request()
            if request is None:
                self.over = self._client_ended
                return False
            exchange = self._exchange = self._begun(request)
        exchange.go_on()
        self._take(exchange)
        if exchange.switched:
            self.raw = True
        elif exchange.complete:
            self._exchange = None
            self.over = self._server_ended or not (exchange.server_may_go_on and self._client.may_go_on)
            self._client.next()
            return True
        elif not exchange.busy:
            cut_off = self._client_ended and self._client.in_body
            self.over = self._server_ended or exchange.rest_unwanted or cut_off
        return False

    def _begun(self, request: h11.Request) -> Exchange:
        return Exchange(self._client, self._judged(request), hop=False, content=self._content)

    def _judged(self, request: h11.Request) -> h11.Request:
        """Returns the request as it is sent. Raises Refused."""
        named, path = split_target(request)
        if named is not None and named != (self._host, self._port):
            raise Refused(f"HTTP for {write_host_port(*named)}, not {write_host_port(self._host, self._port)}")
        check_host(request, self._host, self._port, self._default_port)
        check_connection(request)
        return h11.Request(method=request.method, target=path, headers=list(request.headers.raw_items()))

    def _take(self, exchange: Exchange) -> None:
        self._to_server += exchange.for_server()
        self._to_client += exchange.for_client()

    def fail(self, failure: Failure) -> NoReturn:
        """Ends the connection; the client is told unless it has some of an answer."""
        self.over = True
        answering = False
        if self._exchange is not None:
            if self._exchange.holding:
                self._exchange.pause()
            self._take(self._exchange)
            answering = self._exchange.answering
        self._to_server.clear()
        if not answering:
            self._to_client += refusal(failure.reason, 403 if isinstance(failure, Refused) else 502)
        raise failure
