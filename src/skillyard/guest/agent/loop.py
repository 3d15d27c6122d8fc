"""The agent's loop: descriptors, timers and the ends of children, in one thread."""

from __future__ import annotations

import os
import select
from itertools import count
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    import heapq
    import signal
    from collections.abc import Callable
    from resource import struct_rusage

    Handler = Callable[[], object]
else:
    import _heapq as heapq
    import _signal as signal

_READ = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
_WRITE = select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP
_KEPT = frozenset({
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
    signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP,
})  # fmt: skip
"""Signals that are not ignored: those that cannot be, and those of the agent's own faults."""


class Timer:
    """A call to come. ``function`` is None once it was made or cancelled."""

    def __init__(self, function: Handler) -> None:
        self.function: Handler | None = function

    def cancel(self) -> None:
        self.function = None


class Loop:
    """Calls what is ready, due or ended.

    ``reaped`` is called with pid, status and usage of each child that ended, ``settled`` after each round.
    """

    def __init__(self, reaped: Callable[[int, int, struct_rusage], None], settled: Handler) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, tuple[Handler | None, Handler | None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._reaped, self._settled = reaped, settled
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake):
            os.set_blocking(fd, False)
        for number in signal.valid_signals() - _KEPT:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.watch(self._wake, self._children)
        self.running = True

    def watch(self, fd: int, read: Handler | None = None, write: Handler | None = None) -> None:
        """Calls ``read`` and ``write`` whenever ``fd`` is ready for it. Without either, it is forgotten."""
        before, now = self._handlers.get(fd), (read, write)
        if not read and not write:
            if before is not None:
                del self._handlers[fd]
                self._poll.unregister(fd)
            return
        self._handlers[fd] = now
        mask = (_READ if read else 0) | (select.EPOLLOUT if write else 0)
        if before is None:
            self._poll.register(fd, mask)
        elif (bool(before[0]), bool(before[1])) != (bool(read), bool(write)):
            self._poll.modify(fd, mask)

    def close(self, fd: int) -> None:
        """Forgets and closes a descriptor."""
        self.watch(fd)
        os.close(fd)

    def after(self, seconds: float, function: Handler) -> Timer:
        timer = Timer(function)
        heapq.heappush(self._timers, (monotonic() + seconds, next(self._order), timer))
        return timer

    def run(self) -> None:
        """Serves until ``running`` is false."""
        while self.running:
            for fd, events in self._poll.poll(self._patience()):
                if events & _READ and not self._call(self._handlers.get(fd, (None, None))[0]):
                    self.watch(fd)
                if events & _WRITE and not self._call(self._handlers.get(fd, (None, None))[1]):
                    self.watch(fd)
            self._ring()
            self._call(self._settled)

    def _call(self, function: Handler | None) -> bool:
        """Calls a function; returns whether it raised nothing. One that fails does not end the agent."""
        try:
            if function is not None:
                function()
        except Exception as error:  # noqa: BLE001 - what foreign code provoked must not end what others rely on
            os.write(2, f"agent: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
            return False
        return True

    def _patience(self) -> float | None:
        while self._timers and self._timers[0][2].function is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - monotonic()) if self._timers else None

    def _ring(self) -> None:
        now = monotonic()
        while self._timers and self._timers[0][0] <= now:
            function = heapq.heappop(self._timers)[2].function
            self._call(function)

    def _children(self) -> None:
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            return
        self.reap()

    def reap(self) -> None:
        """Takes the status of every child that ended."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._reaped(pid, status, used)
