"""Sandboxes that a zygote cloned and did not live to tell of: children of the keeper that nobody here knows."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress

from skillyard.sandbox.native.keeper.loop import READ, Turns
from skillyard.sandbox.native.linux import kernel

_PARENT, _GROUP = 1, 2
"""Fields of /proc/PID/stat behind the name (proc_pid_stat(5))."""


def end(loop: Turns, zygote: int, known: Collection[int]) -> None:
    """Kill and reap what a zygote that has ended left in its process group, but for the pids that are ``known``."""
    for pid in _children(zygote):
        if pid not in known:
            pidfd = kernel.pidfd_open(pid)
            kernel.pidfd_kill(pidfd)
            loop.watch(pidfd, READ, lambda _, pid=pid, pidfd=pidfd: _reap(loop, pid, pidfd))  # type: ignore[misc]


def _reap(loop: Turns, pid: int, pidfd: int) -> None:
    loop.forget(pidfd)
    os.close(pidfd)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _children(group: int) -> Iterator[int]:
    """Ours in this process group. A child keeps its pid until we reap it."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
                if int(fields[_PARENT]) == os.getpid() and int(fields[_GROUP]) == group:
                    yield int(name)
