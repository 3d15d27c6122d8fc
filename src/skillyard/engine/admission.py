"""How many runs work at once, who comes next, and when a caller is turned away.

Everybody waits in a queue of its own; places are given round by round, one principal after the other, so that
a thousand runs of one principal delay another's single run by one place at most. Both the running and the
waiting are bounded, and what is too much is refused at once with the time after which to come again.

A principal may hold a fixed multiple of what it leaves free (dynamic thresholds, Choudhury and Hahne 1998): alone
all but ``reserve`` of the places, of the memory and of the queue, with others in need an equal share of them, and
never the last ones. So who comes next finds room at once, however long those before it stay.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from skillyard.domain.errors import Busy, InvalidInput
from skillyard.engine.config import AdmissionConfig
from skillyard.engine.tenants import Place, Tenant, Tenants, Waiter


class Admission:
    """Lives on one event loop. Each :meth:`enter` that returns is matched by one :meth:`leave`."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
        self._tenants = Tenants()
        self._turns: OrderedDict[str, Tenant] = OrderedDict()
        self.running = 0
        self.waiting = 0
        self.reserved_mb = 0
        self._closed = False

    async def enter(self, principal: str, memory_mb: int) -> Place:
        """Returns when the run may start.

        Raises Busy when the queue is full, InvalidInput when the run could never fit.
        """
        self._refuse_hopeless(memory_mb)
        self._check_open()
        tenant = self._tenants.of(principal)
        if not self.waiting and self._fits(memory_mb) and self._has_share(tenant, memory_mb):
            return self._take(tenant, memory_mb)
        return await self._wait(tenant, memory_mb)

    def leave(self, place: Place) -> None:
        """Give the place back; the next in turn gets it."""
        self.running -= 1
        self.reserved_mb -= place.memory_mb
        tenant = self._tenants.of(place.principal)
        tenant.leave(place, _now())
        self._tenants.tidy(tenant)
        if self.waiting:
            self._hand_out()

    def would_wait(self, principal: str, memory_mb: int) -> bool:
        """Whether :meth:`enter` would not return at once."""
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
        budget = self._config.memory_mb
        if budget is not None and memory_mb > budget:
            rule = f"memory_mb and disk_mb together must be at most {budget} on this host"
            raise InvalidInput("limits", rule, str(memory_mb), maximum=budget)

    def _fits(self, memory_mb: int) -> bool:
        budget = self._config.memory_mb
        return self.running < self._config.running and (budget is None or self.reserved_mb + memory_mb <= budget)

    def _has_share(self, tenant: Tenant, memory_mb: int) -> bool:
        """Who holds nothing has a share of whatever is free."""
        if not tenant.held:
            return True
        budget = self._config.memory_mb
        return self._leaves_enough(tenant.held + 1, self._config.running - self.running - 1) and (
            budget is None or self._leaves_enough(tenant.reserved_mb + memory_mb, budget - self.reserved_mb - memory_mb)
        )

    def _leaves_enough(self, held: int, free: int) -> bool:
        """Whether what is left free is at least ``reserve`` of it and of what this principal holds."""
        return held * self._config.reserve <= free * (1 - self._config.reserve)

    def _take(self, tenant: Tenant, memory_mb: int) -> Place:
        self.running += 1
        self.reserved_mb += memory_mb
        return tenant.take(memory_mb, _now())

    async def _wait(self, tenant: Tenant, memory_mb: int) -> Place:
        queued, config = len(tenant.queue), self._config
        room = config.queued - self.waiting
        crowds = queued > 0 and not self._leaves_enough(queued + 1, room - 1)
        if room < 1 or queued >= config.queued_each or crowds:
            after_ms = self._tenants.retry_after_ms(tenant, _now())
            self._tenants.tidy(tenant)
            raise Busy("too many runs at once; come again later", retry_after_ms=after_ms)
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
        """Give free places, one principal after the other. Who has used up its share is passed over; the first who
        has not, and does not fit, holds the rest up, so that a large run is not starved by small ones."""
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
    return Busy("the server is shutting down", retry_after_ms=1000)


def _now() -> float:
    return asyncio.get_running_loop().time()
