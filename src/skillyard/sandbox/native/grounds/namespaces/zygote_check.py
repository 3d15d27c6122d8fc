"""The look from outside at the walls of a sandbox whose zygote has run packages' code. Such code may have spoiled the
walls, or left a process where it can reach in.

Two things the kernel tells nobody: the Landlock domain of another process, and what its filters say beyond their
number.
"""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Sequence

from skillyard.sandbox.native.grounds.namespaces import mount_table
from skillyard.sandbox.native.grounds.namespaces.pid_space import SPACES
from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.keeper.sandbox import Box
from skillyard.sandbox.native.keeper.watch.processes import children, status
from skillyard.sandbox.native.keeper.zygotes.process import WarmProcess

_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_FILTERED = "2"
"""SECCOMP_MODE_FILTER."""
_FILTERS = 2
"""The zygote's filter and the closing one."""
_LOOKS = 3


def lacking(box: Box, zygote: WarmProcess, uid: int, proc_files: Sequence[str], proc_directories: Sequence[str]) -> str:
    """Which wall is missing, for namespaces and all; empty when none is. ``uid`` is who its processes must be."""
    for _ in range(_LOOKS):
        try:
            if zygote.has_strangers(box.pid):
                return "its zygote runs other processes"
            return _lacking(box, zygote, uid, proc_files, proc_directories)
        except OSError:
            continue
    return "its processes change while they are looked at"


def _lacking(
    box: Box, zygote: WarmProcess, uid: int, proc_files: Sequence[str], proc_directories: Sequence[str]
) -> str:
    """Returns what is missing; its processes must be its init and the waiting worker alone. Raises OSError."""
    init, workers = box.pid, children(box.pid)
    if len(workers) != 1 or children(workers[0]):
        return "it has not the processes that it was made with"
    assert box.build is not None
    mounts = mount_table.read(init)
    for pid in (init, *workers):
        if missing := _process(pid, uid, box.build):
            return missing
        if mount_table.read(pid) != mounts:
            return "its processes see other mounts"
    if _ids(init) != [str(walls.INSIDE_ID), str(uid), "1"] * 2:
        return "it maps other ids"
    if wrong := [name for name in SPACES if _space(init, name) in (_space(zygote.pid, name), "")]:
        return f"it shares namespaces: {', '.join(wrong)}"
    if wrong := [name for name in SPACES if _space(init, name) != _space(workers[0], name)]:
        return f"its processes are in different namespaces: {', '.join(wrong)}"
    if not _grouped(box.group, {init, *workers}):
        return "its processes are not those of its control group"
    return mount_table.lacking(mounts, zygote.mounts, box.build, proc_files, proc_directories)


def _process(pid: int, uid: int, build: walls.Build) -> str:
    if missing := process_lacks(pid, _SETS):
        return missing
    found = status(pid)
    if found.get("Uid", "").split() != [str(uid)] * 4:
        return "it has another user id"
    if build.own_uid and (found.get("Gid", "").split() != [str(uid)] * 4 or found.get("Groups", "")):
        return "it has another group id"
    if int(found.get("Seccomp_filters", "0")) != _own_filters() + _FILTERS:
        return "it has other filters"
    for kind, value in walls.limits(build):
        if resource.prlimit(pid, kind) != (value, value):
            return "it has other limits"
    return ""


def process_lacks(pid: int, empty: tuple[str, ...]) -> str:
    """Of what every isolation has: no new privileges, a filter, and ``empty`` sets of capabilities."""
    found = status(pid)
    if found.get("NoNewPrivs") != "1":
        return "no_new_privs is missing"
    if found.get("Seccomp") != _FILTERED:
        return "the filter of system calls is missing"
    if found.get("Threads") != "1":
        return "it has threads"
    held = [name for name in empty if int(found.get(name, "1"), 16)]
    return f"it holds capabilities: {', '.join(held)}" if held else ""


@functools.cache
def _own_filters() -> int:
    """Returns the number of our starter's filters, which all our processes have too."""
    return int(status(os.getpid()).get("Seccomp_filters", "0"))


def _ids(pid: int) -> list[str]:
    words: list[str] = []
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", encoding="ascii") as file:
            words += file.read().split()
    return words


def _grouped(group: Group | None, pids: set[int]) -> bool:
    return group is None or all(members == pids for members in group.members())


def _space(pid: int, name: str) -> str:
    """Returns the namespaces of a process. Raises OSError."""
    return os.readlink(f"/proc/{pid}/ns/{name}")
