"""How many bundles may be on their way at once: each is a file on the disk, and in memory for a moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from skillyard.domain.errors import Busy

_SOON_MS = 1000


class Transfers:
    """``total`` for all, ``each`` for one principal."""

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self._going: Counter[str] = Counter()

    @contextmanager
    def place(self, principal: str) -> Iterator[None]:
        """Raises Busy."""
        if self._going.total() >= self.total or self._going[principal] >= self.each:
            raise Busy("too many bundles are on their way at once", retry_after_ms=_SOON_MS)
        self._going[principal] += 1
        try:
            yield
        finally:
            self._going[principal] -= 1
            if not self._going[principal]:
                del self._going[principal]


def uploads() -> Transfers:
    return Transfers(total=8, each=4)


def downloads() -> Transfers:
    return Transfers(total=64, each=16)
