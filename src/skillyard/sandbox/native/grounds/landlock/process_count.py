"""How many processes and threads our user has on this whole host, in other containers too: RLIMIT_NPROC counts them
all, and no file tells of those (getrlimit(2)). Found by trying: a fork is refused when they are more than the limit.
"""

from __future__ import annotations

import os
import resource
import time

_FRESH_S = 2.0
_STEP = 256
_MOST = 1 << 22
"""More than a kernel has pids for."""


class ProcessCount:
    """Asked again and again: the last answer is where the next search begins."""

    def __init__(self) -> None:
        self._count = _STEP
        self._at = float("-inf")

    def count(self) -> int:
        """As of at most two seconds ago."""
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
    """A limit with which a fork is refused, and one with which it is not."""
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
