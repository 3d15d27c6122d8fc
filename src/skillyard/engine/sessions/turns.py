"""Turns of calls in one session: one at a time, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from skillyard.domain.errors import Busy
from skillyard.domain.work.session import SessionKey

_SOONEST_MS, _LATEST_MS = 250, 60_000


@dataclass(slots=True)
class _Line:
    """The calls for one session. ``since`` is the time of the event loop's clock at which one had its turn last."""

    since: float
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Turns:
    """``most`` calls may wait for one session."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[SessionKey, _Line] = {}

    def taken(self, key: SessionKey) -> bool:
        """Returns whether a call has its turn."""
        return key in self._lines

    async def enter(self, key: SessionKey, wait_ms: float | None) -> None:
        """Returns when it is the caller's turn, which it ends with :meth:`leave`.

        Raises Busy when it is not within ``wait_ms``, or when too many wait; None waits for any time, in a full line
        too.
        """
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = _Line(_now())
            return
        if wait_ms is not None and (wait_ms <= 0 or len(line.waiting) >= self._most):
            raise self.busy(key)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        try:
            async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.leave(key)
            elif turn in line.waiting:
                line.waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise self.busy(key) from None
            raise

    def leave(self, key: SessionKey) -> None:
        """Ends a turn: the next in the line has it."""
        line = self._lines[key]
        line.since = _now()
        while line.waiting:
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._lines[key]

    def busy(self, key: SessionKey) -> Busy:
        """Returns the error for a call that does not wait any longer."""
        line = self._lines.get(key)
        after_ms = _SOONEST_MS
        if line is not None:
            estimate_ms = 1000 * (_now() - line.since) * (len(line.waiting) + 1)
            after_ms = int(min(_LATEST_MS, max(_SOONEST_MS, estimate_ms)))
        rule = f"session_id: the session '{key.alias}' is busy; come again later, or wait longer with wait_ms"
        return Busy(rule, retry_after_ms=after_ms)


def _now() -> float:
    return asyncio.get_running_loop().time()
