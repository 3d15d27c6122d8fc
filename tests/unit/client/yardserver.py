"""A small real HTTP server that speaks the protocol, scripted by the test that starts it."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Method = Callable[[dict[str, Any]], dict[str, Any]]
TOKEN = "test-token-0123456789abcdef"


class Refusal(Exception):
    """What a scripted method raises to answer with a JSON-RPC error."""

    def __init__(self, code: int, message: str, **data: Any) -> None:
        self.error: dict[str, Any] = {"code": code, "message": message, "data": data}


class YardServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, methods: dict[str, Method], address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        super().__init__(address, Handler)
        self.methods = methods
        self.blobs: dict[str, tuple[str, bytes]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.tokens: list[str | None] = []
        self.connections = 0
        self.gone = threading.Event()
        self.sockets: list[socket.socket] = []
        self.blob_limit: int | None = None
        self.raw_answer: bytes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: YardServer
    timeout = 30

    def setup(self) -> None:
        self.server.connections += 1
        self.server.sockets.append(self.request)
        super().setup()

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.server.raw_answer is not None:
            self.wfile.write(self.server.raw_answer)
            self.close_connection = True
            return
        if not self._authorised():
            return
        request = json.loads(body)
        self.server.calls.append((request["method"], request["params"]))
        answer = {"jsonrpc": "2.0", "id": request["id"]} | self._outcome(request)
        self._json(200, answer)

    def _outcome(self, request: dict[str, Any]) -> dict[str, Any]:
        method = self.server.methods.get(request["method"])
        if method is None:
            return {"error": {"code": -32601, "message": "there is no such method"}}
        try:
            return {"result": method(request["params"])}
        except Refusal as refusal:
            return {"error": refusal.error}

    def do_PUT(self) -> None:
        if not self._authorised():
            return
        limit = self.server.blob_limit
        if limit is not None and int(self.headers.get("content-length", limit + 1)) > limit:
            self.close_connection = True
            self._error(413, -32602, "blob: must be at most 10 bytes", "QuotaExceeded")
            return
        data = b"".join(self._body())
        blob_id = f"blob:t{len(self.server.blobs)}"
        self.server.blobs[blob_id] = (self.headers["content-type"], data)
        digest = hashlib.sha256(data).hexdigest()
        self._json(201, {"blob_id": blob_id, "size_bytes": len(data), "sha256": digest})

    def _body(self) -> Iterator[bytes]:
        if "content-length" in self.headers:
            yield self.rfile.read(int(self.headers["content-length"]))
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def do_GET(self) -> None:
        if not self._authorised():
            return
        kind, data = self.server.blobs.get(self.path.removeprefix("/blobs/"), ("", None))
        if data is None:
            self._error(404, -32602, "blob_id: no such blob", "BlobNotFound")
            return
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Content-Type": kind}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if wanted:
            start, end = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
            if start >= len(data):
                self._error(416, -32602, "range: outside the blob", "InvalidParams")
                return
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
            self._answer(206, data[start : end + 1], headers)
        else:
            self._answer(200, data, headers)

    def _authorised(self) -> bool:
        header = self.headers.get("authorization")
        self.server.tokens.append(header.removeprefix("Bearer ") if header else None)
        if header == f"Bearer {TOKEN}":
            return True
        self.close_connection = True
        self._error(401, -32001, "no or unknown token", "Unauthenticated")
        return False

    def _error(self, status: int, code: int, message: str, kind: str) -> None:
        error = {"code": code, "message": message, "data": {"type": kind}}
        self._json(status, {"jsonrpc": "2.0", "id": None, "error": error})

    def _json(self, status: int, value: dict[str, Any]) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(methods: dict[str, Method] | None = None) -> Iterator[YardServer]:
    server = YardServer(methods or {})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def completed(output: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "status": "completed",
        "run_id": "run_1",
        "summary": "Completed in 3 ms",
        "output": output if output is not None else {},
        "output_blobs": [],
        "logs_preview": "",
    } | more


def failed(kind: str, message: str, **more: Any) -> dict[str, Any]:
    error = {"type": kind, "message": message}
    return completed(status="failed", summary=message, error=error, output=None) | more
