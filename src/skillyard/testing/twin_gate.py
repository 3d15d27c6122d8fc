"""A twin of the gate for the conformance suite of sandboxes.

It serves a backend's sockets in this process, dials nobody, and remembers who came.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skillyard.domain.errors import GateFault
from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import (
    DNS_PORT,
    PROXY_PORT,
    Connection,
    EgressPlan,
    Endpoint,
    EndpointKind,
    NetworkLog,
)
from skillyard.domain.sandbox.spec import Mount
from skillyard.ports.gate import Answer

KNOWN_NAME, KNOWN_ADDRESS = "known.test", "198.18.0.2"
"""The one name that a twin's name server answers."""

_HEAD = struct.Struct(">6H")
_RESPONSE, _NO_SUCH_NAME, _TYPE_A = 0x8180, 3, 1


@dataclass
class TwinSession:
    """Greets each connection with ``meant ADDRESS PORT`` and remembers it in ``arrived``.

    A connection stays open until the other end closes it or the session is cut. To one that begins with ``count`` it
    then tells how many bytes came.
    """

    id: str
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    arrived: list[tuple[str, int]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)
    ended: int = 0
    """Connections that the other end closed."""
    _listeners: list[socket.socket] = field(default_factory=list)
    _counted: dict[socket.socket, int] = field(default_factory=dict)
    _way: Endpoint | None = None
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    def way(self) -> Endpoint:
        """Returns the endpoint for a backend, whose connections count as those to the proxy's port."""
        if self._way is None:
            place = tempfile.mkdtemp(prefix="twin-gate-")
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{place}/s")
            listener.listen()
            self._way = Endpoint(EndpointKind.UNIX, f"{place}/s", secrets.token_hex(16))
            self.serve([listener])
            listener.close()
        return self._way

    def serve(self, sockets: Sequence[socket.socket]) -> None:
        for given in sockets:
            sock = given.dup()
            sock.setblocking(False)
            self._listeners.append(sock)
            _watch(sock, self._reader(sock))

    def ports(self) -> list[int]:
        """Of streams that are listened on."""
        internet = (s for s in self._listeners if s.family != socket.AF_UNIX)
        return sorted(s.getsockname()[1] for s in internet if s.type == socket.SOCK_STREAM)

    @property
    def policy(self) -> Policy:
        return Policy()

    def attend(self, plug: Callable[[], Awaitable[None]]) -> None:
        """Does nothing: a twin is never opened again."""

    def answer_calls(self, answer: Answer) -> None:
        """Does nothing: a twin passes no calls on."""

    async def lost(self) -> str:
        await self._gone.wait()
        return "the twin was cut"

    def cut(self) -> None:
        """As the death of the gate's process: everything is closed at once."""
        self._gone.set()
        for sock in (*self._listeners, *self.connections):
            _forget(sock)
        self._listeners.clear()
        self.connections.clear()
        if self._way is not None:
            shutil.rmtree(Path(self._way.address).parent)
            self._way = None

    async def change(self, policy: Policy) -> None:  # noqa: ARG002 - as the port has it
        raise GateFault("a twin knows no policy")

    async def log(self) -> NetworkLog:
        kinds = [Connection("direct", host, port, allowed=True, count=1) for host, port in self.arrived]
        return NetworkLog(tuple(kinds))

    async def close(self) -> NetworkLog:
        self.cut()
        return await self.log()

    def _reader(self, sock: socket.socket) -> Callable[[], None]:
        if sock.type == socket.SOCK_DGRAM:
            return lambda: self._answer_datagram(sock)
        return lambda: self._accept(sock)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        self.connections.append(connection)
        if listener.family == socket.AF_UNIX:
            _watch(connection, lambda: self._knocked(connection))
            return
        host, port = connection.getsockname()[:2]
        if port == DNS_PORT:
            _watch(connection, lambda: self._answer_stream(connection))
            return
        self._greet(connection, _plain(host), port)

    def _knocked(self, connection: socket.socket) -> None:
        """Reads the knock, which comes in one piece, and nothing of the program's words."""
        assert self._way is not None, "a twin that was cut has no connections"
        knock = self._way.knock()
        try:
            said = connection.recv(len(knock))
        except OSError:
            said = b""
        if said == knock:
            self._greet(connection, "127.0.0.1", PROXY_PORT)
        else:
            self._end(connection)

    def _greet(self, connection: socket.socket, host: str, port: int) -> None:
        self.arrived.append((host, port))
        connection.send(f"meant {host} {port}\n".encode())
        _watch(connection, lambda: self._read(connection))

    def _read(self, connection: socket.socket) -> None:
        try:
            if data := connection.recv(65536):
                if connection in self._counted or data.startswith(b"count"):
                    self._counted[connection] = self._counted.get(connection, 0) + len(data)
                return
            if (count := self._counted.pop(connection, None)) is not None:
                connection.send(f"{count}\n".encode())
        except BlockingIOError:
            return
        except OSError:
            pass
        self.ended += 1
        self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        _forget(connection)
        if connection in self.connections:
            self.connections.remove(connection)

    def _answer_datagram(self, sock: socket.socket) -> None:
        """From the address that was asked, whichever that was."""
        try:
            query, beside, _, sender = sock.recvmsg(512, 128)
            sock.sendmsg([self._answer(query)], beside, 0, sender)
        except OSError:
            return

    def _answer_stream(self, connection: socket.socket) -> None:
        """The first query, in one piece (RFC 1035 §4.2.2)."""
        try:
            query = connection.recv(514)[2:]
            answer = self._answer(query)
            connection.send(struct.pack(">H", len(answer)) + answer)
        except (OSError, struct.error):
            pass
        self._end(connection)

    def _answer(self, query: bytes) -> bytes:
        number, *_ = _HEAD.unpack_from(query)
        name, end = _name(query, _HEAD.size)
        kind = struct.unpack_from(">H", query, end)[0]
        question = query[_HEAD.size : end + 4]
        self.asked.append(name)
        if name != KNOWN_NAME:
            return _HEAD.pack(number, _RESPONSE | _NO_SUCH_NAME, 1, 0, 0, 0) + question
        if kind != _TYPE_A:
            return _HEAD.pack(number, _RESPONSE, 1, 0, 0, 0) + question
        record = struct.pack(">HHHIH", 0xC00C, _TYPE_A, 1, 1, 4) + socket.inet_aton(KNOWN_ADDRESS)
        return _HEAD.pack(number, _RESPONSE, 1, 1, 0, 0) + question + record


class TwinGate:
    """``sessions`` by id."""

    def __init__(self) -> None:
        self.sessions: dict[str, TwinSession] = {}
        self.kept: set[str] = set()

    async def open(
        self,
        key: str,
        plan: EgressPlan | None = None,  # noqa: ARG002 - as the port has it
        kept: bool = False,
    ) -> TwinSession:
        if kept:
            self.kept.add(key)
        return self.sessions.setdefault(key, TwinSession(key))

    async def attach(self, key: str) -> TwinSession:
        if key not in self.kept:
            raise GateFault(f"the gate keeps no session '{key}'")
        return self.sessions[key]

    async def held(self) -> Collection[str]:
        return frozenset(self.kept)

    async def discard(self, key: str) -> None:
        if key in self.kept:
            self.kept.discard(key)
            await self.sessions.pop(key).close()

    async def endpoint(self, key: str, kind: EndpointKind) -> Endpoint:
        raise GateFault(f"no endpoint of the kind {kind.value} can be had of a twin for '{key}'")

    def served(self, session: str) -> Collection[int]:
        found = self.sessions.get(session)
        return () if found is None else found.ports()

    async def way(self, session: str) -> Endpoint:
        if session not in self.sessions:
            raise GateFault(f"no session {session!r}")
        return self.sessions[session].way()

    async def plug(self, session: str, sockets: Sequence[socket.socket]) -> None:
        found = self.sessions.get(session)
        if found is not None:
            found.serve(sockets)
        for sock in sockets:
            sock.close()
        if found is None:
            raise GateFault(f"no session {session!r}")

    async def close(self) -> None:
        for session in self.sessions.values():
            session.cut()
        self.sessions.clear()


def _watch(sock: socket.socket, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().add_reader(sock.fileno(), call)


def _forget(sock: socket.socket) -> None:
    if sock.fileno() >= 0:
        asyncio.get_running_loop().remove_reader(sock.fileno())
        sock.close()


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:")


def _name(query: bytes, at: int) -> tuple[str, int]:
    """The name there, and where it ends."""
    labels: list[str] = []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace").lower())
        at += 1 + query[at]
    return ".".join(labels), at + 1
