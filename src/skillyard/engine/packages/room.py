"""Turns of builds: only so many work at a time, and who has many waits behind who has few."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Room:
    """``places`` may be taken at a time. One that becomes free goes to the owner who has the fewest, of several to the
    one who was given none for longest."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By owner; who was given a place is behind the others."""

    @asynccontextmanager
    async def place(self, owner: str) -> AsyncGenerator[None, None]:
        if self._free:
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
        for nearest in sorted(self._waiting, key=lambda waiting: self._taken[waiting]):
            line = deque(turn for turn in self._waiting.pop(nearest) if not turn.done())
            if line:
                self._take(nearest)
                line.popleft().set_result(None)
                self._waiting |= {nearest: line} if line else {}
                return
