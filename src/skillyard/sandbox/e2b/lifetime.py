"""The time that a machine has left at the provider, and its renewal while a server uses it.

A machine ends by itself when nobody renews it. So one that its server forgot costs money for a bounded time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from skillyard.domain.errors import SandboxFault, SandboxGone

MARGIN_S = 120.0
"""How much longer than its deadline a machine lives: time to collect what a program left."""
_AGAIN_S = 10.0
_SOONEST_S = 1.0


class Renewer(Protocol):
    """The side that keeps the time of machines."""

    async def renew(self, id: str, ttl_s: int, /) -> None:
        """Has a machine end in ``ttl_s``. Raises SandboxGone, SandboxFault."""
        ...


def span(timeout_ms: float, most_s: float) -> int:
    """Returns the seconds that a machine with such a program lives, at most ``most_s``."""
    return int(min(timeout_ms / 1000 + MARGIN_S, most_s))


class Lifetime:
    """Renews one machine for as long as it is open. ``left_s`` are certain at the beginning."""

    def __init__(self, provider: Renewer, id: str, span_s: int, most_s: float, left_s: float) -> None:
        self._provider, self._id, self._span_s, self._most_s = provider, id, span_s, most_s
        self._until = time.monotonic() + left_s
        self._renewing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._later(left_s / 2)

    async def cover(self, timeout_ms: float) -> None:
        """Has the machine outlive a program that begins now. Raises SandboxGone, SandboxFault."""
        await self._renew(span(timeout_ms, self._most_s))

    async def close(self) -> None:
        """Renews no more. The machine ends when its time is over."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _renew(self, wanted_s: int) -> None:
        async with self._renewing:
            if self._until - time.monotonic() >= wanted_s - min(MARGIN_S / 2, wanted_s / 4):
                return
            asked = time.monotonic()
            await self._provider.renew(self._id, wanted_s)
            self._until = asked + wanted_s

    def _later(self, in_s: float) -> None:
        if not self._closed:
            self._timer = asyncio.get_running_loop().call_later(max(_SOONEST_S, in_s), self._due)

    def _due(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._again())

    async def _again(self) -> None:
        try:
            left_s = self._until - time.monotonic()
            if left_s < self._span_s * 0.75:
                await self._renew(self._span_s)
        except SandboxGone:
            return
        except SandboxFault:
            self._later(_AGAIN_S)
        else:
            self._later((self._until - time.monotonic()) / 2)
