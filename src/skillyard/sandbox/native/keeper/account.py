"""What a sandbox used and which of its limits it met: how the end of a program is told."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from skillyard.sandbox.native.groups.groups import Group

_PROCESS_CLOCK = 2
"""``~pid << 3 | 2`` is the clock of a process's processor time (clock_getcpuclockid(3))."""
_CUTIME = 13
"""Of /proc/PID/stat after the name: the time of children that were waited for (proc_pid_stat(5))."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Account:
    def __init__(self, group: Group | None, memory_mb: int) -> None:
        self._group = group
        self._memory_mb = memory_mb
        self._cpu_seconds: float | None = None
        self._peak_rss = 0
        self._peak_seen = 0
        self.worker = 0
        """The process that waits for work, once it is known."""
        self._seen_seconds = 0.0

    def meet(self, init: int) -> None:
        """Learn which process waits for work: the one child that init has before it is lent."""
        path = f"/proc/{init}/task/{init}/children"
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            self.worker = int(file.read())

    def look(self) -> None:
        """What the worker has used so far. A pid namespace that is ended reaps its processes by itself, and what
        they used is then told to nobody: so this comes before the end."""
        with contextlib.suppress(OSError, ValueError):
            own = time.clock_gettime(~self.worker << 3 | _PROCESS_CLOCK)
            with open(f"/proc/{self.worker}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            children = (int(fields[_CUTIME]) + int(fields[_CUTIME + 1])) / _TICKS
            self._seen_seconds = max(self._seen_seconds, own + children)

    def told(self, cpu_seconds: float, peak_rss: int) -> None:
        """What init knows of the children that it reaped (getrusage(2))."""
        self._cpu_seconds = cpu_seconds
        self._peak_rss = max(self._peak_rss, peak_rss)

    def saw(self, memory_bytes: int) -> None:
        """What somebody who looked has seen."""
        self._peak_seen = max(self._peak_seen, memory_bytes)

    def settle(self, pid: int) -> None:
        """Reap init: what it and all that ended below it used, as its parent learns it (wait4(2))."""
        try:
            _, _, used = os.wait4(pid, 0)
        except ChildProcessError:
            return
        self._cpu_seconds = max(self._seen_seconds, used.ru_utime + used.ru_stime)
        self._peak_rss = max(self._peak_rss, used.ru_maxrss * 1024)

    def used(self) -> dict[str, Any]:
        """``cpu_ms``, ``peak_memory_bytes`` and ``source``: who counted the memory."""
        peak = self._group.peak_memory() if self._group is not None else None
        return {
            "cpu_ms": None if self._cpu_seconds is None else round(self._cpu_seconds * 1000, 3),
            "peak_memory_bytes": peak or max(self._peak_seen, self._peak_rss) or None,
            "source": "cgroup" if peak is not None else "sampled" if self._peak_seen else "rusage",
        }

    def hits(self) -> list[str]:
        """Limits for which the kernel refused or ended something."""
        found = []
        if self._group is not None and self._group.refused_forks():
            found.append("pids")
        if self._out_of_memory():
            found.append("memory")
        return found

    def ending(self, status: int) -> dict[str, Any]:
        """How a program ended whose wait status is ``status``. Where the kernel ended any of its processes for want
        of memory, that is what ended it, whatever the others made of it."""
        if self._out_of_memory() and status:
            return self._memory()
        if not os.WIFSIGNALED(status):
            return {"outcome": "exit", "code": os.WEXITSTATUS(status), "reason": ""}
        number = os.WTERMSIG(status)
        return {"outcome": "signal", "signal": number, "reason": f"ended by signal {number}"}

    def unexplained(self, reason: str) -> dict[str, Any]:
        """How a program ended whose init ended first, without anybody having asked for it."""
        return self._memory() if self._out_of_memory() else forced("lost", reason or "the sandbox ended")

    def _memory(self) -> dict[str, Any]:
        return forced("memory", f"over the memory limit of {self._memory_mb} MiB")

    def _out_of_memory(self) -> bool:
        return self._group is not None and self._group.oom_kills() > 0


def forced(outcome: str, reason: str) -> dict[str, Any]:
    """The ending that somebody gave a program."""
    return {"outcome": outcome, "reason": reason, **({"code": 0} if outcome == "exit" else {})}
