"""What a session's record says of its connections: kinds, counted, so that no flood makes it long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from skillyard.domain.egress.session import Connection, NetworkLog

MOST_KINDS = 200
_MOST_REASON = 300

_Key = tuple[str, str, int, bool, str, str, str, tuple[str, ...]]


class Log:
    def __init__(self) -> None:
        self._kinds: dict[_Key, Connection] = {}
        self._dropped = 0
        self.changed = False

    def add(self, one: Connection) -> None:
        """Count ``one``, which is not kept."""
        self.changed = True
        if not _merge(self._kinds, one):
            self._dropped += one.count

    def lose(self, count: int) -> None:
        """Count connections of which nothing is known."""
        self.changed = self.changed or count > 0
        self._dropped += count

    def snapshot(self, live: Iterable[Connection] = ()) -> NetworkLog:
        """With the connections that are not over."""
        kinds = {key: replace(kind) for key, kind in self._kinds.items()}
        dropped = self._dropped + sum(one.count for one in live if not _merge(kinds, one))
        return NetworkLog(tuple(kinds.values()), dropped)


def _merge(kinds: dict[_Key, Connection], one: Connection) -> bool:
    reason = one.reason[:_MOST_REASON]
    key = (one.via, one.host, one.port, one.allowed, one.layer, one.rule, reason, one.secrets)
    kind = kinds.get(key)
    if kind is None:
        if len(kinds) >= MOST_KINDS:
            return False
        kinds[key] = replace(one, reason=reason)
        return True
    kind.count += one.count
    kind.sent_bytes += one.sent_bytes
    kind.received_bytes += one.received_bytes
    kind.first_ms = min(kind.first_ms, one.first_ms)
    kind.last_ms = max(kind.last_ms, one.last_ms)
    return True
