"""Tickets, by which a browser gets a cookie for one port of one service.

Both are random and are known by their digests alone. They are kept in memory: after a restart of the server its users
ask for new ones.
"""

from __future__ import annotations

import hashlib
import secrets

from skillyard.config.services import ServiceSettings
from skillyard.ports.clock import Clock
from skillyard.values import dataclass

TICKET_S = 60.0
MOST = 10_000
MOST_EACH = 200
"""Tickets, and cookies, that one principal may have; its oldest goes first."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The right of a principal, by its name, to one port of one service. ``until`` is on the monotonic clock."""

    principal: str
    task_id: str
    port: int
    until: float


class _Passes(dict[bytes, Pass]):
    """Passes by the digest of their text, the oldest first."""

    def add(self, granted: Pass, now: float) -> str:
        """Returns the text of a new pass."""
        for key in [key for key, held in self.items() if held.until <= now]:
            del self[key]
        mine = [key for key, held in self.items() if held.principal == granted.principal]
        if len(mine) >= MOST_EACH:
            del self[mine[0]]
        elif len(self) >= MOST:
            del self[next(iter(self))]
        text = secrets.token_urlsafe(32)
        self[_digest(text)] = granted
        return text


class Tickets:
    """Gives tickets and takes each once."""

    def __init__(self, clock: Clock, settings: ServiceSettings) -> None:
        self._clock = clock
        self._cookie_s = settings.cookie_s
        self._tickets, self._cookies = _Passes(), _Passes()

    def issue(self, principal: str, task_id: str, port: int) -> str:
        """Returns a ticket, which lives for a minute."""
        now = self._clock.monotonic()
        return self._tickets.add(Pass(principal, task_id, port, now + TICKET_S), now)

    def redeem(self, ticket: str, task_id: str, port: int) -> str | None:
        """Returns a cookie for a ticket, once.

        Returns None for one that is unknown, was used, is too old or is for another port.
        """
        now, granted = self._clock.monotonic(), self._tickets.pop(_digest(ticket), None)
        if granted is None or granted.until <= now or (granted.task_id, granted.port) != (task_id, port):
            return None
        return self._cookies.add(Pass(granted.principal, task_id, port, now + self._cookie_s), now)

    def visitor(self, cookie: str, task_id: str, port: int) -> str | None:
        """Returns the name of the principal that a cookie stands for at this port."""
        granted = self._cookies.get(_digest(cookie))
        if granted is None or granted.until <= self._clock.monotonic():
            return None
        return granted.principal if (granted.task_id, granted.port) == (task_id, port) else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
