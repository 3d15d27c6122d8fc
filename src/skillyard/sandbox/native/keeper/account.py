"""The account of a sandbox: its use, the limits that it met, and the endings of programs."""

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
"""The field of /proc/PID/stat after the name with the time of reaped children (proc_pid_stat(5))."""
_TICKS = os.sysconf("SC_CLK_TCK")
_INIT_AND_WORKER = 2
"""The processes of a sandbox in which nothing was forked. To read a file of /proc takes as long as all else here."""


@dataclass(slots=True)
class Used:
    """The use so far. ``peak_rss`` is of one process, ``peak_seen`` of the whole sandbox."""

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
        """Returns the process that waits for work; 0 where the host has none."""
        ...

    def meet(self, init: int) -> None:
        """Learns that the sandbox is ready; ``init`` is its first process."""
        ...

    def begin(self, *, begun: bool) -> None:
        """Learns that the sandbox is lent. With ``begun`` its program is at work already."""
        ...

    def look(self) -> None:
        """Counts the use of a sandbox that is about to be ended, which no process tells later.

        ``used.cpu_seconds`` stays None where that cannot be known now.
        """
        ...

    def told(self, cpu_seconds: float, peak_rss: int) -> None:
        """Takes init's count of the children that it reaped (getrusage(2))."""
        ...

    def settle(self, pid: int) -> None:
        """Reaps init."""
        ...


class ProcessMeter:
    """Counts processes of this host. ``weighs`` says that it alone tells the memory that the worker used at most."""

    def __init__(self, group: Group | None = None, *, weighs: bool = True) -> None:
        self.used = Used()
        self._group = group
        self._weighs = weighs
        self.worker = 0
        self._seen_seconds = 0.0

    def meet(self, init: int) -> None:
        """Learns which process waits for work: the one child that init has before it is lent."""
        path = f"/proc/{init}/task/{init}/children"
        with contextlib.suppress(OSError, ValueError):
            self.worker = int(_read(path))

    def begin(self, *, begun: bool) -> None:
        """Does nothing: the use before is little."""

    def look(self) -> None:
        """Counts the worker, which nobody of ours reaps when the pid namespace is ended.

        One that has ended already is counted by init.
        """
        if not self.worker:  # the clock of the process 0 is our own
            return
        with contextlib.suppress(OSError, ValueError):
            childless = self._group is not None and self._group.most_processes() == _INIT_AND_WORKER
            seconds = own_seconds(self.worker) if childless else cpu_seconds(self.worker)
            self._seen_seconds = max(self._seen_seconds, seconds)
            peak = peak_bytes(self.worker) if self._weighs else 0
            if peak or not self._weighs:
                self.used.peak_rss = max(self.used.peak_rss, peak)
                self.used.cpu_seconds = max(self.used.cpu_seconds or 0.0, self._seen_seconds)

    def told(self, cpu_seconds: float, peak_rss: int) -> None:
        self.used.cpu_seconds = cpu_seconds
        self.used.peak_rss = max(self.used.peak_rss, peak_rss)

    def settle(self, pid: int) -> None:
        """Takes the use of init and all that ended below it, which its parent learns (wait4(2))."""
        try:
            _, _, used = os.wait4(pid, 0)
        except ChildProcessError:
            return
        self.used.cpu_seconds = max(self._seen_seconds, used.ru_utime + used.ru_stime)
        self.used.peak_rss = max(self.used.peak_rss, used.ru_maxrss * 1024)


def cpu_seconds(pid: int) -> float:
    """Returns the time of a process and of children that it reaped.

    Raises OSError, ValueError, IndexError.
    """
    own = own_seconds(pid)
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return own + (int(fields[_CUTIME]) + int(fields[_CUTIME + 1])) / _TICKS


def own_seconds(pid: int) -> float:
    """Returns the time of a process alone. Raises OSError."""
    return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)


def peak_bytes(pid: int) -> int:
    """Returns the most memory that a process held (proc_pid_status(5)); 0 when it has ended."""
    _, found, rest = _read(f"/proc/{pid}/status").partition(b"\nVmHWM:")
    return int(rest.split(None, 1)[0]) * 1024 if found else 0


def _read(path: str) -> bytes:
    """Reads a small file of /proc, for a third of the cost of a file object."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


class Account:
    """The account of one sandbox, by its meter and its control group."""

    def __init__(self, group: Group | None, memory_mb: int, meter: Meter) -> None:
        self._group = group
        self._memory_mb = memory_mb
        self.meter = meter

    def used(self) -> dict[str, Any]:
        """Returns ``cpu_ms``, ``peak_memory_bytes`` and the ``source`` of the latter."""
        used = self.meter.used
        peak = self._group.peak_memory() if self._group is not None else None
        return {
            "cpu_ms": None if used.cpu_seconds is None else round(used.cpu_seconds * 1000, 3),
            "peak_memory_bytes": peak or max(used.peak_seen, used.peak_rss) or None,
            "source": "cgroup" if peak is not None else "sampled" if used.peak_seen else "rusage",
        }

    def hits(self) -> list[str]:
        """Returns the limits at which the kernel refused or ended something."""
        found = []
        if self._group is not None and self._group.refused_forks():
            found.append("pids")
        if self.out_of_memory():
            found.append("memory")
        return found

    def ending(self, status: int) -> dict[str, Any]:
        """Returns the ending of a program with a wait status.

        It is ``memory`` where the kernel ended any of its processes for that, unless the program succeeded.
        """
        if self.out_of_memory() and status:
            return self._memory()
        if not os.WIFSIGNALED(status):
            return {"outcome": "exit", "code": os.WEXITSTATUS(status), "reason": ""}
        number = os.WTERMSIG(status)
        return {"outcome": "signal", "signal": number, "reason": f"ended by signal {number}"}

    def unexplained(self, reason: str) -> dict[str, Any]:
        """Returns the ending of a program whose init ended unasked before it."""
        return self._memory() if self.out_of_memory() else forced("lost", reason or "the sandbox ended")

    def out_of_memory(self) -> bool:
        return self._group is not None and self._group.oom_kills() > 0

    def _memory(self) -> dict[str, Any]:
        return forced("memory", f"over the memory limit of {self._memory_mb} MiB")


def forced(outcome: str, reason: str) -> dict[str, Any]:
    """Returns an ending that did not come from the program itself."""
    return {"outcome": outcome, "reason": reason, **({"code": 0} if outcome == "exit" else {})}
