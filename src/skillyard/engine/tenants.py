"""What each principal holds of the places and how long its runs last."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

_SMOOTHING = 0.2
_FIRST_GUESS_S = 0.1
_REMEMBERED = 1024
_SOONEST_MS, _LATEST_MS = 100, 60_000


@dataclass(frozen=True, slots=True)
class Place:
    """What a run was given, and the time of the event loop's clock at which it was."""

    principal: str
    memory_mb: int
    since: float


@dataclass(slots=True, eq=False)
class Waiter:
    """A run in the queue; ``turn`` brings its place."""

    memory_mb: int
    turn: asyncio.Future[Place] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(slots=True, eq=False)
class Tenant:
    """One principal while it has runs. ``started_s`` is the sum of the times at which those at work began."""

    name: str
    held: int = 0
    reserved_mb: int = 0
    started_s: float = 0.0
    typical_s: float = _FIRST_GUESS_S
    ended: int = 0
    queue: deque[Waiter] = field(default_factory=deque)

    def take(self, memory_mb: int, now: float) -> Place:
        self.held += 1
        self.reserved_mb += memory_mb
        self.started_s += now
        return Place(self.name, memory_mb, now)

    def leave(self, place: Place, now: float) -> None:
        self.held -= 1
        self.reserved_mb -= place.memory_mb
        self.started_s = self.started_s - place.since if self.held else 0.0
        lasted = now - place.since
        self.typical_s = self.typical_s + _SMOOTHING * (lasted - self.typical_s) if self.ended else lasted
        self.ended += 1

    def age_s(self, now: float) -> float:
        """Of its runs at work, on the average."""
        return now - self.started_s / self.held if self.held else 0.0


class Tenants:
    """Those who have runs, and of those who had some lately how long they took."""

    def __init__(self) -> None:
        self._busy: dict[str, Tenant] = {}
        self._idle: OrderedDict[str, Tenant] = OrderedDict()

    def of(self, name: str) -> Tenant:
        known = self._busy.get(name)
        if known is None:
            known = self._busy[name] = self._idle.pop(name) if name in self._idle else Tenant(name)
        return known

    def look(self, name: str) -> Tenant:
        """As :meth:`of`, and remembers nobody."""
        return self._busy.get(name) or self._idle.get(name) or Tenant(name)

    def tidy(self, tenant: Tenant) -> None:
        """Forget who has no run left, sooner or later."""
        if tenant.held or tenant.queue:
            return
        self._busy.pop(tenant.name, None)
        if tenant.ended:
            self._idle[tenant.name] = tenant
            while len(self._idle) > _REMEMBERED:
                self._idle.popitem(last=False)

    def retry_after_ms(self, tenant: Tenant, now: float) -> int:
        """When those of ``tenant`` that wait now will have had their turn, by what its runs have taken so far;
        never more than a minute, since nobody knows better."""
        typical_s = max(tenant.typical_s, tenant.age_s(now))
        rounds = (len(tenant.queue) + 1) / max(1, tenant.held)
        return int(min(_LATEST_MS, max(_SOONEST_MS, 1000 * typical_s * rounds)))
