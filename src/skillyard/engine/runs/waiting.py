"""Long polls: calls that wait for a change of a run. A stored change wakes them; no timer looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from skillyard.domain.errors import Busy
from skillyard.domain.work.record import RunRecord
from skillyard.engine.shares import Budget
from skillyard.ports.records import RecordStore

T = TypeVar("T")
MOST_WAIT_MS = 60_000
"""Proxies commonly end a request that is silent for longer."""


class _Stopping(Busy):
    """The server takes no more calls."""


class Waiting:
    """Wakes calls that wait for a run when its record changes. ``polls`` bounds those of each principal."""

    def __init__(self, records: RecordStore, polls: Budget) -> None:
        self._records = records
        self._polls = polls
        self._turns: dict[str, set[asyncio.Future[None]]] = {}
        self._bounds: set[asyncio.Timeout] = set()
        self._closed = False

    async def poll(
        self, principal: str, run_id: str, wait_ms: int, look: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        """Returns what ``look`` gives, as soon as that is not None; None when the time is over.

        It looks at once, and again after each change of the run. Raises Busy when this principal has too many polls.
        """
        found = await look()
        if found is None and wait_ms:
            async with self.bounded(principal, wait_ms / 1000):
                found = await self.until(run_id, look)
        return found

    async def until(self, run_id: str, look: Callable[[], Awaitable[T | None]]) -> T:
        """Returns what ``look`` gives, as :meth:`poll`, however long that takes. Raises Busy when the server stops."""
        while not self._closed:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            turns = self._turns.setdefault(run_id, set())
            turns.add(turn)
            self._records.listen(self._changed)
            try:
                found = await look()
                if found is not None:
                    return found
                await turn
            finally:
                turns.discard(turn)
                if not turns and self._turns.get(run_id) is turns:
                    del self._turns[run_id]
                if not self._turns:
                    self._records.ignore(self._changed)
        raise _Stopping("the server is shutting down", retry_after_ms=1000)

    @asynccontextmanager
    async def bounded(self, principal: str, seconds: float) -> AsyncIterator[None]:
        """Lets the block wait so long, and less when the server stops.

        It then ends without an error. Raises Busy when this principal has too many polls.
        """
        with self._polls.holding(principal), suppress(TimeoutError, _Stopping):
            async with asyncio.timeout(0 if self._closed else seconds) as bound:
                self._bounds.add(bound)
                try:
                    yield
                finally:
                    self._bounds.discard(bound)

    def close(self) -> None:
        """Ends all waiting, now and from here on."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for bound in self._bounds:
            bound.reschedule(now)
        for run_id in list(self._turns):
            self.wake(run_id)

    def _changed(self, record: RunRecord) -> None:
        self.wake(record.run_id)

    def wake(self, run_id: str) -> None:
        """Wakes the calls that wait for a run, or for a job by its id."""
        for turn in self._turns.pop(run_id, ()):
            if not turn.done():
                turn.set_result(None)
