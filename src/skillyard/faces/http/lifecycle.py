"""Where a server is in its life, and who waits on it: what drains when it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
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
        self._waiting: set[Callable[[Exception], None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def ready(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self.phase = Phase.READY

    def drain(self) -> None:
        self.phase = Phase.DRAINING

    def check(self) -> None:
        """Raises Unavailable unless requests are served."""
        if self.phase is not Phase.READY:
            raise Unavailable(f"the server is {self.phase}", retry_after_ms=1000, phase=str(self.phase))

    def enter(self, stop: Callable[[Exception], None]) -> None:
        """Somebody waits for a run; ``stop`` ends the wait with an error when the grace period is over."""
        self._waiting.add(stop)
        self._idle.clear()

    def leave(self, stop: Callable[[Exception], None]) -> None:
        self._waiting.discard(stop)
        if not self._waiting:
            self._idle.set()

    async def finish(self, grace_s: float) -> int:
        """Wait for the runs in flight, ``grace_s`` seconds at most, then stop them; how many were stopped."""
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return self._stop_all()
        return 0

    def _stop_all(self) -> int:
        waiting = list(self._waiting)
        for stop in waiting:
            stop(Unavailable("the server is stopping; the run was cancelled", retry_after_ms=1000))
        return len(waiting)
