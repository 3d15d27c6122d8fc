"""System calls of the agent that Python has no name for, and its view of control groups."""

from __future__ import annotations

import ctypes
import os

_DUMPABLE, _SUBREAPER, _NO_NEW_PRIVILEGES = 4, 36, 38
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def be_undumpable() -> None:
    """Nothing of the same user can trace this process or read its memory. Forks of it stay so until they execute."""
    _prctl(_DUMPABLE, 0)


def be_subreaper() -> None:
    _prctl(_SUBREAPER, 1)


def no_new_privileges() -> None:
    _prctl(_NO_NEW_PRIVILEGES, 1)


class Kills:
    """Counts the kills for want of memory in this sandbox, where the kernel tells them inside."""

    def __init__(self) -> None:
        self._path = next((path for path in _counters() if os.access(path, os.R_OK)), "")

    def count(self) -> int:
        """Returns how many there were so far; 0 where nothing tells."""
        if not self._path:
            return 0
        try:
            with open(self._path, encoding="ascii") as file:
                words = dict(line.split() for line in file)
            return int(words.get("oom_kill", 0))
        except (OSError, ValueError):
            return 0


def _counters() -> list[str]:
    """Returns where the counter may be: of this process's group, in version 2 and in version 1."""
    found = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except (OSError, ValueError):
        return []
    for number, controllers, path in groups:
        if number == "0":
            found += [f"/sys/fs/cgroup{path}/memory.events", "/sys/fs/cgroup/memory.events"]
        elif "memory" in controllers.split(","):
            found += [f"/sys/fs/cgroup/memory{path}/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"]
    return found
