"""Secrets and their audit in memory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from skillyard.domain.checks import check_page
from skillyard.domain.errors import SecretNotFound, StoreFault
from skillyard.domain.secret import (
    EVERYBODY,
    Delivery,
    Secret,
    SecretAct,
    SecretEntry,
    SecretEvent,
    SecretScope,
    bound_hosts,
    check_secret_name,
    check_secret_value,
    choose,
)
from skillyard.ports.clock import Clock


class MemorySecrets:
    """A :class:`skillyard.ports.secrets.SecretStore`."""

    label = "store"

    def __init__(self, clock: Clock, *, keep: int = 5) -> None:
        self._clock = clock
        self._keep = keep
        self._entries: dict[tuple[str, str, str], SecretEntry] = {}
        self._values: dict[str, str] = {}
        self._ids = itertools.count()
        self._given: dict[str, Sequence[str]] = {}

    async def find(self, name: str, project: str, skill: str) -> Secret | None:
        entry = choose([entry for entry in self._entries.values() if entry.name == name], project, skill)
        if entry is None:
            return None
        version = entry.version(entry.current)
        assert version is not None
        number = f"{self.label}:{version.number}"
        return Secret(name, self._values[version.id], number, entry.delivery, entry.hosts, entry.scope)

    async def list(self) -> Sequence[SecretEntry]:
        return [entry for _, entry in sorted(self._entries.items())]

    async def set(
        self,
        name: str,
        value: str,
        scope: SecretScope = EVERYBODY,
        *,
        delivery: Delivery | None = None,
        hosts: Sequence[str] | None = None,
        by: str = "",
    ) -> SecretEntry:
        check_secret_name("name", name)
        check_secret_value("value", value)
        scope.check()
        bound_hosts(hosts or ())
        fresh = SecretEntry(name, scope, Delivery.ENV, (), 0, ())
        entry = self._entries.get((name, scope.project, scope.skills), fresh)
        id_ = str(next(self._ids))
        self._values[id_] = value
        entry = replace(
            entry.with_version(id_, self._clock.now(), by, self._keep),
            delivery=entry.delivery if delivery is None else delivery,
            hosts=entry.hosts if hosts is None else tuple(hosts),
        )
        self._entries[entry.key] = entry
        return entry

    async def bind(
        self, name: str, scope: SecretScope = EVERYBODY, *, delivery: Delivery, hosts: Sequence[str]
    ) -> SecretEntry:
        bound_hosts(hosts)
        return self._replace(name, scope, lambda entry: replace(entry, delivery=delivery, hosts=tuple(hosts)))

    async def rollback(self, name: str, version: int, scope: SecretScope = EVERYBODY) -> SecretEntry:
        return self._replace(name, scope, lambda entry: entry.rolled_back(version))

    async def delete(self, name: str, scope: SecretScope = EVERYBODY) -> bool:
        return self._entries.pop((name, scope.project, scope.skills), None) is not None

    async def rotate(self) -> int:
        return sum(len(entry.versions) for entry in self._entries.values())

    async def keep(self, run_id: str, values: Sequence[str]) -> None:
        self._given[run_id] = tuple(values)

    async def kept(self, run_id: str) -> Sequence[str] | None:
        return self._given.get(run_id)

    async def forget(self, run_id: str) -> None:
        self._given.pop(run_id, None)

    async def keeping(self) -> Collection[str]:
        return set(self._given)

    async def close(self) -> None:
        return None

    def _replace(self, name: str, scope: SecretScope, change: Callable[[SecretEntry], SecretEntry]) -> SecretEntry:
        check_secret_name("name", name)
        entry = self._entries.get((name, scope.project, scope.skills))
        if entry is None:
            raise SecretNotFound("name", f"no secret '{name}' for {scope}")
        self._entries[entry.key] = changed = change(entry)
        return changed


class MemorySecretAudit:
    """A :class:`skillyard.ports.secrets.SecretAudit`."""

    def __init__(self) -> None:
        self._events: list[tuple[int, SecretEvent]] = []
        self._numbers = itertools.count(1)
        self._used: dict[tuple[str, str], float] = {}

    async def record(self, events: Sequence[SecretEvent]) -> None:
        for event in events:
            self._events.append((next(self._numbers), event))
            if event.act is SecretAct.USED:
                self._used[event.name, event.scope] = event.at
            elif event.act is SecretAct.DELETED:
                self._used.pop((event.name, event.scope), None)

    async def list(
        self, *, limit: int = 100, before: int | None = None, name: str | None = None
    ) -> Sequence[tuple[int, SecretEvent]]:
        check_page(limit)
        found = [
            (number, event)
            for number, event in reversed(self._events)
            if (before is None or number < before) and name in (None, event.name)
        ]
        return found[:limit]

    async def used_at(self) -> dict[tuple[str, str], float]:
        return dict(self._used)

    async def sweep(self, older_than: float) -> int:
        before = len(self._events)
        self._events = [(number, event) for number, event in self._events if event.at >= older_than]
        return before - len(self._events)


class MemorySessions:
    """A :class:`skillyard.ports.gate.SessionStore`."""

    def __init__(self) -> None:
        self._states: dict[str, bytes] = {}

    async def put(self, key: str, state: bytes) -> None:
        self._states[_checked(key)] = state

    async def get(self, key: str) -> bytes | None:
        return self._states.get(_checked(key))

    async def erase(self, key: str) -> None:
        self._states.pop(key, None)

    async def keys(self) -> Collection[str]:
        return tuple(self._states)


def _checked(key: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", key):
        raise StoreFault("the key of a session must be 1 to 128 letters, digits, '_' and '-'")
    return key
