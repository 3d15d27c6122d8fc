"""How many bundles may arrive at once: each is a file on the disk, and in memory for a moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from skillyard.domain.errors import Busy

_SOON_MS = 1000


class Uploads:
    """``total`` for all, ``each`` for one principal."""

    def __init__(self, total: int = 8, each: int = 4) -> None:
        self._total = total
        self._each = each
        self._arriving: Counter[str] = Counter()

    @contextmanager
    def place(self, principal: str) -> Iterator[None]:
        """Raises Busy."""
        if self._arriving.total() >= self._total or self._arriving[principal] >= self._each:
            raise Busy("too many bundles arrive at once", retry_after_ms=_SOON_MS)
        self._arriving[principal] += 1
        try:
            yield
        finally:
            self._arriving[principal] -= 1
            if not self._arriving[principal]:
                del self._arriving[principal]
