"""What a sandbox used and which of its limits it met: how the end of a program is told."""

from __future__ import annotations

import os
from typing import Any

from skillyard.sandbox.native.cgroups import Group


class Account:
    def __init__(self, group: Group | None, memory_mb: int) -> None:
        self._group = group
        self._memory_mb = memory_mb
        self._cpu_seconds: float | None = None
        self._peak_rss = 0
        self._peak_seen = 0

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
        self._cpu_seconds = used.ru_utime + used.ru_stime
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
        """How a program ended whose wait status is ``status``."""
        if not os.WIFSIGNALED(status):
            return {"outcome": "exit", "code": os.WEXITSTATUS(status), "reason": ""}
        if self._out_of_memory():
            return self._memory()
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
