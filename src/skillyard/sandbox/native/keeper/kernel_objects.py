"""What a sandbox holds of the kernel that no controller charges to it, or that the kernel counts by user and not by
namespace: record locks, watches of epoll, descriptors in flight and, where nobody counts memory, mappings.

``/proc/PID/fdinfo`` and ``maps`` tell of them (proc_pid_fdinfo(5)). Reading them costs, so a process is looked at
again when it has worked since, and now and then in any case, since its children may have worked for it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from skillyard.sandbox.native.keeper.box import Box

LOCKS = 4096
IN_FLIGHT = 256
_MOST_WATCHES, _LEAST_WATCHES, _SHARE_OF_WATCHES = 1 << 16, 4096, 64
_MAPPING, _MAPPINGS = 256, 1 << 16
"""Bytes that the kernel holds for one, and how many a process may have (vm.max_map_count)."""
_READ_MAPS = 2 << 20
_PIECE = 1 << 16
_WORKED_S, _WORKED_EACH_S = 0.1, 0.0002
_PAUSE_S, _PAUSE_EACH_S = 2.0, 0.02
"""Processor time and time after which a process is looked at again; each descriptor makes a look take longer."""
_PROCESS_CLOCK = 2
"""``~pid << 3 | 2`` is the clock of a process's processor time (clock_getcpuclockid(3))."""


@dataclass(slots=True)
class Seen:
    """Of one process, and from when on it is looked at again."""

    locks: int = 0
    watches: int = 0
    in_flight: int = 0
    mappings: int = 0
    descriptors: int = 0
    at: float = field(default_factory=time.monotonic)
    worked_s: float = 0.0

    def due(self, now: float, worked_s: float) -> bool:
        since = worked_s - self.worked_s
        return since >= _WORKED_S + self.descriptors * _WORKED_EACH_S or (
            now - self.at >= _PAUSE_S + self.descriptors * _PAUSE_EACH_S
        )


class Objects:
    """Looks at sandboxes and ends those that hold too much."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Box, dict[str, Seen]] = WeakKeyDictionary()
        self._hurried_at = 0.0

    def hurry(self) -> None:
        """Look at everything at the next turn: something of what the kernel counts by user has run out."""
        self._hurried_at = time.monotonic()

    def check(self, box: Box, places: Iterable[str], *, counted: bool) -> None:
        """``places`` are its processes (:func:`skillyard.sandbox.native.keeper.tree.place_of`); ``counted`` says
        whether a controller counts its memory."""
        before, seen = self._seen.get(box, {}), {}
        for place in places:
            seen[place] = self._look(place, before.get(place) or Seen(), counted=counted)
        self._seen[box] = seen
        if box.forced is None and (why := _too_much(seen.values(), box.shape.memory_mb << 20)):
            box.end_for("memory", why)

    def _look(self, place: str, last: Seen, *, counted: bool) -> Seen:
        now, worked_s = time.monotonic(), _worked_s(place)
        if not last.due(now, worked_s) and last.at >= self._hurried_at:
            return last
        found = Seen(worked_s=worked_s)
        _descriptors(place, found)
        found.mappings = 0 if counted else _mappings(place)
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


def most_watches() -> int:
    """Of one sandbox: a part of what its user has, who may be that of all the others and of the server (epoll(7))."""
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
    found.descriptors = len(numbers)
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
