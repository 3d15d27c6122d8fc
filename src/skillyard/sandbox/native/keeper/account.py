"""What a sandbox used and which of its limits it met: how the end of a program is told."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any, Protocol

from skillyard.sandbox.native.groups.groups import Group

_PROCESS_CLOCK = 2
"""``~pid << 3 | 2`` is the clock of a process's processor time (clock_getcpuclockid(3))."""
_CUTIME = 13
"""Of /proc/PID/stat after the name: the time of children that were waited for (proc_pid_stat(5))."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Used:
    """What was counted so far. ``peak_rss`` is of one process, ``peak_seen`` of the whole sandbox."""

    cpu_seconds: float | None = None
    peak_rss: int = 0
    peak_seen: int = 0

    def saw(self, memory_bytes: int) -> None:
        self.peak_seen = max(self.peak_seen, memory_bytes)


class Meter(Protocol):
    """Counts what the processes of one sandbox use."""

    used: Used

    @property
    def worker(self) -> int:
        """The process that waits for work; 0 where there is none on this host."""
        ...

    def meet(self, init: int) -> None:
        """The sandbox is ready; ``init`` is its first process."""
        ...

    def begin(self) -> None:
        """The sandbox is lent."""
        ...

    def look(self) -> None:
        """The sandbox is about to be ended: what it has used so far is told to nobody afterwards."""
        ...

    def told(self, cpu_seconds: float, peak_rss: int) -> None:
        """Takes what init knows of the children that it reaped (getrusage(2))."""
        ...

    def settle(self, pid: int) -> None:
        """Reaps init."""
        ...


class ProcessMeter:
    """Counts processes of this host."""

    def __init__(self) -> None:
        self.used = Used()
        self.worker = 0
        self._seen_seconds = 0.0

    def meet(self, init: int) -> None:
        """Learns which process waits for work: the one child that init has before it is lent."""
        path = f"/proc/{init}/task/{init}/children"
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            self.worker = int(file.read())

    def begin(self) -> None:
        """What came before is little."""

    def look(self) -> None:
        """A pid namespace that is ended reaps its processes by itself, so the worker is looked at before."""
        with contextlib.suppress(OSError, ValueError):
            self._seen_seconds = max(self._seen_seconds, cpu_seconds(self.worker))

    def told(self, cpu_seconds: float, peak_rss: int) -> None:
        self.used.cpu_seconds = cpu_seconds
        self.used.peak_rss = max(self.used.peak_rss, peak_rss)

    def settle(self, pid: int) -> None:
        """What init and all that ended below it used, as its parent learns it (wait4(2))."""
        try:
            _, _, used = os.wait4(pid, 0)
        except ChildProcessError:
            return
        self.used.cpu_seconds = max(self._seen_seconds, used.ru_utime + used.ru_stime)
        self.used.peak_rss = max(self.used.peak_rss, used.ru_maxrss * 1024)


def cpu_seconds(pid: int) -> float:
    """Returns a process's time, with that of children that it waited for. Raises OSError, ValueError, IndexError."""
    own = time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return own + (int(fields[_CUTIME]) + int(fields[_CUTIME + 1])) / _TICKS


class Account:
    """What one sandbox used, by its meter and its control group."""

    def __init__(self, group: Group | None, memory_mb: int, meter: Meter) -> None:
        self._group = group
        self._memory_mb = memory_mb
        self.meter = meter

    def used(self) -> dict[str, Any]:
        """Returns ``cpu_ms``, ``peak_memory_bytes`` and ``source``, which says who counted the memory."""
        used = self.meter.used
        peak = self._group.peak_memory() if self._group is not None else None
        return {
            "cpu_ms": None if used.cpu_seconds is None else round(used.cpu_seconds * 1000, 3),
            "peak_memory_bytes": peak or max(used.peak_seen, used.peak_rss) or None,
            "source": "cgroup" if peak is not None else "sampled" if used.peak_seen else "rusage",
        }

    def hits(self) -> list[str]:
        """Returns the limits for which the kernel refused or ended something."""
        found = []
        if self._group is not None and self._group.refused_forks():
            found.append("pids")
        if self.out_of_memory():
            found.append("memory")
        return found

    def ending(self, status: int) -> dict[str, Any]:
        """Returns how a program ended whose wait status is ``status``. Where the kernel ended any of its processes for
        want of memory, that is what ended it, whatever the others made of it."""
        if self.out_of_memory() and status:
            return self._memory()
        if not os.WIFSIGNALED(status):
            return {"outcome": "exit", "code": os.WEXITSTATUS(status), "reason": ""}
        number = os.WTERMSIG(status)
        return {"outcome": "signal", "signal": number, "reason": f"ended by signal {number}"}

    def unexplained(self, reason: str) -> dict[str, Any]:
        """Returns how a program ended whose init ended first, without anybody having asked for it."""
        return self._memory() if self.out_of_memory() else forced("lost", reason or "the sandbox ended")

    def out_of_memory(self) -> bool:
        return self._group is not None and self._group.oom_kills() > 0

    def _memory(self) -> dict[str, Any]:
        return forced("memory", f"over the memory limit of {self._memory_mb} MiB")


def forced(outcome: str, reason: str) -> dict[str, Any]:
    """Returns the ending that somebody gave a program."""
    return {"outcome": outcome, "reason": reason, **({"code": 0} if outcome == "exit" else {})}
