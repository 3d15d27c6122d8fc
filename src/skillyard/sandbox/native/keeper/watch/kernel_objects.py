"""Kernel objects of a sandbox that no controller charges, or that the kernel counts by user. They are record locks,
watches of epoll, descriptors in flight and, where nobody counts memory, mappings.

``/proc/PID/fdinfo`` and ``maps`` tell of them (proc_pid_fdinfo(5)). Reading them costs, so a process is looked at
again when it has worked since, and now and then in any case, since its children may have worked for it. Many that have
worked a little each are held by a list of all locks, which the kernel makes in milliseconds (proc_locks(5)).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from skillyard.sandbox.native.keeper.sandbox import Sandbox

LOCKS = 4096
IN_FLIGHT = 256
_MOST_WATCHES, _LEAST_WATCHES, _SHARE_OF_WATCHES = 1 << 14, 4096, 64
_FEW_WATCHES = 1024
"""More than honest programs need. Listing many takes long, and a process that has them is looked at more often."""
_MAPPING, _MAPPINGS = 256, 1 << 16
"""Bytes that the kernel holds for one mapping, and the most of a process (max_map_count)."""
_READ_MAPS = 2 << 20
_PIECE = 1 << 16
_WORKED_S, _WORKED_TIMES = 0.1, 10
_PAUSE_S, _PAUSE_TIMES, _SUSPECT_TIMES = 2.0, 1000, 20
"""Processor time and time until the next look; what the last one took counts so many times."""
_AT_ONCE_S = 0.02
"""For looking at one sandbox: others wait meanwhile."""
_UNSEEN_S = 1.0
"""Processor time of all processes of a sandbox since they were looked at: enough for very many locks."""
_LOCK = re.compile(rb"^\d+: POSIX +\S+ +\S+ +(\d+) ", re.MULTILINE)
_LISTED = 1 << 20
_PROCESS_CLOCK = 2
"""``~pid << 3 | 2`` is the clock of a process's processor time (clock_getcpuclockid(3))."""


@dataclass(slots=True)
class Seen:
    """The last look at one process, and the time of the next one."""

    locks: int = 0
    watches: int = 0
    in_flight: int = 0
    mappings: int = 0
    cost_s: float = 0.0
    """Our own processor time, for looking."""
    at: float = field(default_factory=time.monotonic)
    worked_s: float = 0.0
    listed_s: float = 0.0
    """Its processor time when locks were last listed."""

    def due(self, now: float, worked_s: float) -> bool:
        since = worked_s - self.worked_s
        times = _PAUSE_TIMES if self.watches <= _FEW_WATCHES else _SUSPECT_TIMES
        return since >= _WORKED_S + self.cost_s * _WORKED_TIMES or now - self.at >= _PAUSE_S + self.cost_s * times


class Objects:
    """Looks at sandboxes and ends those that hold too much."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Sandbox, dict[str, Seen]] = WeakKeyDictionary()
        self.hurried_at = 0.0
        """When an object ran out that is counted by user."""

    def hurry(self) -> None:
        """Looks at everything at the next turn, after an object that is counted by user ran out."""
        self.hurried_at = time.monotonic()

    def check(self, sandbox: Sandbox, places: Iterable[str], *, counted: bool) -> None:
        """Ends the sandbox if it holds too much. ``counted`` says whether a controller counts its memory.

        ``places`` are its processes (:func:`skillyard.sandbox.native.keeper.watch.processes.place_of`).
        """
        before, seen = self._seen.get(sandbox, {}), {}
        unseen_s = spent_s = 0.0
        for place in places:
            worked_s, one = _worked_s(place), before.get(place) or Seen()
            if spent_s < _AT_ONCE_S and self._is_due(one, worked_s):
                one = _look(place, worked_s, counted=counted)
                spent_s += one.cost_s
            seen[place] = one
            unseen_s += max(0.0, worked_s - max(one.worked_s, one.listed_s))
        self._seen[sandbox] = seen
        if unseen_s >= _UNSEEN_S:
            _list_locks(seen)
        if sandbox.forced is None and (why := _too_much(seen.values(), sandbox.shape.memory_mb << 20)):
            sandbox.end_for("memory", why)

    def _is_due(self, last: Seen, worked_s: float) -> bool:
        return last.at < self.hurried_at or last.due(time.monotonic(), worked_s)


def _look(place: str, worked_s: float, *, counted: bool) -> Seen:
    began = time.thread_time()
    found = Seen(worked_s=worked_s)
    _descriptors(place, found)
    found.mappings = 0 if counted else _mappings(place)
    found.cost_s = time.thread_time() - began
    return found


def _too_much(seen: Iterable[Seen], memory_bytes: int) -> str:
    seen = list(seen)
    for what, count, most in (
        ("locks of files", sum(one.locks for one in seen), LOCKS),
        ("watches of epoll", sum(one.watches for one in seen), most_watches()),
        ("descriptors in flight", sum(one.in_flight for one in seen), IN_FLIGHT),
        ("mappings", sum(one.mappings for one in seen), memory_bytes // _MAPPING),
    ):
        if count > most:
            return f"the kernel's memory for it: more than {most} {what}"
    return ""


def _list_locks(seen: Mapping[str, Seen]) -> None:
    """Counts the record locks of each process anew, which are listed with their taker."""
    with contextlib.suppress(OSError), open("/proc/locks", "rb") as file:
        holders = Counter(_LOCK.findall(file.read(_LISTED)))
        for place, one in seen.items():
            one.locks = holders[place.split("/")[2].encode()]
            one.listed_s = _worked_s(place)


def most_watches() -> int:
    """Returns the watches that one sandbox may have. Its user may be that of all others, too (epoll(7))."""
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/fs/epoll/max_user_watches", "rb") as file:
        return min(_MOST_WATCHES, max(_LEAST_WATCHES, int(file.read()) // _SHARE_OF_WATCHES))
    return _LEAST_WATCHES


def _worked_s(place: str) -> float:
    try:
        return time.clock_gettime(~int(place.split("/")[2]) << 3 | _PROCESS_CLOCK)
    except OSError:
        return 0.0  # it has ended


def _descriptors(place: str, found: Seen) -> None:
    try:
        numbers = os.listdir(f"{place}/fdinfo")
    except OSError:
        return  # it has ended
    most = most_watches()
    for number in numbers:
        with contextlib.suppress(OSError):
            fd = os.open(f"{place}/fdinfo/{number}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                while (piece := os.read(fd, _PIECE)) and found.watches <= most and found.locks <= LOCKS:
                    found.locks += piece.count(b"lock:")
                    found.watches += piece.count(b"tfd:")
                    if b"scm_fds:" in piece:
                        found.in_flight += int(piece.partition(b"scm_fds:")[2].split()[0])
            finally:
                os.close(fd)


def _mappings(place: str) -> int:
    with contextlib.suppress(OSError), open(f"{place}/maps", "rb") as file:
        told = file.read(_READ_MAPS)
        return told.count(b"\n") if len(told) < _READ_MAPS else _MAPPINGS
    return 0
