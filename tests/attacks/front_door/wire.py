"""A raw connection and a strict reader of what comes back: a response that is not correct HTTP/1.1 fails the test."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any

BOUND_S = 20.0
STATUS = re.compile(rb"HTTP/1\.1 ([1-5]\d\d) ([\t\x20-\x7e]*)")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\t\x20-\x7e]*)")
BODYLESS = (204, 304)


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The JSON-RPC error that it must hold."""
        envelope = self.json
        assert envelope.keys() == {"jsonrpc", "id", "error"}
        assert envelope["jsonrpc"] == "2.0"
        found: dict[str, Any] = envelope["error"]
        assert found.keys() == {"code", "message", "data"}
        assert isinstance(found["data"]["type"], str)
        return found


class Wire:
    """Use as a context manager. ``responses`` read so far are kept apart from what follows them."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), BOUND_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self._socket.close()

    def send(self, data: bytes) -> Wire:
        """As much as the server takes: it may have answered and closed."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)
        return self

    def end(self) -> Wire:
        """No more comes from us."""
        self._socket.shutdown(socket.SHUT_WR)
        return self

    def response(self, method: str = "GET", *, interim: bool = False) -> Response:
        """The next one, by its framing. A 100 before it is passed over unless it is asked for."""
        while (found := self._response(method)).status == 100 and not interim:
            continue
        return found

    def closed(self) -> bool:
        """Waits for the end; True when nothing else came before it."""
        try:
            return not self._buffer and self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def _response(self, method: str) -> Response:
        status, *lines = self._until(b"\r\n\r\n").split(b"\r\n")
        first = STATUS.fullmatch(status)
        assert first, status
        headers: dict[str, str] = {}
        for line in lines:
            field = FIELD.fullmatch(line)
            assert field, line
            name = field[1].decode().lower()
            assert name not in headers, f"{name} came twice"
            headers[name] = field[2].decode().strip()
        return Response(int(first[1]), headers, self._body(int(first[1]), headers, method))

    def _body(self, status: int, headers: dict[str, str], method: str) -> bytes:
        if status == 100 or status in BODYLESS:
            assert headers.get("content-length", "0") == "0" or status == 304
            return b""
        assert "transfer-encoding" not in headers
        assert headers["content-length"].isdecimal()
        return b"" if method == "HEAD" else self._exactly(int(headers["content-length"]))

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    def _more(self) -> None:
        data = self._socket.recv(65536)
        assert data, f"closed within a response: {self._buffer[:200]!r}"
        self._buffer += data
