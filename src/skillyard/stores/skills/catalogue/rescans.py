"""Going round a large catalogue in the background, while it is being used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

SHARE = 0.1
"""Of one processor, at most, while nothing changes."""
WALK_EVERY_S = 0.5


class Rescans:
    """``walk`` looks at the directories; ``survey`` at the next bundles, and gives where to go on (None: that was the
    last). Both are called in turns, each followed by a rest of nine times as long, until a whole round found nobody
    who had called :meth:`wake` since it began."""

    def __init__(self, walk: Callable[[], Awaitable[None]], survey: Callable[[int], Awaitable[int | None]]) -> None:
        self._walk = walk
        self._survey = survey
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False
        self._end = asyncio.Event()

    def wake(self) -> None:
        """Cheap: called with each use of the catalogue."""
        self._is_wanted = True
        if (self._task is None or self._task.done()) and not self._end.is_set():
            self._task = asyncio.get_running_loop().create_task(self._go_round(), name="catalogue rescan")

    async def close(self) -> None:
        self._end.set()
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task

    async def _go_round(self) -> None:
        while self._is_wanted and not self._end.is_set():
            self._is_wanted = False
            after: int | None = 0
            while after is not None and not self._end.is_set():
                after = await self._stretch(after)

    async def _stretch(self, after: int) -> int | None:
        """One walk, and bundles until the next is due."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._walk()
        due = began + max(WALK_EVERY_S, (loop.time() - began) / SHARE)
        then: int | None = after
        while then is not None and loop.time() < due and not self._end.is_set():
            started = loop.time()
            then = await self._survey(then)
            await self._rest((loop.time() - started) * (1 / SHARE - 1))
        await self._rest(due - loop.time())
        return then

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._end.wait(), max(seconds, 0.001))
