"""Web servers that remember what they were asked: plain and TLS, several names by SNI."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

BLOCK = b"skillyard egress " * 4096


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it arrived, at the address ``at``. ``sni`` is None on a plain connection and for a client that
    named nobody."""

    server: str
    at: str
    sni: str | None
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


Answer = tuple[int, Mapping[str, str], bytes]
Route = Callable[[Asked], Answer]


class Web:
    """One listener. ``routes`` are further answers by path prefix; ``contexts`` by server name make it a TLS server.

    Of its own it knows ``/hello``, ``/echo`` (what was asked, in JSON), ``/bytes/N`` and ``/to/STATUS?URL`` (a
    redirect).
    """

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        seen: list[Asked],
        contexts: Mapping[str, ssl.SSLContext] | None = None,
        routes: Mapping[str, Route] | None = None,
    ) -> None:
        self.name = name
        self.seen = seen
        self.contexts = dict(contexts or {})
        self.routes = routes or {}
        self._tls = self._chooser() if self.contexts else None
        self._server = _Server(self, address)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wrap(self, sock: socket.socket) -> tuple[socket.socket, str | None]:
        """The connection as the handler uses it, and the name that its client asked for."""
        if self._tls is None:
            return sock, None
        wrapped = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        try:
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        return wrapped, getattr(wrapped, "asked_name", None)

    def _chooser(self) -> ssl.SSLContext:
        """Shows the certificate of the name that a client asks for, and to who asks for none the first."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

        def choose(tls: Any, name: str | None, _: ssl.SSLContext) -> None:
            tls.asked_name = name
            tls.context = self.contexts.get(name or "") or next(iter(self.contexts.values()))

        context.sni_callback = choose
        context.sslsocket_class = _Accepted
        return context


class _Accepted(ssl.SSLSocket):
    """One that was reset meanwhile fails in its handshake; ssl.py would else fail before, and leave it open."""

    def getpeername(self) -> Any:
        with suppress(OSError):
            return super().getpeername()

    def __del__(self) -> None:
        """What ssl.py left behind of a client that broke off is no leak of what is tested."""
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, web: Web, address: tuple[str, int]) -> None:
        self.web = web
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that break off are what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True

    def setup(self) -> None:
        self.web = cast("_Server", self.server).web
        self.request.settimeout(self.timeout)
        try:
            self.request, self.sni = self.web.wrap(self.request)
            super().setup()
        except OSError:  # a client that is gone already
            self.request.close()
            raise

    def finish(self) -> None:
        super().finish()
        self.request.close()  # the one that wraps what the server closes

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def _serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else b""
        headers = {name.lower(): value for name, value in self.headers.items()}
        at = str(self.request.getsockname()[0]).removeprefix("::ffff:")
        asked = Asked(self.web.name, at, self.sni, self.command, self.path, headers, body)
        self.web.seen.append(asked)
        status, given, content = self._answer(asked)
        self.send_response(status)
        for name, value in given.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_HEAD = do_PATCH = do_DELETE = _serve

    def _answer(self, asked: Asked) -> Answer:
        url = urlsplit(asked.target)
        for prefix, route in self.web.routes.items():
            if url.path.startswith(prefix):
                return route(asked)
        if url.path == "/hello":
            return 200, {"content-type": "text/plain"}, b"hello"
        if url.path == "/echo":
            told = {"sni": asked.sni, "method": asked.method, "target": asked.target, "headers": dict(asked.headers),
                    "body": asked.body.decode("latin-1")}  # fmt: skip
            return 200, {"content-type": "application/json"}, json.dumps(told).encode()
        if url.path.startswith("/bytes/"):
            size = int(url.path.rpartition("/")[2])
            return 200, {"content-type": "application/octet-stream"}, (BLOCK * (size // len(BLOCK) + 1))[:size]
        if url.path.startswith("/to/"):
            where = parse_qs(url.query).get("u", [unquote(url.query)])[0]
            return int(url.path.rpartition("/")[2]), {"location": where}, b""
        return 404, {}, b"not here"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""
