"""The order of checks: one at a time for each principal, and not all places for slow ones."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from skillyard.domain.errors import Busy

_SLOW_S = 0.1
_REMEMBERED_S = 30.0
_MOST_REMEMBERED = 1024
_RETRY_MS = 1000


class Turns:
    """Turns of checks among principals.

    ``places`` checks are at work at once, half of them of principals whose last checks were slow. ``waiting`` wait in
    all, a quarter of them of one principal.
    """

    def __init__(self, places: int, waiting: int = 1024) -> None:
        self._places = places
        self._most = waiting
        self._waiting = 0
        self._at_work: set[str] = set()
        self._slow: OrderedDict[str, float] = OrderedDict()
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, principal: str, *, patient: bool) -> AsyncIterator[Callable[[], None]]:
        """Waits for a turn; yields a function that begins the time of the check anew.

        A caller that had to wait for something else first calls it. Raises Busy when too many wait already, unless
        ``patient``.
        """
        if principal in self._queues or not self._may(principal):
            await self._wait(principal, patient)
        else:
            self._at_work.add(principal)
        now = asyncio.get_running_loop().time
        began = now()

        def begin() -> None:
            nonlocal began
            began = now()

        try:
            yield begin
        finally:
            self._note(principal, now() - began, now())
            self._leave(principal)

    async def _wait(self, principal: str, patient: bool) -> None:
        queue = self._queues.setdefault(principal, deque())
        if not patient and (self._waiting >= self._most or len(queue) >= self._most // 4):
            if not queue:
                del self._queues[principal]
            raise Busy("too many checks against schemas wait already", _RETRY_MS)
        coming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(coming)
        self._waiting += 1
        try:
            await coming
        except BaseException:
            if coming.done() and not coming.cancelled():
                self._leave(principal)
            elif coming in queue:
                self._waiting -= 1
                queue.remove(coming)
                if not queue:
                    del self._queues[principal]
            raise

    def _may(self, principal: str) -> bool:
        if principal in self._at_work or len(self._at_work) >= self._places:
            return False
        return not self._is_slow(principal) or sum(map(self._is_slow, self._at_work)) < self._places // 2

    def _is_slow(self, principal: str) -> bool:
        return self._slow.get(principal, 0.0) > asyncio.get_running_loop().time()

    def _note(self, principal: str, took: float, now: float) -> None:
        if took < _SLOW_S:
            return
        self._slow[principal] = now + _REMEMBERED_S
        self._slow.move_to_end(principal)
        if len(self._slow) > _MOST_REMEMBERED:
            self._slow.popitem(last=False)

    def _leave(self, principal: str) -> None:
        self._at_work.discard(principal)
        for name in list(self._queues):
            if len(self._at_work) >= self._places:
                return
            if self._may(name):
                self._begin(name)

    def _begin(self, principal: str) -> None:
        """Begins the principal's next check; waiters that were cancelled are passed over."""
        queue = self._queues[principal]
        while queue:
            self._waiting -= 1
            coming = queue.popleft()
            if not coming.done():
                self._at_work.add(principal)
                coming.set_result(None)
                break
        self._queues.move_to_end(principal)
        if not queue:
            del self._queues[principal]
