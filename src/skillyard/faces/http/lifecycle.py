"""Where a server is in its life, and who waits on it: what drains when it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import StrEnum
from typing import Any

from skillyard.faces.http.errors import Unavailable


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Lifecycle:
    """STARTING, then READY, then DRAINING, never back. ``facts`` are what ``/readyz`` shows beside it."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.facts: Mapping[str, Any] = {}
        self.dead: Callable[[], Mapping[str, str]] = dict
        """Processes that runs depend on and that do not run, each with the reason."""
        self.older: Callable[[], Mapping[str, str]] = dict
        """Processes of earlier versions that are served until the detached runs in them have ended."""
        self.on_drain: Callable[[], None] = _nothing
        """Ends calls that only wait for work to end."""
        self.draining: Callable[[], bool] = bool
        """Whether new work is refused although the server is ready."""
        self._working = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._endless: set[asyncio.Timeout] = set()
        self._stoppable: set[Callable[[Exception], None]] = set()

    def ready(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self.phase = Phase.READY

    def drain(self) -> None:
        self.phase = Phase.DRAINING
        self.on_drain()
        for bound in self._endless:
            bound.reschedule(asyncio.get_running_loop().time())

    def check(self) -> None:
        """Raises Unavailable unless requests are served."""
        if self.phase is not Phase.READY:
            raise Unavailable(f"the server is {self.phase}", retry_after_ms=1000, phase=str(self.phase))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Counts a request as in work for the block: draining waits for it."""
        self._working += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._working -= 1
            if not self._working:
                self._idle.set()

    @asynccontextmanager
    async def until_drained(self) -> AsyncIterator[None]:
        """Runs the block. Raises TimeoutError when the server begins to stop: for answers without an end."""
        async with asyncio.timeout(0 if self.phase is Phase.DRAINING else None) as bound:
            self._endless.add(bound)
            try:
                yield
            finally:
                self._endless.discard(bound)

    @contextmanager
    def stoppable(self, stop: Callable[[Exception], None]) -> Iterator[None]:
        """Registers a wait for the block; ``stop`` ends it with an error when there is no time left."""
        self._stoppable.add(stop)
        try:
            yield
        finally:
            self._stoppable.discard(stop)

    async def idle(self, seconds: float) -> bool:
        """Waits until nothing is in work, so long at most, and returns whether it is so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        return self._idle.is_set()

    def stop_waiting(self) -> None:
        """Ends all waits."""
        for stop in list(self._stoppable):
            stop(Unavailable("the server is stopping; a run that is not detached was cancelled", retry_after_ms=1000))


def _nothing() -> None:
    return
