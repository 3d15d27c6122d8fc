"""A package index on the loopback (PEP 503), which gives what a test puts into it, true or not."""

from __future__ import annotations

import hashlib
import ssl
import threading
from collections.abc import Mapping
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, cast

from tests.unit.engine.packages.wheels import make_wheel, wheel_name


class Index:
    """``asked`` are the paths that were asked for. ``hold`` keeps every answer back until it is set; ``login`` is what
    Authorization has to say, ``published`` what others put there: method, Authorization and body. A file is
    ``redirected`` elsewhere, or said to have another digest (``lies``). ``host`` is what its address calls it."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.host = host
        self.files: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []
        self.authorizations: list[str] = []
        self.published: list[tuple[str, str, bytes]] = []
        self.lies: dict[str, str] = {}
        self.redirected: dict[str, str] = {}
        self.login = ""
        self.answering = threading.Event()
        self.answering.set()
        self._server = _Server(self, tls)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{'https' if self._server.tls else 'http'}://{self.host}:{self.port}/simple"

    def __enter__(self) -> Index:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.answering.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, name: str, version: str = "1.0", **more: Any) -> str:
        """A wheel as :func:`make_wheel` makes it; its file name."""
        return self.put(wheel_name(name, version, more.get("tag", "py3-none-any")), make_wheel(name, version, **more))

    def put(self, filename: str, data: bytes) -> str:
        project = filename.partition("-")[0].replace("_", "-").lower()
        self.files.setdefault(project, {})[filename] = data
        return filename

    def page(self, project: str) -> bytes | None:
        files = self.files.get(project)
        if files is None:
            return None
        links = (f'<a href="/files/{escape(f)}#sha256={self._digest(f, data)}">{f}</a>' for f, data in files.items())
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()

    def file(self, filename: str) -> bytes | None:
        return next((files[filename] for files in self.files.values() if filename in files), None)

    def downloads(self) -> list[str]:
        return [path.removeprefix("/files/") for path in self.asked if path.startswith("/files/")]

    def _digest(self, filename: str, data: bytes) -> str:
        return self.lies.get(filename) or hashlib.sha256(data).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, index: Index, tls: ssl.SSLContext | None) -> None:
        self.index = index
        self.tls = tls
        super().__init__(("127.0.0.1", 0), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In a thread of the connection's own."""
        if self.tls is not None:
            request = self.tls.wrap_socket(request, server_side=True)
        try:
            super().finish_request(request, client_address)
        finally:
            request.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A build that is ended hangs up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        index = cast("_Server", self.server).index
        if self.command == "GET":
            index.asked.append(self.path)
        given = self.headers.get("authorization", "")
        index.authorizations.append(given)
        index.answering.wait(60)
        if index.login and given != index.login:
            return self._answer(401, {"www-authenticate": "Basic"}, b"who are you?")
        kind, _, name = self.path.strip("/").partition("/")
        if kind == "simple":
            page = index.page(name.strip("/"))
            return self._answer(404 if page is None else 200, {"content-type": "text/html"}, page or b"")
        if name in index.redirected:
            return self._answer(302, {"location": index.redirected[name]}, b"")
        data = index.file(name) if kind == "files" else None
        return self._answer(404 if data is None else 200, {"content-type": "application/octet-stream"}, data or b"")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Takes whatever somebody publishes."""
        index = cast("_Server", self.server).index
        length = int(self.headers.get("content-length", "0"))
        index.published.append((self.command, self.headers.get("authorization", ""), self.rfile.read(length)))
        self._answer(200, {}, b"published")

    do_PUT = do_POST

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""
