"""A connection that the gate made for a sandbox: judged, counted, and ended when it is no longer allowed."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from skillyard.domain.network.address import Address
from skillyard.domain.network.session import Connection
from skillyard.gate.failures import Ended, Refused, Trouble
from skillyard.gate.relay.stream import Stream

if TYPE_CHECKING:
    from skillyard.gate.session import Session
    from skillyard.gate.visit import Visit


class Upstream(Stream):
    """``name`` is what was looked up, None for a literal address; ``address`` is what was dialled. Raises Ended when
    the session's bytes are used up."""

    def __init__(
        self, sock: socket.socket, session: Session, name: str | None, address: Address, port: int, note: Connection
    ) -> None:
        super().__init__(sock, session.limits.idle_s)
        self.session = session
        self.name = name
        self.address = address
        self.port = port
        self.note = note
        self.visit: Visit | None = None
        """The sandbox's connection that it is for; that ends with it when a policy or a limit ends it."""

    @property
    def host(self) -> str | Address:
        """What was asked for."""
        return self.name if self.name is not None else self.address

    def refuse(self, reason: str, layer: str = "held", rule: str = "") -> Refused:
        """End it because of what was said on it. The log has it as refused; to be raised."""
        self.note.allowed, self.note.layer, self.note.rule, self.note.reason = False, layer, rule, reason
        self.reset()
        return Refused(reason)

    def carries(self, secret: str) -> None:
        """For the log: this secret's value was put in by the gate."""
        self.note.secrets = tuple(sorted({*self.note.secrets, secret}))

    def stop(self, reason: str) -> Ended:
        """End it and the sandbox's connection that it is for; to be raised."""
        fault = Ended(reason)
        if not self.closed:
            self.note.reason = reason
        self.abort(fault)
        if self.visit is not None:
            self.visit.client.abort(fault)
        return fault

    def received(self, count: int) -> None:
        self.note.received_bytes += count
        if (over := self.session.usage.received(count)) is not None:
            raise self.stop(over)

    def sending(self) -> int:
        if (over := self.session.usage.sent_over()) is not None:
            raise self.stop(over)
        return self.session.usage.sent_left

    def sent(self, count: int) -> None:
        self.note.sent_bytes += count
        self.session.usage.sent(count)

    def abort(self, fault: Exception, *, orderly: bool = False) -> None:
        if self.closed:
            return
        if isinstance(fault, Trouble) and not self.note.reason:
            self.note.reason = fault.reason
        super().abort(fault, orderly=orderly)
        self.session.gone(self)
