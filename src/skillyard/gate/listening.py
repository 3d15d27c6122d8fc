"""The sockets that wait inside one session's sandbox, each with what is spoken there."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from skillyard.domain.network.session import DNS_PORT, PROXY_PORT
from skillyard.gate import direct, proxy
from skillyard.gate.addresses import endpoint
from skillyard.gate.descriptors import Room
from skillyard.gate.dns import server
from skillyard.gate.dns.server import Datagrams
from skillyard.gate.listener import Door, Serve
from skillyard.gate.session import Session

_SPOKEN: dict[int, Serve] = {DNS_PORT: server.serve, PROXY_PORT: proxy.serve}


class Listening:
    """``on_fault`` is told of what went wrong in a way that nobody foresaw."""

    def __init__(self, session: Session, room: Room, on_fault: Callable[[BaseException], None]) -> None:
        self._session = session
        self._room = room
        self._on_fault = on_fault
        self._served: list[Door | Datagrams] = []

    def add(self, sockets: Sequence[socket.socket]) -> None:
        """They are served until :meth:`close`. Raises OSError for what is no socket that we know."""
        for sock in sockets:
            sock.setblocking(False)
            self._served.append(self._serve(sock))
            self._room.listening += 1

    def _serve(self, sock: socket.socket) -> Door | Datagrams:
        if sock.type == socket.SOCK_DGRAM:
            return Datagrams(self._session, sock)
        _, port = endpoint(sock.getsockname())
        return Door(self._session, sock, _SPOKEN.get(port, direct.serve), self._room, self._on_fault)

    def close(self) -> None:
        """Idempotent."""
        for served in self._served:
            served.close()
        self._room.listening -= len(self._served)
        self._served.clear()
