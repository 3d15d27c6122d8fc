"""Steps on a store that fails for a while, such as one that is full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from skillyard.domain.errors import SkillyardError
from skillyard.engine.runs.failure import LeftBehind

FIRST_S, LONGEST_S = 0.5, 30.0
"""Pauses between two tries: the first one, and the one that the doubling ends at."""


class Patience:
    """Repeats steps until they pass.

    ``told`` hears why a step does not pass, and an empty text as soon as it does.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._over = asyncio.Event()

    def end(self) -> None:
        """From now on each step has one try."""
        self._over.set()

    async def through(self, step: Callable[[], Awaitable[object]]) -> None:
        """Takes a step. Raises the error of its last try, and LeftBehind where another server has the run."""
        pause, failed = FIRST_S, False
        while True:
            last = self._over.is_set()
            try:
                await step()
            except (SkillyardError, LeftBehind) as error:
                if last or not _may_pass(error):
                    raise
                self._told(str(error))
            else:
                if failed:
                    self._told("")
                return
            failed = True
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._over.wait()
            pause = min(2 * pause, LONGEST_S)


def _may_pass(error: SkillyardError | LeftBehind) -> bool:
    # A run that is left behind without a store's fault belongs to another server.
    return isinstance(error, SkillyardError) or error.__cause__ is not None
