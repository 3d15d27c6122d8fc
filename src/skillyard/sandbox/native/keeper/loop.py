"""A small event loop: descriptors, timers, one thread."""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections.abc import Callable

from skillyard.watches import Watches

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
Callback = Callable[[int], None]
_CROWDED = 256


class Timer:
    """A call that is due at ``at`` (monotonic seconds) unless it is cancelled."""

    __slots__ = ("at", "call", "cancelled")

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        """Also lets go of what the call holds: it may be due in an hour."""
        self.cancelled = True
        self.call = _nothing


def _nothing() -> None:
    """What a cancelled timer does."""


class Loop:
    def __init__(self) -> None:
        self.watches = Watches()
        self._callbacks: dict[int, tuple[int, Callback]] = {}
        self._registered = 0
        self._timers: list[tuple[float, int, Timer]] = []
        self._crowded = _CROWDED
        self._order = itertools.count()
        self._idle: list[Callable[[], None]] = []
        self.running = True

    def watch(self, fd: int, events: int, callback: Callback) -> None:
        """Call ``callback(events)`` whenever ``fd`` is ready; a second call changes the first."""
        known = self._callbacks.get(fd)
        if known is not None:
            self.watches.modify(fd, events)
            self._callbacks[fd] = (known[0], callback)
            return
        self.watches.register(fd, events)
        self._registered += 1
        self._callbacks[fd] = (self._registered, callback)

    def forget(self, fd: int) -> None:
        """Before the descriptor is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self.watches.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + seconds, call)
        if len(self._timers) >= self._crowded:
            self._drop_cancelled()
        heapq.heappush(self._timers, (timer.at, next(self._order), timer))
        return timer

    def _drop_cancelled(self) -> None:
        """Most timers are deadlines of runs that end long before; without this, each would stay until it is due."""
        self._timers = [entry for entry in self._timers if not entry[2].cancelled]
        heapq.heapify(self._timers)
        self._crowded = max(_CROWDED, 2 * len(self._timers))

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call once, as soon as nothing else is ready."""
        self._idle.append(call)

    def run(self) -> None:
        while self.running:
            ready = self.watches.poll(self._timeout())
            self._dispatch(ready)
            self._fire()
            if not ready:
                self._rest()

    def _dispatch(self, ready: list[tuple[int, int]]) -> None:
        """A descriptor that was closed and opened again meanwhile has nothing to do with the event."""
        newest = self._registered
        for fd, events in ready:
            number, callback = self._callbacks.get(fd, (0, None))
            if callback is not None and number <= newest:
                callback(events)

    def _timeout(self) -> float:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if self._idle:
            return 0
        if not self._timers:
            return -1
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _fire(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                timer.call()

    def _rest(self) -> None:
        idle, self._idle = self._idle, []
        for call in idle:
            call()
