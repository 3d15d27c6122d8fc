"""A stand-in for the lifecycle API of an OpenSandbox server, which runs nothing and fails as it is told to.

It is for errors: what a sandbox does is shown by the real server.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

KEY = "key-of-the-tests"
_BOUND_S = 60.0


@dataclass
class Fault:
    """The answer to the next ``count`` requests that begin with ``asked``.

    ``status`` and ``body`` are an answer in place of the own one. With ``cut`` there is none; with ``works``, what was
    asked for is done all the same. With ``silent`` nothing is said until the stand-in ends. ``endless`` is
    repeated for as long as somebody reads. With ``packed`` the body is said to be so.
    """

    asked: str
    status: int = 0
    body: bytes = b'{"code": "TESTS", "message": "as the tests want it"}'
    cut: bool = False
    works: bool = False
    silent: bool = False
    endless: bytes = b""
    packed: bool = False
    count: int = 1


@dataclass
class Lifecycle:
    """The stand-in behind ``domain``. ``asked`` has each request: method, path, parameters, headers and body."""

    port: int = 0
    page: int = 0
    """Most sandboxes on one page; 0 has as many as were asked for."""
    lists: bool = True
    """Whether lists have the sandboxes. A server that is making one may leave it out."""
    endpoint: dict[str, Any] = field(default_factory=lambda: {"endpoint": "127.0.0.1:9"})
    sandboxes: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, str, dict[str, str], dict[str, str], Any]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def domain(self) -> str:
        return f"127.0.0.1:{self.port}"

    def bodies(self, method: str, path: str) -> list[Any]:
        return [body for asked, where, _, _, body in self.asked if (asked, where) == (method, path)]

    def fault(self, asked: str) -> Fault | None:
        for fault in self.faults:
            if fault.count and asked.startswith(fault.asked):
                fault.count -= 1
                return fault
        return None

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Does what was asked for; returns the answer."""
        match method, path.strip("/").split("/")[1:]:
            case "POST", ["sandboxes"]:
                return 202, self._make(body)
            case "GET", ["sandboxes"]:
                return 200, self._listed(query)
            case "GET", ["sandboxes", id] if id in self.sandboxes:
                return 200, self.sandboxes[id]
            case "DELETE", ["sandboxes", id] if id in self.sandboxes:
                del self.sandboxes[id]
                return 204, None
            case "POST", ["sandboxes", id, "renew-expiration"] if id in self.sandboxes:
                self.sandboxes[id]["expiresAt"] = body["expiresAt"]
                return 200, {"expiresAt": body["expiresAt"]}
            case "GET", ["sandboxes", id, "endpoints", _] if id in self.sandboxes:
                return 200, self.endpoint
        return 404, {"code": "SANDBOX::NOT_FOUND", "message": "there is none"}

    def _make(self, body: Any) -> dict[str, Any]:
        id = f"sandbox-{len(self.asked)}"
        now, ends = (datetime.fromtimestamp(at, UTC).isoformat() for at in (time.time(), time.time() + body["timeout"]))
        self.sandboxes[id] = {
            "id": id, "status": {"state": "Running"}, "createdAt": now, "expiresAt": ends, "image": body["image"],
            "entrypoint": body["entrypoint"], "metadata": body.get("metadata", {}),
        }  # fmt: skip
        return self.sandboxes[id]

    def _listed(self, query: dict[str, str]) -> dict[str, Any]:
        wanted = dict(parse_qsl(query.get("metadata", "")))
        shown = self.sandboxes.values() if self.lists else ()
        found = [one for one in shown if wanted.items() <= one["metadata"].items()]
        size, page = self.page or int(query.get("pageSize", "20")), int(query.get("page", "1"))
        told = {"page": page, "pageSize": size, "totalItems": len(found), "totalPages": -(-len(found) // size)}
        return {
            "items": found[(page - 1) * size : page * size],
            "pagination": {**told, "hasNextPage": page * size < len(found)},
        }


@contextmanager
def lifecycle() -> Iterator[Lifecycle]:
    """Serves a stand-in on the loopback."""
    standin = Lifecycle()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_DELETE(self) -> None:
            self._serve()

        def _serve(self) -> None:
            told = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(told.query).items()}
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = json.loads(text) if text else None
            standin.asked.append((self.command, told.path, query, headers, body))
            fault = standin.fault(f"{self.command} {told.path}")
            if fault is not None and fault.silent:
                standin.ended.wait(_BOUND_S)
            if headers.get("open-sandbox-api-key", "") != KEY:
                return self._say(401, {"code": "AUTH", "message": f"{headers.get('open-sandbox-api-key')} is wrong"})
            if fault is None or fault.works:
                status, answer = standin.answer(self.command, told.path, query, body)
                if fault is None:
                    return self._say(status, answer)
            if fault.cut or fault.silent:
                self.close_connection = True
                return None
            if fault.endless:
                return self._go_on(fault.status, fault.endless)
            return self._say(fault.status, fault.body, packed=fault.packed)

        def _go_on(self, status: int, piece: bytes) -> None:
            self.close_connection = True
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            with suppress(OSError):
                while not standin.ended.wait(0.01 if len(piece) == 1 else 0):
                    self.wfile.write(piece)

        def _say(self, status: int, answer: Any, *, packed: bool = False) -> None:
            body = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if status == 307:
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            if packed:
                self.send_header("Content-Encoding", "gzip")
            if status == 429:
                self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    standin.port = server.server_address[1]
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    try:
        yield standin
    finally:
        standin.ended.set()
        server.shutdown()
        server.server_close()
        serving.join(_BOUND_S)
