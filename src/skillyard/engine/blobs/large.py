"""Large contents on their way into an answer: few at once, since each is in memory several times over until then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SMALL = 256 * 1024
"""Bytes that are read without waiting for a place."""

PLACES = 4


class LargeReads:
    """Lives on one event loop; who comes first reads first."""

    def __init__(self, places: int = PLACES) -> None:
        self._places = asyncio.Semaphore(places)

    @asynccontextmanager
    async def place(self, size: int) -> AsyncIterator[None]:
        """``size`` bytes are read, and made into a value, within the block."""
        if size <= SMALL:
            yield
            return
        async with self._places:
            yield
