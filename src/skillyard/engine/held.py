"""What the requests of all runs that wait or work hold of the server's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from skillyard.domain.errors import Busy
from skillyard.engine.runs.request import RunRequest

_EACH = 64 * 1024
"""Tasks, records and buffers of one request, however small."""
_COPIES = 2
_VALUE = 64
"""Bytes of an empty list, which three bytes of JSON make (sys.getsizeof)."""
_MARKS = ",[{"
_PLAIN = 4096
_SOON_MS = 1000


def weight(request: RunRequest) -> int:
    """Bytes that a request may take while it is held: its text, and the values that were made of it."""
    text = len(request.args_json)
    values = sum(map(request.args_json.count, _MARKS)) if text > _PLAIN else text
    return _EACH + _COPIES * (text + len(request.code or "")) + _VALUE * values


class HeldRequests:
    """``total`` bytes for all, of which one principal may take all but ``reserve``."""

    def __init__(self, total: int, reserve: float) -> None:
        self._total = total
        self._each = int(total * (1 - reserve))
        self._held: dict[str, int] = {}
        self.bytes = 0

    @contextmanager
    def holding(self, principal: str, request: RunRequest) -> Iterator[None]:
        """Raises Busy when there is no room for it."""
        size = weight(request)
        mine = self._held.get(principal, 0)
        if self.bytes + size > self._total or mine + size > self._each:
            raise Busy("too many large requests at once; send bulk data as a blob", retry_after_ms=_SOON_MS)
        self._held[principal] = mine + size
        self.bytes += size
        try:
            yield
        finally:
            self.bytes -= size
            left = self._held[principal] - size
            if left:
                self._held[principal] = left
            else:
                del self._held[principal]
