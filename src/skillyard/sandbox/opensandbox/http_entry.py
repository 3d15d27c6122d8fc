"""The door: the first program of a sandbox, and the only way to its agent.

It answers HTTP on port 8080, to those who show its token. It takes the agent and the content, has the sandbox made, and
joins channels to the agent. This file is sent as it is, as a word of the sandbox's command, so it imports the standard
library only::

    GET    /ready               204
    PUT    /upload/NAME         takes a file: the guest, or the archive of content
    POST   /start               makes the sandbox that the order in the body describes; tells of it as a JSON object
    PUT    /channel/ID          opens a channel
    POST   /channel/ID?at=N     takes bytes for the agent, of which the first is number N
    GET    /channel/ID?from=N   gives the agent's bytes from number N on, as soon as there are any; 410 at the end
    DELETE /channel/ID          closes it

A request that is sent twice does nothing twice. ``SKILLYARD_DOOR`` is the SHA-256 of the token, so that nobody who
reads the order of the sandbox can enter.

The door holds no capability. Its child has them, which becomes the maker (:mod:`skillyard.sandbox.opensandbox.maker`),
and then the agent. The sandbox ends with that one, and where something has started execd again.
"""

from __future__ import annotations

import hashlib
import os
import select
import sys
import threading
import time
from _operator import _compare_digest as compare_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any
else:
    import _socket as socket

VARIABLE, HEADER, PORT = "SKILLYARD_DOOR", "X-Skillyard-Door", 8080
EXECD_PORT = 44772
ROOT = "/run/skillyard"
PRIVATE = f"{ROOT}/private"
"""Nobody but root enters it."""
GUEST, CONTENT, SOCKET = f"{ROOT}/guest.pyz", f"{PRIVATE}/content", f"{PRIVATE}/agent.sock"
UPLOADS = {"guest": GUEST, "content": CONTENT}
_CHANNELS = 16
_READ = 256 * 1024
_POLL_S = 15.0
_LOOK_S = 1.0
_MOST_BODY = 1 << 20
_MOST_HEAD = 64 * 1024
_IDLE_S, _CROWDED_S = 60.0, 0.1
_BACKLOG = 64
_CLOSES = "Connection: close\r\n"
_HEX, _ID_LENGTH = frozenset("0123456789abcdef"), 32
_DROP, _AMBIENT, _CLEAR, _VERSION, _CAPABILITIES = 24, 47, 4, 0x20080522, 64
"""Of prctl(2) and capset(2)."""


class Channel:
    """A connection to the agent. Bytes to the host are kept until it asks for later ones."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(SOCKET)
        self._in, self._out = threading.Lock(), threading.Lock()
        self._taken = self._first = 0
        self._kept = b""

    def take(self, at: int, data: bytes) -> bool:
        """Returns whether these bytes follow those before."""
        with self._in:
            known = self._taken - at
            if known < 0:
                return False
            self._socket.sendall(data[known:])
            self._taken = max(self._taken, at + len(data))
            return True

    def give(self, start: int) -> bytes | None:
        """Returns the bytes from ``start`` on; none after a while, None at the end."""
        with self._out:
            known = start - self._first
            if not 0 <= known <= len(self._kept):
                return None
            self._first, self._kept = start, self._kept[known:]
            if not self._kept:
                if not select.select([self._socket], [], [], _POLL_S)[0]:
                    return b""
                self._kept = self._socket.recv(_READ)
            return self._kept or None

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the agent has closed it
            pass
        with self._in, self._out:
            self._socket.close()


class Sandbox:
    """Everything that the door knows. ``maker`` is its child behind the socket."""

    def __init__(self, maker: int, behind: socket.socket) -> None:
        self._maker, self._behind = maker, behind
        self.lock = threading.Lock()
        self.channels: dict[str, Channel] = {}
        self.told = b""

    def start(self, order: bytes) -> bytes:
        """Has the sandbox made, once. Raises ValueError."""
        with self.lock:
            if not self.told:
                self._behind.sendall(order)
                self._behind.shutdown(socket.SHUT_WR)
                told = _whole(self._behind)
                if not told.startswith(b"{"):
                    raise ValueError(told.decode("utf-8", "replace") or "the agent does not start")
                self.told = told
                for watch in (self._watch_agent, _watch_execd):
                    threading.Thread(target=watch, daemon=True).start()
        return self.told

    def open(self, id: str) -> None:
        with self.lock:
            if id not in self.channels:
                while len(self.channels) >= _CHANNELS:
                    self.channels.pop(next(iter(self.channels))).close()
                self.channels[id] = Channel()

    def _watch_agent(self) -> None:
        """Ends the sandbox with its agent."""
        while os.wait()[0] != self._maker:  # others are what the maker has ended
            pass
        os._exit(0)


class Visit:
    """One connection: its requests, one after another."""

    def __init__(self, connection: socket.socket, sandbox: Sandbox, digest: str) -> None:
        self._connection, self._sandbox, self._digest = connection, sandbox, digest
        self._kept = b""
        self._left = 0
        self._query: dict[str, str] = {}

    def serve(self) -> None:
        """Answers until either side ends the connection."""
        self._connection.settimeout(_IDLE_S)
        try:
            while self._once():
                pass
        except (OSError, ValueError):
            pass  # it spoke no HTTP, or is gone
        finally:
            self._connection.close()

    def _once(self) -> bool:
        """Answers one request; returns whether another may follow. Raises OSError, ValueError."""
        while b"\r\n\r\n" not in self._kept:
            data = self._connection.recv(_READ)
            if not data or len(self._kept) > _MOST_HEAD:
                return False
            self._kept += data
        head, _, self._kept = self._kept.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        pairs = [line.partition(":")[::2] for line in lines]
        headers = {name.lower(): value.strip() for name, value in pairs}
        size = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not size.isdecimal() or len(headers) != len(pairs):
            return False
        self._left = int(size)
        status, body = self._answer(method, target, headers.get(HEADER.lower(), ""))
        goes_on = not self._left and version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        told = f"HTTP/1.1 {status} -\r\n"
        if status != 204:
            told += f"Content-Length: {len(body)}\r\n"
        self._connection.sendall(f"{told}{'' if goes_on else _CLOSES}\r\n".encode() + body)
        return goes_on

    def _answer(self, method: str, target: str, token: str) -> tuple[int, bytes]:
        path, _, query = target.partition("?")
        self._query = dict(pair.partition("=")[::2] for pair in query.split("&"))
        word, _, name = path.rpartition("/proxy/8080")[2].strip("/").partition("/")
        if not compare_digest(hashlib.sha256(token.encode("latin-1")).hexdigest(), self._digest):
            return 403, b""
        way = _WAYS.get((method, word))
        if way is None:
            return 404, b""
        try:
            return way(self, name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return 500, f"{type(error).__name__}: {error}"[:500].encode("utf-8", "replace")

    def _body(self, most: int) -> bytes:
        if self._left > most:
            raise ValueError(f"a body has at most {most} bytes")
        data = b""
        while self._left:
            data += self._piece()
        return data

    def _piece(self) -> bytes:
        if self._kept:
            data, self._kept = self._kept[: self._left], self._kept[self._left :]
        elif not (data := self._connection.recv(min(self._left, _READ))):
            raise ValueError("the body ended early")
        self._left -= len(data)
        return data

    def _ready(self, _: str) -> tuple[int, bytes]:
        return 204, b""

    def _upload(self, name: str) -> tuple[int, bytes]:
        place = UPLOADS[name]
        part = f"{PRIVATE}/{os.path.basename(place)}.{threading.get_ident()}"
        with open(part, "wb") as file:
            while self._left:
                file.write(self._piece())
        os.chmod(part, 0o444)
        os.rename(part, place)
        return 204, b""

    def _start(self, _: str) -> tuple[int, bytes]:
        return 200, self._sandbox.start(self._body(_MOST_BODY))

    def _open(self, id: str) -> tuple[int, bytes]:
        if len(id) != _ID_LENGTH or not _HEX.issuperset(id) or not self._sandbox.told:
            return 404, b""
        self._sandbox.open(id)
        return 204, b""

    def _take(self, id: str) -> tuple[int, bytes]:
        channel, data = self._sandbox.channels.get(id), self._body(_MOST_BODY)
        if channel is None:
            return 410, b""
        return (204 if channel.take(int(self._query["at"]), data) else 409), b""

    def _give(self, id: str) -> tuple[int, bytes]:
        channel = self._sandbox.channels.get(id)
        data = None if channel is None else channel.give(int(self._query["from"]))
        return (410, b"") if data is None else (200, data)

    def _close(self, id: str) -> tuple[int, bytes]:
        with self._sandbox.lock:
            channel = self._sandbox.channels.pop(id, None)
        if channel is not None:
            channel.close()
        return 204, b""


_WAYS: dict[tuple[str, str], Callable[[Visit, str], tuple[int, bytes]]] = {
    ("GET", "ready"): Visit._ready,
    ("PUT", "upload"): Visit._upload,
    ("POST", "start"): Visit._start,
    ("PUT", "channel"): Visit._open,
    ("POST", "channel"): Visit._take,
    ("GET", "channel"): Visit._give,
    ("DELETE", "channel"): Visit._close,
}


def _whole(source: socket.socket) -> bytes:
    found = b""
    while data := source.recv(_READ):
        found += data
    return found


def _watch_execd() -> None:
    """Ends the sandbox where something has started execd again."""
    while not listening():
        time.sleep(_LOOK_S)
    os._exit(0)


def listening() -> set[str]:
    """Returns the sockets that listen on execd's port."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{table}", encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
        except FileNotFoundError:
            continue
        for words in map(str.split, lines):
            if words[3] == "0A" and words[1].endswith(f":{EXECD_PORT:04X}"):
                found.add(f"socket:[{words[9]}]")
    return found


def make(behind: socket.socket) -> None:
    """Hands over to the maker that comes with the order."""
    if not (text := _whole(behind)):
        return  # the door is gone
    sys.path.insert(0, GUEST)
    from skillyard_guest.agent import jsontext  # type: ignore[import-not-found]  # in there

    sys.path.remove(GUEST)
    order = jsontext.decode(text)
    space: dict[str, Any] = {"__name__": "maker"}
    exec(order["maker"], space)  # noqa: S102 - our server's words
    space["make"](order, behind, listener(socket.AF_UNIX, SOCKET), listening)


def listener(family: int, address: Any) -> socket.socket:
    """Returns a socket that listens. Raises OSError."""
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(_BACKLOG)
    return listener


def give_up() -> None:
    """Gives up all capabilities, for this process and all that come of it. Raises OSError."""
    import ctypes
    from struct import pack

    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_CAPABILITIES):
        if libc.prctl(_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break  # the kernel has no more of them, or this process may not drop any
    head, nothing = pack("Ii", _VERSION, 0), pack("6I", *[0] * 6)
    if libc.prctl(_AMBIENT, ctypes.c_ulong(_CLEAR), 0, 0, 0) != 0 or libc.capset(head, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


def main() -> None:
    """Serves until the agent ends."""
    os.umask(0o022)
    digest = os.environ.pop(VARIABLE)
    os.makedirs(PRIVATE, exist_ok=True)
    os.chmod(PRIVATE, 0o700)
    door = listener(socket.AF_INET, ("", PORT))
    ours, theirs = socket.socketpair()
    maker = os.fork()
    if maker == 0:
        try:
            door.close()
            ours.close()
            make(theirs)
        finally:
            os._exit(1)
    theirs.close()
    give_up()
    sandbox = Sandbox(maker, ours)
    while True:
        try:
            fd, _ = door._accept()  # type: ignore[attr-defined]  # accept() is of the package socket
            visit = Visit(socket.socket(fileno=fd), sandbox, digest)
            threading.Thread(target=visit.serve, daemon=True).start()
        except (OSError, RuntimeError):  # a connection is gone, or none can be taken until others end
            time.sleep(_CROWDED_S)


if __name__ == "__main__":
    main()
