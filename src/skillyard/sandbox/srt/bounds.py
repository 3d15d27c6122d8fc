"""Limits of the control groups round srt: its own needs beside those of programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxFault
from skillyard.domain.work.limits import Limits
from skillyard.sandbox.native.groups.groups import Group, GroupLimits

_STARTING_MB = 256
"""Memory while srt's node, its relays and the agent start, which are in the group beside the programs."""
_SPARE_MB = 16
"""Memory by which these may grow afterwards."""
_OVERHEAD_TASKS = 96
"""Their threads; the number of programs is bounded by RLIMIT_NPROC."""
_COUNTERS = {1: ("memory", "memory.oom_control"), 2: ("", "memory.events")}
_LIMITS = {
    1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"),
    2: ("memory.max",),
}


def starting(limits: Limits) -> GroupLimits:
    """Returns the limits of a group with room for srt's start."""
    return GroupLimits(_whole(limits) + (_STARTING_MB << 20), limits.pids + _OVERHEAD_TASKS, limits.cpus)


def shown(account: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the counter of kills for want of memory, and its place in the sandbox."""
    if not account:
        return None
    controller, name = _COUNTERS[account["version"]]
    inside = f"/sys/fs/cgroup/{controller}".rstrip("/")
    return f"{account['directories'][controller]}/{name}", f"{inside}/{name}"


def tighten(account: Mapping[str, Any], limits: Limits) -> None:
    """Leaves programs the memory of their limit, now that srt and the agent have theirs. Raises SandboxFault."""
    group = Group(account["version"], account["directories"])
    most = group.own_memory() + _whole(limits) + (_SPARE_MB << 20)
    directory = Path(account["directories"][_COUNTERS[group.version][0]])
    try:
        for name in _LIMITS[group.version]:
            if (file := directory / name).exists():  # a kernel without accounts of swap or of sockets lacks one
                file.write_text(str(most))
    except OSError as error:
        raise SandboxFault(f"the memory of a sandbox cannot be limited: {error.strerror}") from None


def _whole(limits: Limits) -> int:
    return limits.memory_mb + limits.disk_mb << 20  # files lie in memory
