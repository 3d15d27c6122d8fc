"""The processes of the keeper's user: their number, and the end of a killed init's.

RLIMIT_NPROC counts a user's processes and threads on the whole host, in other containers, too, and no file tells their
number (getrlimit(2)). So it is found by trying: a fork is refused when they are more than the limit.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.watch.processes import children
from skillyard.sandbox.native.linux import kernel

_FRESH_S = 2.0
_STEP = 256
_MOST = 1 << 22
"""More than the pids of any kernel."""


class ProcessCount:
    """Counts our user's processes and threads. Each search begins at the last answer."""

    def __init__(self) -> None:
        self._count = _STEP
        self._at = float("-inf")

    def count(self) -> int:
        """Returns their number, at most two seconds old."""
        now = time.monotonic()
        if now - self._at > _FRESH_S:
            self._count = _search(self._count)
            self._at = now
        return self._count


def _search(guess: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    ceiling = _MOST if hard == resource.RLIM_INFINITY else hard
    try:
        low, high = _bounds(min(guess, ceiling), ceiling, hard)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _may_fork(middle, hard) else (middle, high)
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    return low


def _bounds(guess: int, ceiling: int, hard: int) -> tuple[int, int]:
    """Returns a limit with which a fork is refused, and one with which it is not."""
    step = _STEP
    if _may_fork(guess, hard):
        low, high = guess, guess
        while low > 0 and _may_fork(low, hard):
            low, high, step = max(0, low - step), low, step * 2
        return low, high
    low = high = guess
    while high < ceiling and not _may_fork(high, hard):
        low, high, step = high, min(ceiling, high + step), step * 2
    return low, high


def _may_fork(limit: int, hard: int) -> bool:
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
    try:
        pid = os.fork()
    except BlockingIOError:
        return False
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True


_AGAIN_S = 0.002
_FAILED_AGAIN_S = 0.1


class Leftovers:
    """Ends processes whose init was killed, which come to the keeper.

    ``inits`` gives the pids of the sandboxes that the keeper knows.
    """

    def __init__(self, loop: Loop, inits: Callable[[], Collection[int]]) -> None:
        self._loop = loop
        self._inits = inits
        self._zygotes: dict[int, int] = {}

    def meet_zygote(self, pid: int) -> None:
        """Spares a zygote and its clones. No program of a sandbox can join their process group."""
        self._zygotes[pid] = kernel.pidfd_open(pid)

    def end(self, uid: int, warden: int, done: Callable[[], None]) -> None:
        """Ends foreign children of ours, and all of ``uid`` unless it is 0; then calls ``done``."""
        if uid:
            _end_user(uid, warden)

        loop = self._loop.guarded(lambda _: again())

        def again() -> None:
            loop.after(_FAILED_AGAIN_S, turn)

        def turn() -> None:
            left = self._left()
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if left:
                loop.after(_AGAIN_S, turn)
            else:
                done()

        turn()

    def _left(self) -> list[int]:
        self._forget_ended()
        inits = self._inits()
        return [pid for pid in children(os.getpid()) if pid not in inits and _group(pid) not in self._zygotes]

    def _forget_ended(self) -> None:
        for pid, pidfd in list(self._zygotes.items()):
            try:
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # it was reaped, after the last of its sandboxes
                os.close(pidfd)
                del self._zygotes[pid]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _end_user(uid: int, warden: int) -> None:
    """Ends a user's processes as init does: kill(-1) from one that they cannot signal."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(warden, uid, warden)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
