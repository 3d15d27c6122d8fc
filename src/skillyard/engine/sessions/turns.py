"""Turns of calls in one session: one at a time, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field

from skillyard.domain.errors import Busy
from skillyard.domain.work.session import SessionKey
from skillyard.values import dataclass

_SOONEST_MS, _LATEST_MS = 250, 60_000


@dataclass(slots=True)
class _Line:
    """The calls for one session, each with its job. ``since`` is the loop's time at which one had its turn last."""

    since: float
    taken: bool = False
    waiting: deque[tuple[asyncio.Future[None], str | None]] = field(default_factory=deque)


class Turns:
    """``most`` calls may wait for one session. A job whose step had a turn holds the session for its next steps."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[SessionKey, _Line] = {}
        self._held: dict[SessionKey, str] = {}
        self._aside: dict[SessionKey, asyncio.Event] = {}
        self.left: Callable[[SessionKey], object] = bool
        """Called whenever a turn ends."""

    def taken(self, key: SessionKey) -> bool:
        """Returns whether a call has its turn."""
        return (line := self._lines.get(key)) is not None and line.taken

    async def enter(self, key: SessionKey, wait_ms: float | None, job: str | None = "") -> None:
        """Returns when it is the caller's turn, which it ends with :meth:`leave`.

        ``job`` is that of a step, which holds the session from then on; None passes a hold. Raises Busy when it is not
        within ``wait_ms``, or when too many wait; None waits for any time, in a full line too.
        """
        while (over := self._aside.get(key)) is not None:
            await over.wait()
        line = self._lines.setdefault(key, _Line(_now()))
        if not line.taken and self._may(key, job):
            self._take(key, line, job)
            return
        if wait_ms is not None and (wait_ms <= 0 or len(line.waiting) >= self._most):
            raise self.busy(key)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append((turn, job))
        try:
            async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.leave(key)
            elif (turn, job) in line.waiting:
                line.waiting.remove((turn, job))
                self._next(key)
            if isinstance(error, TimeoutError):
                raise self.busy(key) from None
            raise

    def leave(self, key: SessionKey) -> None:
        """Ends a turn: the next in the line that may has it."""
        line = self._lines[key]
        line.since, line.taken = _now(), False
        self._next(key)
        self.left(key)

    @contextmanager
    def aside(self, key: SessionKey) -> Iterator[bool]:
        """Takes the turn for work of the server's own; yields False where somebody has it.

        Calls that come meanwhile wait for its end, however short their patience is.
        """
        if key in self._lines:
            yield False
            return
        self._lines[key] = _Line(_now(), taken=True)
        over = self._aside[key] = asyncio.Event()
        try:
            yield True
        finally:
            del self._aside[key]
            over.set()
            self.leave(key)

    def hold(self, key: SessionKey, job: str) -> None:
        """Holds a session for the steps of a job, unless another one does."""
        self._held.setdefault(key, job)

    def holds(self, key: SessionKey, job: str) -> bool:
        """Returns whether a job holds a session."""
        return self._held.get(key) == job

    def let_go(self, key: SessionKey, job: str) -> None:
        """Ends the hold of a job, if it has it."""
        if self._held.get(key) == job:
            del self._held[key]
            self._next(key)

    def _may(self, key: SessionKey, job: str | None) -> bool:
        return job is None or self._held.get(key) in (None, job)

    def _take(self, key: SessionKey, line: _Line, job: str | None) -> None:
        line.taken = True
        if job:
            self.hold(key, job)

    def _next(self, key: SessionKey) -> None:
        line = self._lines.get(key)
        if line is None or line.taken:
            return
        for turn, job in list(line.waiting):
            if turn.done():
                line.waiting.remove((turn, job))
            elif self._may(key, job):
                line.waiting.remove((turn, job))
                self._take(key, line, job)
                turn.set_result(None)
                return
        if not line.waiting:
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
