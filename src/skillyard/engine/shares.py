"""Fair shares of principals in places, memory, bytes of requests and turns of builds.

Every principal waits in a queue of its own. Places are given round by round, one principal after the other, so that a
thousand runs of one principal delay another's single run by one place at most. Both the running and the waiting are
bounded; a request beyond that is refused at once with the time after which to come again.

A principal may hold a fixed multiple of the amount that it leaves free (dynamic thresholds, Choudhury and Hahne 1998).
Alone it may hold all but ``reserve`` of the places, of the memory and of the queue, with others in need an equal share
of them, and never the last ones. The next principal finds room at once, however long those before it stay.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import field

from skillyard.config.limits import AdmissionSettings
from skillyard.domain.errors import Busy, InvalidInput
from skillyard.values import dataclass

_SMOOTHING = 0.2
_FIRST_GUESS_S = 0.1
_REMEMBERED = 1024
_SOONEST_MS, _LATEST_MS = 100, 60_000
_SOON_MS = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """The share that a run was given, and the time of the event loop's clock at which it was."""

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
        """Returns the seconds until those of ``tenant`` that wait now have had their turn.

        The estimate comes from the time that its runs have taken so far, and is at most a minute.
        """
        typical_s = max(tenant.typical_s, tenant.age_s(now))
        rounds = (len(tenant.queue) + 1) / max(1, tenant.held)
        return int(min(_LATEST_MS, max(_SOONEST_MS, 1000 * typical_s * rounds)))


class Admission:
    """Lives on one event loop. Each :meth:`enter` that returns is matched by one :meth:`leave`."""

    def __init__(self, settings: AdmissionSettings, memory_mb: int | None = None) -> None:
        """``memory_mb`` is the most that may be reserved together; by default that of the settings."""
        self._settings = settings
        self._memory_mb = settings.memory_mb if memory_mb is None else memory_mb
        self._tenants = Tenants()
        self._turns: OrderedDict[str, Tenant] = OrderedDict()
        self.running = 0
        self.waiting = 0
        self.reserved_mb = 0
        self._closed = False

    async def enter(self, principal: str, memory_mb: int, *, accepted: bool = False) -> Place:
        """Returns when the run may start. One that was ``accepted`` before waits in a full queue too.

        Raises Busy when the queue is full, InvalidInput when the run could never fit.
        """
        self._refuse_hopeless(memory_mb)
        self._check_open()
        tenant = self._tenants.of(principal)
        if not self.waiting and self._fits(memory_mb) and self._has_share(tenant, memory_mb):
            return self._take(tenant, memory_mb)
        if not accepted:
            self._refuse_crowd(tenant)
        return await self._wait(tenant, memory_mb)

    def check(self, principal: str, memory_mb: int, *, accepted: bool = False) -> None:
        """Raises the error that :meth:`enter` would raise now."""
        self._refuse_hopeless(memory_mb)
        self._check_open()
        if not accepted and self.would_wait(principal, memory_mb):
            self._refuse_crowd(self._tenants.look(principal))

    def retake(self, principal: str, memory_mb: int) -> Place:
        """Returns the place of a run that is at work since before this server. It has it however full the host is."""
        return self._take(self._tenants.of(principal), memory_mb)

    def leave(self, place: Place) -> None:
        """Give the place back; the next in turn gets it."""
        self.running -= 1
        self.reserved_mb -= place.memory_mb
        tenant = self._tenants.of(place.principal)
        tenant.leave(place, _now())
        self._tenants.tidy(tenant)
        if self.waiting:
            self._hand_out()

    def most(self, memory_mb: int) -> int:
        """Returns ``memory_mb``, or all the memory that there is for sandboxes where that is less."""
        return min(memory_mb, self._memory_mb)

    def would_wait(self, principal: str, memory_mb: int) -> bool:
        """Returns whether :meth:`enter` would not return at once."""
        has_share = self._has_share(self._tenants.look(principal), memory_mb)
        return self.waiting > 0 or not self._fits(memory_mb) or not has_share

    def close(self) -> None:
        """Turn away everybody who waits or comes from now on."""
        self._closed = True
        for tenant in self._turns.values():
            for waiter in tenant.queue:
                if not waiter.turn.done():
                    waiter.turn.set_exception(_closing())
            tenant.queue.clear()
        self._turns.clear()
        self.waiting = 0

    def _check_open(self) -> None:
        if self._closed:
            raise _closing()

    def _refuse_hopeless(self, memory_mb: int) -> None:
        if memory_mb > self._memory_mb:
            rule = f"memory_mb and disk_mb together must be at most {self._memory_mb} on this host"
            raise InvalidInput("limits", rule, str(memory_mb), maximum=self._memory_mb)

    def _fits(self, memory_mb: int) -> bool:
        return self.running < self._settings.running and self.reserved_mb + memory_mb <= self._memory_mb

    def _has_share(self, tenant: Tenant, memory_mb: int) -> bool:
        """Returns whether ``tenant`` has a share of the free places; one that holds nothing has."""
        if not tenant.held:
            return True
        left_mb = self._memory_mb - self.reserved_mb - memory_mb
        return self._leaves_enough(tenant.held + 1, self._settings.running - self.running - 1) and self._leaves_enough(
            tenant.reserved_mb + memory_mb, left_mb
        )

    def _leaves_enough(self, held: int, free: int) -> bool:
        """Returns whether ``reserve`` of the whole and of this principal's holding stays free."""
        return held * self._settings.reserve <= free * (1 - self._settings.reserve)

    def _take(self, tenant: Tenant, memory_mb: int) -> Place:
        self.running += 1
        self.reserved_mb += memory_mb
        return tenant.take(memory_mb, _now())

    def _refuse_crowd(self, tenant: Tenant) -> None:
        """Raises Busy when the queue is full, or its share of this principal."""
        queued, settings = len(tenant.queue), self._settings
        room = settings.queued - self.waiting
        crowds = queued > 0 and not self._leaves_enough(queued + 1, room - 1)
        if room < 1 or queued >= settings.queued_each or crowds:
            after_ms = self._tenants.retry_after_ms(tenant, _now())
            self._tenants.tidy(tenant)
            raise Busy("too many runs at once; come again later", retry_after_ms=after_ms)

    async def _wait(self, tenant: Tenant, memory_mb: int) -> Place:
        waiter = Waiter(memory_mb)
        tenant.queue.append(waiter)
        self._turns.setdefault(tenant.name, tenant)
        self.waiting += 1
        self._hand_out()
        try:
            place = await waiter.turn
        except asyncio.CancelledError:
            self._give_up(tenant, waiter)
            raise
        if self._closed:  # between the turn and now
            self.leave(place)
            self._check_open()
        return place

    def _give_up(self, tenant: Tenant, waiter: Waiter) -> None:
        """The caller went away: out of the queue, or pass on the place that was just given."""
        if waiter.turn.done() and not waiter.turn.cancelled():
            if waiter.turn.exception() is None:
                self.leave(waiter.turn.result())
            return
        if waiter in tenant.queue:
            tenant.queue.remove(waiter)
            self.waiting -= 1
            if not tenant.queue:
                del self._turns[tenant.name]
        self._tenants.tidy(tenant)
        self._hand_out()

    def _hand_out(self) -> None:
        """Gives free places, one principal after the other.

        A principal that has used up its share is passed over. The first that has not, and does not fit, holds the rest
        up, so that small runs do not starve a large one.
        """
        passed_over = 0
        while passed_over < len(self._turns):
            tenant = next(iter(self._turns.values()))
            given_up, memory_mb = tenant.queue[0].turn.done(), tenant.queue[0].memory_mb
            if not given_up and not self._has_share(tenant, memory_mb):
                self._turns.move_to_end(tenant.name)
                passed_over += 1
                continue
            if not given_up and not self._fits(memory_mb):
                return
            passed_over = 0
            self._serve(tenant, given_up)

    def _serve(self, tenant: Tenant, given_up: bool) -> None:
        waiter = tenant.queue.popleft()
        self.waiting -= 1
        del self._turns[tenant.name]
        if tenant.queue:
            self._turns[tenant.name] = tenant
        if not given_up:
            waiter.turn.set_result(self._take(tenant, waiter.memory_mb))


def _closing() -> Busy:
    return Busy("the server is shutting down", retry_after_ms=_SOON_MS)


def _now() -> float:
    return asyncio.get_running_loop().time()


class Budget:
    """An amount of which one principal may hold ``each``. A request beyond it is told to come again."""

    def __init__(self, total: int, each: int, refusal: str) -> None:
        self.total = total
        self.each = each
        self._refusal = refusal
        self._held: Counter[str] = Counter()
        self.held = 0

    def held_by(self, principal: str) -> int:
        """Returns what a principal holds now."""
        return self._held[principal]

    @contextmanager
    def holding(self, principal: str, amount: int = 1, *, accepted: bool = False) -> Iterator[None]:
        """Raises Busy when it does not fit, unless it was ``accepted`` before."""
        held = self._held.get(principal, 0) + amount
        if not accepted and (self.held + amount > self.total or held > self.each):
            raise Busy(self._refusal, retry_after_ms=_SOON_MS)
        self._held[principal] = held
        self.held += amount
        try:
            yield
        finally:
            self.held -= amount
            self._held[principal] -= amount
            if not self._held[principal]:
                del self._held[principal]


SMALL = 256 * 1024
"""Bytes that are read without waiting for a place."""

PLACES = 4


class LargeReads:
    """Places for large contents on their way into an answer.

    Each is in memory several times over until it has left. Places are given in the order of arrival, on one event loop.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(PLACES)

    @asynccontextmanager
    async def place(self, size: int) -> AsyncIterator[None]:
        """``size`` bytes are read, and made into a value, within the block."""
        if size <= SMALL:
            yield
            return
        async with self._places:
            yield


class Room:
    """Turns of builds, or of tasks. ``places`` may be taken at a time. One that becomes free goes to the owner who has
    the fewest, of several to the one who was given none for longest."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By owner; who was given a place is behind the others."""

    @asynccontextmanager
    async def place(self, owner: str, *, held: bool = False) -> AsyncGenerator[None, None]:
        """Waits for a place. One that was ``held`` since before this server is had however many are taken."""
        if held or self._free > 0:
            self._take(owner)
        else:
            await self._turn(owner)
        try:
            yield
        finally:
            self._give_back(owner)

    async def _turn(self, owner: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give_back(owner)
            raise

    def _take(self, owner: str) -> None:
        self._free -= 1
        self._taken[owner] += 1

    def _give_back(self, owner: str) -> None:
        self._free += 1
        self._taken -= Counter([owner])
        if self._free < 1:
            return
        for nearest in sorted(self._waiting, key=lambda waiting: self._taken[waiting]):
            line = deque(turn for turn in self._waiting.pop(nearest) if not turn.done())
            if line:
                self._take(nearest)
                line.popleft().set_result(None)
                self._waiting |= {nearest: line} if line else {}
                return
