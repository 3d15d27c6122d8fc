"""A small event loop: descriptors, timers, one thread.

An exception of one call ends no other. It goes to the owner who registered the call through :meth:`Loop.guarded`;
without an owner it is reported, and the call goes on.
"""

from __future__ import annotations

import heapq
import itertools
import select
import sys
import time
import traceback
from collections.abc import Callable

from skillyard.watches import Watches

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
Callback = Callable[[int], None]
Fault = Callable[[Exception], None]
_CROWDED = 256
_STRIKES = 3
"""Failures in a row after which a ready descriptor is dropped; it would be ready for ever."""
_MOST_TOLD = 100
"""Faults that are written down; a call that fails for ever must not fill the disk."""


class Timer:
    """A call that is due at ``at`` (monotonic seconds) unless it is cancelled."""

    __slots__ = ("at", "call", "cancelled", "fault")

    def __init__(self, at: float, call: Callable[[], None], fault: Fault) -> None:
        self.at = at
        self.call = call
        self.fault = fault
        self.cancelled = False

    def cancel(self) -> None:
        """Cancels the call and lets go of all that it holds: it may be due in an hour."""
        self.cancelled = True
        self.call = _nothing
        self.fault = _told_already


def _nothing() -> None:
    """Does nothing, for a cancelled timer."""


def _told_already(_: Exception) -> None:
    """Ignores a fault that concerns nobody."""


class Loop:
    """Calls back for ready descriptors and due timers. ``on_fault`` gets exceptions as text."""

    def __init__(self) -> None:
        self.watches = Watches()
        self._callbacks: dict[int, tuple[int, Callback, Fault]] = {}
        self._strikes: dict[int, int] = {}
        self._registered = 0
        self._timers: list[tuple[float, int, Timer]] = []
        self._crowded = _CROWDED
        self._order = itertools.count()
        self._idle: list[tuple[Callable[[], None], Fault]] = []
        self._told = 0
        self.running = True
        self.on_fault: Callable[[str], None] = lambda text: None

    def guarded(self, fault: Fault) -> Guarded:
        """Returns the loop for one owner's calls. Their exceptions go to ``fault``, which ends the owner."""
        return Guarded(self, fault)

    def report(self, error: Exception) -> None:
        """Reports a fault that ended nothing."""
        self._told += 1
        if self._told > _MOST_TOLD:
            return
        traceback.print_exception(error)
        sys.stderr.flush()
        try:
            self.on_fault(f"{type(error).__name__}: {error}"[:500])
        except Exception as again:  # noqa: BLE001 - the one to be told may be what fails
            traceback.print_exception(again)

    def watch(self, fd: int, events: int, callback: Callback, fault: Fault = _told_already) -> None:
        """Calls ``callback(events)`` whenever ``fd`` is ready; a second call changes the first."""
        known = self._callbacks.get(fd)
        if known is not None:
            self.watches.modify(fd, events)
            self._callbacks[fd] = (known[0], callback, fault)
            return
        self.watches.register(fd, events)
        self._registered += 1
        self._callbacks[fd] = (self._registered, callback, fault)

    def forget(self, fd: int) -> None:
        """Stops watching a descriptor, before it is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._strikes.pop(fd, None)
            self.watches.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None], fault: Fault = _told_already) -> Timer:
        timer = Timer(time.monotonic() + seconds, call, fault)
        if len(self._timers) >= self._crowded:
            self._drop_cancelled()
        heapq.heappush(self._timers, (timer.at, next(self._order), timer))
        return timer

    def _drop_cancelled(self) -> None:
        """Drops cancelled timers: most are deadlines of runs that ended long before."""
        self._timers = [entry for entry in self._timers if not entry[2].cancelled]
        heapq.heapify(self._timers)
        self._crowded = max(_CROWDED, 2 * len(self._timers))

    def when_idle(self, call: Callable[[], None], fault: Fault = _told_already) -> None:
        """Calls once, as soon as nothing else is ready."""
        self._idle.append((call, fault))

    def run(self) -> None:
        while self.running:
            ready = self.watches.poll(self._timeout())
            self._dispatch(ready)
            self._fire()
            if not ready:
                self._rest()

    def _dispatch(self, ready: list[tuple[int, int]]) -> None:
        # An event does not concern a descriptor that was closed and opened again meanwhile.
        newest = self._registered
        for fd, events in ready:
            known = self._callbacks.get(fd)
            if known is None or known[0] > newest:
                continue
            try:
                known[1](events)
            except Exception as error:  # noqa: BLE001 - the process goes on, whatever one call raises
                self._failed(error, known[2])
                self._strike(fd, known[0])
            else:
                if self._strikes:
                    self._strikes.pop(fd, None)

    def _strike(self, fd: int, number: int) -> None:
        known = self._callbacks.get(fd)
        if known is not None and known[0] == number:
            self._strikes[fd] = self._strikes.get(fd, 0) + 1
            if self._strikes[fd] >= _STRIKES:
                self.forget(fd)

    def _failed(self, error: Exception, fault: Fault) -> None:
        self.report(error)
        try:
            fault(error)
        except Exception as again:  # noqa: BLE001 - as above
            self.report(again)

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
                self._call(timer.call, timer.fault)

    def _rest(self) -> None:
        idle, self._idle = self._idle, []
        for call, fault in idle:
            self._call(call, fault)

    def _call(self, call: Callable[[], None], fault: Fault) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the process goes on, whatever one call raises
            self._failed(error, fault)


class Guarded:
    """A :class:`Loop` in which one owner's calls end that owner when they raise."""

    def __init__(self, loop: Loop, fault: Fault) -> None:
        self._loop = loop
        self._fault = fault
        self.forget = loop.forget
        self.report = loop.report
        self.guarded = loop.guarded

    def watch(self, fd: int, events: int, callback: Callback) -> None:
        self._loop.watch(fd, events, callback, self._fault)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        return self._loop.after(seconds, call, self._fault)

    def when_idle(self, call: Callable[[], None]) -> None:
        self._loop.when_idle(call, self._fault)


Turns = Loop | Guarded
"""The owner's end of a registration."""
