"""The gate's connections to servers, and the sandbox's connections that they serve.

Both are counted against the session's limits.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
from collections.abc import Callable

from skillyard.domain.network.address import Address
from skillyard.domain.network.session import Connection, EgressLimits
from skillyard.gate.addresses import Host
from skillyard.gate.relay.guard import Ended, Failure, Refused
from skillyard.gate.relay.stream import Stream

_MOST_IDLE = 4
_current: contextvars.ContextVar[SandboxConnection | None] = contextvars.ContextVar("connection", default=None)


class SandboxConnection:
    """One connection out of a sandbox and the task that serves it."""

    def __init__(self, client: Stream) -> None:
        self.client = client
        self.task: asyncio.Task[None] | None = None

    def enter(self) -> None:
        """Makes it the current one of this task and its children."""
        _current.set(self)

    def end(self, fault: Exception) -> None:
        self.client.abort(fault)
        if self.task is not None:
            self.task.cancel()


class Usage:
    """Counts a session's bytes and connections against its limits."""

    def __init__(self, limits: EgressLimits) -> None:
        self.limits = limits
        self.sent_bytes = 0
        self.received_bytes = 0
        self.connections = 0
        self.connections_total = 0

    def sent(self, count: int) -> None:
        self.sent_bytes += count

    def sent_over(self) -> str | None:
        """Returns why nothing more may be sent, or None."""
        most = self.limits.sent_bytes
        return f"more than {most} bytes sent" if self.sent_bytes >= most else None

    @property
    def sent_left(self) -> int:
        return max(0, self.limits.sent_bytes - self.sent_bytes)

    def received(self, count: int) -> str | None:
        """Counts bytes; returns why no more may come, or None."""
        self.received_bytes += count
        most = self.limits.received_bytes
        return f"more than {most} bytes received" if self.received_bytes > most else None

    def enter(self) -> str | None:
        """Counts a connection of the sandbox; returns why it is not admitted, or None."""
        limits = self.limits
        if self.connections >= limits.connections:
            return f"more than {limits.connections} connections at once"
        if self.connections_total >= limits.connections_total:
            return f"more than {limits.connections_total} connections"
        self.connections += 1
        self.connections_total += 1
        return None

    def leave(self) -> None:
        self.connections -= 1


class Upstream(Stream):
    """A connection to a server, for the sandbox's connection that is current when it is made.

    ``name`` was looked up, None for a literal address; ``address`` was dialled. ``gone`` is called once, when it is
    closed. Reading and writing raise Ended when the session's bytes are used up."""

    def __init__(
        self,
        sock: socket.socket,
        usage: Usage,
        name: str | None,
        address: Address,
        port: int,
        note: Connection,
        gone: Callable[[Upstream], None],
    ) -> None:
        super().__init__(sock, usage.limits.idle_s)
        self.usage = usage
        self.name = name
        self.address = address
        self.port = port
        self.note = note
        self._gone = gone
        self._serves = _current.get()
        """The sandbox's connection, which ends when a policy or a limit ends this one."""

    @property
    def host(self) -> Host:
        """The name or the address that was asked for."""
        return self.name if self.name is not None else self.address

    @property
    def limits(self) -> EgressLimits:
        return self.usage.limits

    def refuse(self, reason: str, layer: str = "held", rule: str = "") -> Refused:
        """Ends it because of what was said on it.

        Returns the error to raise; the log shows it as refused."""
        self.note.allowed, self.note.layer, self.note.rule, self.note.reason = False, layer, rule, reason
        self.reset()
        return Refused(reason)

    def carries(self, secret: str) -> None:
        """Notes for the log that the gate put in this secret's value."""
        self.note.secrets = tuple(sorted({*self.note.secrets, secret}))

    def stop(self, reason: str) -> Ended:
        """Ends it and the sandbox's connection that it serves. Returns the error to raise."""
        fault = Ended(reason)
        if not self.closed:
            self.note.reason = reason
        self.abort(fault)
        if self._serves is not None:
            self._serves.client.abort(fault)
        return fault

    def received(self, count: int) -> None:
        self.note.received_bytes += count
        if (over := self.usage.received(count)) is not None:
            raise self.stop(over)

    def sending(self) -> int:
        if (over := self.usage.sent_over()) is not None:
            raise self.stop(over)
        return self.usage.sent_left

    def sent(self, count: int) -> None:
        self.note.sent_bytes += count
        self.usage.sent(count)

    def abort(self, fault: Exception, *, orderly: bool = False) -> None:
        if self.closed:
            return
        if isinstance(fault, Failure) and not self.note.reason:
            self.note.reason = fault.reason
        super().abort(fault, orderly=orderly)
        self._gone(self)

    def rest(self) -> None:
        """Serves no connection until :meth:`resume`."""
        self._serves = None

    def resume(self) -> bool:
        """Serves the current connection, if the server has said nothing meanwhile, not even its end."""
        if self.closed:
            return False
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            self._serves = _current.get()
            return True
        except OSError:
            pass
        self.close()
        return False


class IdleUpstreams:
    """Keeps connections to servers between two requests of one client.

    A narrower policy, a limit or the session's end closes an idle one; the client's connection goes on."""

    def __init__(self) -> None:
        self._idle: dict[tuple[Host, int], Upstream] = {}

    def put(self, key: tuple[Host, int], upstream: Upstream) -> None:
        if (old := self._idle.pop(key, None)) is not None:
            old.close()
        if len(self._idle) >= _MOST_IDLE:
            self._idle.pop(next(iter(self._idle))).close()
        upstream.rest()
        self._idle[key] = upstream

    def take(self, key: tuple[Host, int]) -> Upstream | None:
        """Returns one that can serve the next request, if there is any."""
        upstream = self._idle.pop(key, None)
        return upstream if upstream is not None and upstream.resume() else None

    def close(self) -> None:
        for upstream in self._idle.values():
            upstream.close()
        self._idle.clear()
