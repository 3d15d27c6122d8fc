"""uvicorn, configured in code: what listens, how it stops, and what it does to clients that dawdle."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from starlette.types import ASGIApp
from uvicorn import Config, Server

from skillyard.faces.http.guard import HEAD_BYTES
from skillyard.faces.http.protocol import Connection, abort_overdue

KEEP_ALIVE_S = 30
SWEEP_S = 5
LEAVE_S = 5
"""Seconds that connections have to end once the runs in flight have."""


class HttpServer(Server):
    """Serves an application on bound sockets until told to stop. Signals are the caller's business."""

    def __init__(self, app: ASGIApp) -> None:
        self.listening = asyncio.Event()
        self._stopped = asyncio.Event()
        super().__init__(
            Config(
                app,
                http=Connection,
                ws="none",
                loop="asyncio",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=1024,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LEAVE_S,
                timeout_notify=SWEEP_S,
                callback_notify=self._sweep,
                h11_max_incomplete_event_size=HEAD_BYTES,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """uvicorn's housekeeping once a second, and no delay when it is told to stop."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopped.wait()

    def stop_accepting(self) -> None:
        """New connections are refused from here on; those that are open are served."""
        for server in self.servers:
            server.close()

    def stop(self) -> None:
        self.should_exit = True
        self._stopped.set()

    async def _sweep(self) -> None:
        abort_overdue(self.server_state, asyncio.get_running_loop().time())


def listen(host: str, port: int) -> socket.socket:
    """A bound and listening socket; port 0 lets the system choose. Raises OSError."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def url_of(host: str, sock: socket.socket) -> str:
    """The URL under which ``sock`` is reached: an address that means all of them is shown as loopback."""
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
