"""Connections to servers between two requests of one client, for the next request to the same server."""

from __future__ import annotations

import socket

from skillyard.gate.host_port import Host
from skillyard.gate.upstream import Upstream
from skillyard.gate.visit import current_visit

_MOST = 4


class Parked:
    """A narrower policy, a limit or the session's end closes what waits here, and the client's connection goes on."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[Host, int], Upstream] = {}

    def put(self, key: tuple[Host, int], upstream: Upstream) -> None:
        if (old := self._waiting.pop(key, None)) is not None:
            old.close()
        if len(self._waiting) >= _MOST:
            self._waiting.pop(next(iter(self._waiting))).close()
        upstream.visit = None
        self._waiting[key] = upstream

    def take(self, key: tuple[Host, int]) -> Upstream | None:
        """One on which nothing was said that nobody asked for, not even its end."""
        upstream = self._waiting.pop(key, None)
        if upstream is None or upstream.closed:
            return None
        try:
            upstream.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            upstream.visit = current_visit()
            return upstream
        except OSError:
            pass
        upstream.close()
        return None

    def close(self) -> None:
        for upstream in self._waiting.values():
            upstream.close()
        self._waiting.clear()
