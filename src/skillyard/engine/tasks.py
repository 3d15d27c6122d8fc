"""The one place where the engine starts tasks of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """Background tasks that somebody waits for, at the latest :meth:`close`."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Starts ``work``; its failure is for the caller that awaits the task."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)

    async def shielded(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Await ``work`` so that it goes on to its end when the caller is cancelled (once more)."""
        return await asyncio.shield(self.spawn(work, name))

    async def drain(self) -> None:
        """Wait until every task has ended, those included that start meanwhile."""
        while self._running:
            await asyncio.wait(self._running)

    def cancel(self) -> None:
        """Ask what is left to end."""
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """Cancel what is left and wait for it."""
        self.cancel()
        await self.drain()
