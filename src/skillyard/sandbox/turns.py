"""Locks by key: requests that race with one key make one sandbox."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Turns:
    """Gives each key one lock, which is kept while somebody holds it or waits for it.

    A lock that the first to end removed would be another one for those who come next than for those who wait.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def __len__(self) -> int:
        return len(self._locks)
