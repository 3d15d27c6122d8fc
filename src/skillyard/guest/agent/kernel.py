"""System calls of the agent that Python has no name for, and its view of control groups."""

from __future__ import annotations

import os
import resource
import struct

from .libc import Long, address, done, function

_DUMPABLE, _SECCOMP, _SUBREAPER, _NO_NEW_PRIVILEGES = 4, 22, 36, 38
_FILTER, _INSTRUCTION = 2, 8
_DROP, _CAPABILITIES = 24, 64
_ENDED_FIRST = 500
_call = function("prctl")


def _prctl(option: int, value: int) -> None:
    done(_call(option, Long(value), 0, 0, 0), f"prctl({option}, {value})")


def be_undumpable() -> None:
    """Nothing of the same user can trace this process or read its memory. Forks of it stay so until they execute."""
    _prctl(_DUMPABLE, 0)


def be_subreaper() -> None:
    _prctl(_SUBREAPER, 1)


def no_new_privileges() -> None:
    _prctl(_NO_NEW_PRIVILEGES, 1)


def bound_capabilities() -> None:
    """Nothing that this process executes from now on can have a capability. Its own, and those of forks, stay."""
    for capability in range(_CAPABILITIES):
        if _call(_DROP, Long(capability), 0, 0, 0) != 0:
            break  # the kernel has no more of them, or this process may not drop any


def filter_calls(program: bytes) -> None:
    """Installs a filter of system calls (linux/filter.h) for this process and its children."""
    code, where = address(program)
    whole = struct.pack("HxxxxxxP", len(program) // _INSTRUCTION, where)
    no_new_privileges()
    done(_call(_SECCOMP, Long(_FILTER), whole, 0, 0), "prctl(PR_SET_SECCOMP)")
    del code  # it was there until now


def limit(kind: int, most: int) -> None:
    """Lowers a limit for good. One that is lower already stays."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    try:
        resource.setrlimit(kind, (most, most))
    except ValueError:  # Linux refuses no lower one: this one is another kernel, which does not have it
        return


class Fork:
    """Forks processes that the kernel ends before this one where memory is short.

    The score is opened while this process is dumpable: it cannot be afterwards. A child inherits the value, which is
    raised for the moment of the fork.
    """

    def __init__(self) -> None:
        self._fd = -1
        try:
            self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self._own = int(os.read(self._fd, 16))
        except (OSError, ValueError):
            self._own = _ENDED_FIRST

    def __call__(self) -> int:
        """Returns as os.fork does. Raises OSError."""
        pid = -1
        self._score(_ENDED_FIRST)
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                self._score(self._own)
        return pid

    def _score(self, value: int) -> None:
        if self._fd >= 0 and self._own < _ENDED_FIRST:
            os.pwrite(self._fd, str(value).encode(), 0)


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
