"""The log of a session's connections, counted by kind.

No flood makes it long or hides a connection that was made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from skillyard.domain.network.session import MOST_REASON, Connection, NetworkLog

MOST_KINDS = 200
_MOST_ALONE = 180
"""Kinds with a place of their own; further connections that reached something are put together."""
_MOST_REFUSED = 150
"""Kinds of refusals: they cost a program nothing and must not push out connections that were made."""
TOGETHER = "of kinds beyond what a record holds one by one"

_Key = tuple[str, str, int, bool, str, str, str, tuple[str, ...]]


class Log:
    def __init__(self) -> None:
        self._kinds: dict[_Key, Connection] = {}
        self._dropped = 0
        self.changed = False

    def add(self, one: Connection) -> None:
        """Counts ``one``, which is not kept."""
        self.changed = True
        if not _merge(self._kinds, one):
            self._dropped += one.count

    def snapshot(self, live: Iterable[Connection] = ()) -> NetworkLog:
        """Returns the log with ``live`` connections, which are not over."""
        kinds = {key: replace(kind) for key, kind in self._kinds.items()}
        dropped = self._dropped + sum(one.count for one in live if not _merge(kinds, one))
        return NetworkLog(tuple(kinds.values()), dropped)


def _merge(kinds: dict[_Key, Connection], one: Connection) -> bool:
    kind = kinds.get(_key(one))
    if kind is None and not _has_room(kinds, one):
        if not (one.allowed or one.sent_bytes or one.received_bytes):
            return False
        one = replace(one, host="", port=0, layer="", rule="", reason="" if one.allowed else TOGETHER)
        kind = kinds.get(_key(one))
        if kind is None and len(kinds) >= MOST_KINDS:
            return False
    if kind is None:
        kinds[_key(one)] = replace(one, reason=one.reason[:MOST_REASON])
        return True
    kind.count += one.count
    kind.sent_bytes += one.sent_bytes
    kind.received_bytes += one.received_bytes
    kind.first_ms = min(kind.first_ms, one.first_ms)
    kind.last_ms = max(kind.last_ms, one.last_ms)
    return True


def _key(one: Connection) -> _Key:
    reason = one.reason[:MOST_REASON]
    return (one.via, one.host, one.port, one.allowed, one.layer, one.rule, reason, one.secrets)


def _has_room(kinds: dict[_Key, Connection], one: Connection) -> bool:
    if len(kinds) >= _MOST_ALONE:
        return False
    return one.allowed or sum(not kind.allowed for kind in kinds.values()) < _MOST_REFUSED
