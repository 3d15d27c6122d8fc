"""What a session has used of its limits."""

from __future__ import annotations

from skillyard.domain.network.session import EgressLimits


class Usage:
    def __init__(self, limits: EgressLimits) -> None:
        self._limits = limits
        self.sent_bytes = 0
        self.received_bytes = 0
        self.connections = 0
        self.connections_total = 0

    def sent(self, count: int) -> None:
        self.sent_bytes += count

    def sent_over(self) -> str | None:
        """Why nothing more may be sent."""
        most = self._limits.sent_bytes
        return f"more than {most} bytes sent" if self.sent_bytes >= most else None

    @property
    def sent_left(self) -> int:
        return max(0, self._limits.sent_bytes - self.sent_bytes)

    def received(self, count: int) -> str | None:
        """Count; why no more may come."""
        self.received_bytes += count
        most = self._limits.received_bytes
        return f"more than {most} bytes received" if self.received_bytes > most else None

    def enter(self) -> str | None:
        """Count a connection of the sandbox; or why it may not be."""
        limits = self._limits
        if self.connections >= limits.connections:
            return f"more than {limits.connections} connections at once"
        if self.connections_total >= limits.connections_total:
            return f"more than {limits.connections_total} connections"
        self.connections += 1
        self.connections_total += 1
        return None

    def leave(self) -> None:
        self.connections -= 1
