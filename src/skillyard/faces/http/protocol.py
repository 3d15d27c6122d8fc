"""uvicorn's HTTP/1.1 connection with the deadlines and bounds that it lacks.

uvicorn waits for ever for a request's head, for a peer that does not read the end of an answer, and takes any
number of connections; and while a pipelined request waits behind a running one it does not notice that the
client has gone.
"""

from __future__ import annotations

import asyncio
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

HEAD_BYTES = 32 * 1024
HEAD_PATIENCE_S = 15.0
CLOSE_PATIENCE_S = 15.0
READ_PATIENCE_S = 30.0
PIPELINE_BYTES = 64 * 1024
MAX_CONNECTIONS = min(1000, getrlimit(RLIMIT_NOFILE)[0] // 2)
"""Half of the descriptors that we may have, so that the rest of the server can always open a file."""

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(H11Protocol):
    """``since`` is when it last began to wait for its client to send a head or to take the rest of an answer;
    ``stalled`` when its client let the answer pile up, None while it reads."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.since = self.loop.time()
        self.stalled: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(_FULL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._keep_listening()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def overdue(self, now: float) -> bool:
        """Whether its client has kept us waiting for too long."""
        if self.transport.is_closing():
            return now - self.since > CLOSE_PATIENCE_S
        if self.stalled is not None and now - self.stalled > READ_PATIENCE_S:
            return True
        waiting_for_head = self.cycle is None or self.cycle.response_complete
        return waiting_for_head and now - self.since > max(HEAD_PATIENCE_S, self.timeout_keep_alive)

    def pause_writing(self) -> None:
        self.stalled = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stalled = None
        super().resume_writing()

    def shutdown(self) -> None:
        self.since = self.loop.time()
        super().shutdown()

    def _keep_listening(self) -> None:
        """A request that came too early is kept aside; the end of the connection must still be seen."""
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= PIPELINE_BYTES:
            self.flow.resume_reading()


def abort_overdue(state: ServerState, now: float) -> int:
    """Cut the connections whose clients are overdue; how many."""
    late = [c for c in cast("set[Connection]", state.connections.copy()) if c.overdue(now)]
    for connection in late:
        connection.transport.abort()
    return len(late)
