"""A reader of a program's output, to whom the pieces are pushed as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skillyard.sandbox.native.keeper.spool import Dropped, Line, Spool

WINDOW = 256 * 1024
"""Bytes that are on their way to one reader. A slow reader makes the keeper hold no more."""
_PIECE = 128 * 1024

Push = Callable[[dict[str, Any], bytes], None]


class Follower:
    """``push(fields, data)`` sends a piece. ``fields`` are empty but for the last one, which says why it is the last:
    ``end``, ``dropped`` with the first offset that is kept, ``error``, or ``gone``."""

    def __init__(self, stream: str, spool: Spool | Line, offset: int, push: Push) -> None:
        self.stream = stream
        self._spool = spool
        self._push = push
        self._sent = self._taken = offset
        self.over = False

    def took(self, offset: int) -> None:
        """Learns that the reader has all before ``offset``."""
        self._taken = min(max(self._taken, offset), self._sent)
        self.pump()

    def pump(self) -> None:
        """Pushes what is there, as far as the window reaches."""
        spool = self._spool
        while not self.over:
            waiting = spool.readable - self._sent
            most = min(waiting, self._taken + WINDOW - self._sent, _PIECE)
            if waiting <= 0 and spool.final:
                self.end(end=True)
            if most <= 0 or self.over:
                return
            try:
                data = spool.read(self._sent, most)
            except Dropped as dropped:
                self.end(dropped=dropped.first)
                return
            except OSError as error:
                self.end(error=f"the output cannot be read: {error.strerror}")
                return
            self._sent += len(data)
            if spool.final and self._sent >= spool.length:
                self.end(data, end=True)
            else:
                self._push({}, data)

    def end(self, data: bytes = b"", /, **why: Any) -> None:
        """Pushes the last piece, once."""
        if not self.over:
            self.over = True
            self._push(why, data)
