"""Ends exchanges and tunnels whose principal has lost its token meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from skillyard.domain.errors import SkillyardError
from skillyard.domain.principal import Principal

LOOK_S = 5.0
"""The time after which tokens are looked at again."""

Still = Callable[[str], Awaitable[Principal | None]]
"""Returns the principal of a name while one of its tokens is good."""


class Revocation:
    """Looks again and again whether the tokens behind open exchanges are good."""

    def __init__(self, still: Still) -> None:
        self._still = still
        self._held: dict[asyncio.Timeout, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def while_good(self, name: str) -> AsyncIterator[None]:
        """Runs the block. Raises TimeoutError soon after the last token of that principal was revoked."""
        async with asyncio.timeout(None) as bound:
            self._held[bound] = name
            self._look_later()
            try:
                yield
            finally:
                del self._held[bound]

    def _look_later(self) -> None:
        if self._timer is None and self._held:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._held:
            self._looking = asyncio.create_task(self._end_bad())

    async def _end_bad(self) -> None:
        bad = {name for name in set(self._held.values()) if not await self._is_good(name)}
        now = asyncio.get_running_loop().time()
        for bound, name in self._held.items():
            if name in bad:
                bound.reschedule(now)
        self._look_later()

    async def _is_good(self, name: str) -> bool:
        try:
            return await self._still(name) is not None
        except SkillyardError:
            return False
