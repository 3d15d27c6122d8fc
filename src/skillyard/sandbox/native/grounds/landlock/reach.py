"""What of the host every sandbox may read and execute: the list that the native backend binds, as Landlock rules."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from skillyard.sandbox.native.grounds.interpreter import Interpreter
from skillyard.sandbox.native.grounds.landlock.inside.walls import Rule
from skillyard.sandbox.native.grounds.root import DEVICES, ETC, LINKS_OR_DIRECTORIES, SYSTEM_DIRECTORIES

_PROC = (
    "cpuinfo", "meminfo", "stat", "uptime", "loadavg", "version", "filesystems", "sys/kernel/osrelease",
    "sys/kernel/pid_max", "sys/kernel/random/uuid", "sys/kernel/cap_last_cap", "sys/vm/overcommit_memory",
)  # fmt: skip
"""Figures of the machine that libraries ask for. Of processes there is nothing but what a program is itself."""

_SYS = (
    "/sys/devices/system/cpu", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
)  # fmt: skip
"""Landlock hides no name: what is seen to be there, libraries open without expecting a refusal."""

_UNCOUNTED_DEVICES = frozenset({"zero"})
"""Shared mappings of it are memory that no process shows as its own."""


def coarse(python: Interpreter, further: Iterable[str]) -> list[Rule]:
    """For each program: few rules, since they are made anew for each. ``further`` are our own directories."""
    return [*(Rule(path) for path in (*_directories(python), *further)), *_small()]


def exact(python: Interpreter, further: Iterable[str]) -> list[Rule]:
    """For the zygote, once: the same without the packages of the host's own interpreters."""
    directories = [path for top in _directories(python) for path in _without(top, python.masked)]
    return [*(Rule(path) for path in (*directories, *further)), *_small()]


def _directories(python: Interpreter) -> list[str]:
    wanted = (*SYSTEM_DIRECTORIES, *LINKS_OR_DIRECTORIES, *python.directories)
    return [path for path in dict.fromkeys(wanted) if os.path.isdir(path) and not os.path.islink(path)]


def _small() -> Iterator[Rule]:
    for name in DEVICES:
        if name not in _UNCOUNTED_DEVICES and os.path.exists(f"/dev/{name}"):
            yield Rule(f"/dev/{name}", device=True)
    for path in (*ETC, *_SYS, *(f"/proc/{name}" for name in _PROC)):
        if os.path.exists(path):
            yield Rule(path)


def _without(top: str, masked: Iterable[str]) -> Iterator[str]:
    """Directories and files that together are ``top`` without what is ``masked``."""
    inner = [path for path in masked if path == top or path.startswith(f"{top}/")]
    if not inner:
        yield top
    elif top not in inner:
        for entry in os.scandir(top):
            if not entry.is_symlink():
                yield from _without(entry.path, inner)
