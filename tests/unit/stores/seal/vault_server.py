"""A server that speaks the part of Vault's HTTP API that reads secrets, as its documentation has it: KV version 1 and
2, tokens with policies on paths, namespaces, sealing, deleted versions. And one that says whatever a test wants."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

Reply = tuple[int, dict[str, Any]]


@dataclass
class Version:
    data: dict[str, Any] | None
    deletion_time: str = ""
    destroyed: bool = False


@dataclass
class FakeVault:
    """``mounts`` by name and KV version; ``tokens`` with the paths that each may read, in ``namespace``."""

    mounts: dict[str, int] = field(default_factory=lambda: {"secret": 2, "old": 1})
    tokens: dict[str, list[str]] = field(default_factory=dict)
    namespace: str = ""
    sealed: bool = False
    secrets: dict[str, list[Version]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    seen: list[dict[str, str]] = field(default_factory=list)
    delay_s: float = 0.0

    def put(self, path: str, **data: Any) -> None:
        """``path`` begins with the mount."""
        self.secrets.setdefault(path, []).append(Version(data))

    def read(self, path: str, headers: dict[str, str]) -> Reply:
        self.asked.append(path)
        self.seen.append(headers)
        time.sleep(self.delay_s)
        if self.sealed:
            return 503, {"errors": ["Vault is sealed"]}
        paths = self.tokens.get(headers.get("x-vault-token", ""))
        if paths is None or headers.get("x-vault-namespace", "") != self.namespace:
            return 403, {"errors": ["permission denied"]}
        if not any(fnmatchcase(path, pattern) for pattern in paths):
            return 403, {"errors": ["1 error occurred:\n\t* permission denied\n\n"]}
        mount, _, rest = path.partition("/")
        kind = self.mounts.get(mount)
        if kind is None:
            return 404, {"errors": [f'no handler for route "{path}". route entry not found.']}
        return self._first(path) if kind == 1 else self._second(mount, rest)

    def _first(self, path: str) -> Reply:
        if path not in self.secrets:
            return 404, {"errors": []}
        return 200, self._answer(self.secrets[path][-1].data or {})

    def _second(self, mount: str, rest: str) -> Reply:
        if not rest.startswith("data/"):
            why = "Invalid path for a versioned K/V secrets engine. See the API docs for the appropriate API endpoints"
            return 404, {**self._answer(None), "warnings": [why]}
        versions = self.secrets.get(f"{mount}/{rest.removeprefix('data/')}")
        if not versions:
            return 404, {"errors": []}
        last = versions[-1]
        gone = bool(last.deletion_time or last.destroyed)
        metadata = {
            "created_time": "2026-03-22T02:24:06.945319214Z",
            "custom_metadata": None,
            "deletion_time": last.deletion_time,
            "destroyed": last.destroyed,
            "version": len(versions),
        }
        return 404 if gone else 200, self._answer({"data": None if gone else last.data, "metadata": metadata})

    def _answer(self, data: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "request_id": "2a0a8d56-5b2a-3a28-5c5a-0c39e0f1a5f1",
            "lease_id": "",
            "renewable": False,
            "lease_duration": 2764800,
            "data": data,
            "wrap_info": None,
            "warnings": None,
            "auth": None,
        }


Handle = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def speaking(handle: Handle, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server whose GET requests ``handle`` answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            handle(self)

        def log_message(self, *_: object) -> None:
            return None

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: object) -> None:  # clients that go away
            return None

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def of(vault: FakeVault) -> Handle:
    def handle(request: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        if headers.get("x-vault-request") != "true" or not request.path.startswith("/v1/"):
            status, answer = 400, {"errors": ["missing 'X-Vault-Request' header"]}
        else:
            status, answer = vault.read(unquote(request.path.removeprefix("/v1/")), headers)
        reply(request, status, json.dumps(answer).encode() + b"\n")

    return handle


def reply(request: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    request.send_response(status)
    for name, value in {"Content-Type": "application/json", **headers}.items():
        request.send_header(name.replace("_", "-"), value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
