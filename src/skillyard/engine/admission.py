"""How many runs work at once, who comes next, and when a caller is turned away.

Everybody waits in a queue of its own; places are given round by round, one principal after the other, so that
a thousand runs of one principal delay another's single run by one place at most. Both the running and the
waiting are bounded, and what is too much is refused at once with the time after which to come again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from skillyard.domain.errors import Busy, InvalidInput
from skillyard.engine.config import AdmissionConfig

_SMOOTHING = 0.2


@dataclass(slots=True, eq=False)
class _Waiter:
    memory_mb: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Admission:
    """Lives on one event loop. Each :meth:`enter` that returns is matched by one :meth:`leave`."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
        self._queues: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self.running = 0
        self.waiting = 0
        self.reserved_mb = 0
        self._typical_ms = 100.0
        self._closed = False

    async def enter(self, principal: str, memory_mb: int) -> None:
        """Returns when the run may start.

        Raises Busy when the queue is full, InvalidInput when the run could never fit.
        """
        self._refuse_hopeless(memory_mb)
        self._check_open()
        if not self.waiting and self._fits(memory_mb):
            self._take(memory_mb)
            return
        await self._wait(principal, memory_mb)

    def leave(self, memory_mb: int, lasted_ms: float) -> None:
        """Give the place back; the next in turn gets it."""
        self.running -= 1
        self.reserved_mb -= memory_mb
        self._typical_ms += _SMOOTHING * (lasted_ms - self._typical_ms)
        if self.waiting:
            self._hand_out()

    def close(self) -> None:
        """Turn away everybody who waits or comes from now on."""
        self._closed = True
        for queue in self._queues.values():
            for waiter in queue:
                if not waiter.turn.done():
                    waiter.turn.set_exception(Busy("the server is shutting down", retry_after_ms=1000))
        self._queues.clear()
        self.waiting = 0

    def _check_open(self) -> None:
        if self._closed:
            raise Busy("the server is shutting down", retry_after_ms=1000)

    def _refuse_hopeless(self, memory_mb: int) -> None:
        budget = self._config.memory_mb
        if budget is not None and memory_mb > budget:
            rule = f"memory_mb and disk_mb together must be at most {budget} on this host"
            raise InvalidInput("limits", rule, str(memory_mb), maximum=budget)

    def _fits(self, memory_mb: int) -> bool:
        budget = self._config.memory_mb
        return self.running < self._config.running and (budget is None or self.reserved_mb + memory_mb <= budget)

    def _take(self, memory_mb: int) -> None:
        self.running += 1
        self.reserved_mb += memory_mb

    async def _wait(self, principal: str, memory_mb: int) -> None:
        queue = self._queues.get(principal)
        if self.waiting >= self._config.queued or (queue and len(queue) >= self._config.queued_each):
            raise Busy("too many runs at once; come again later", retry_after_ms=self._retry_after_ms())
        if queue is None:
            queue = self._queues[principal] = deque()
        waiter = _Waiter(memory_mb)
        queue.append(waiter)
        self.waiting += 1
        try:
            await waiter.turn
        except asyncio.CancelledError:
            self._give_up(principal, waiter)
            raise
        if self._closed:  # between the turn and now
            self.leave(memory_mb, self._typical_ms)
            self._check_open()

    def _give_up(self, principal: str, waiter: _Waiter) -> None:
        """The caller went away: out of the queue, or pass on the place that was just given."""
        if waiter.turn.done() and not waiter.turn.cancelled():
            if waiter.turn.exception() is None:
                self.leave(waiter.memory_mb, self._typical_ms)
            return
        queue = self._queues.get(principal)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            self.waiting -= 1
            if not queue:
                del self._queues[principal]
        self._hand_out()

    def _hand_out(self) -> None:
        """Give free places, one principal after the other; the first who does not fit holds the rest up,
        so that a large run is not starved by small ones."""
        while self._queues:
            principal, queue = next(iter(self._queues.items()))
            given_up = queue[0].turn.done()
            if not given_up and not self._fits(queue[0].memory_mb):
                return
            waiter = queue.popleft()
            self.waiting -= 1
            del self._queues[principal]
            if queue:
                self._queues[principal] = queue
            if not given_up:
                self._take(waiter.memory_mb)
                waiter.turn.set_result(None)

    def _retry_after_ms(self) -> int:
        rounds = (self.waiting + 1) / max(1, self._config.running)
        return int(min(60_000, max(100, self._typical_ms * rounds)))
