"""Limits of memory and processors: a control group for each sandbox of a root server."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxFault
from skillyard.domain.work.limits import Limits
from skillyard.sandbox.native.groups import hierarchies
from skillyard.sandbox.native.groups.groups import Cgroups, Group, GroupLimits

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
_BOUND_S = 10.0
_AGAIN_S = 0.02


class Bounds:
    """The groups of the sandboxes below ``root``. They are looked for when they are first asked for."""

    def __init__(self, root: Path) -> None:
        self._name = f"skillyard-{hashlib.sha256(f'srt {root}'.encode()).hexdigest()[:12]}"
        self._found: Cgroups | None = None

    def lacking(self, controller: str) -> str:
        """Returns why a controller counts nothing here; empty where it counts."""
        found = self._groups()
        return "" if found.has(controller) else found.missing.get(controller, "an ordinary user makes no groups")

    def of(self, handle: str) -> dict[str, Any]:
        """Returns the account of a sandbox's group for its state; empty where there is none."""
        found = self._groups()
        if not found.has("memory"):
            return {}
        parents = {"": found.parents["memory"]} if found.version == 2 else found.parents
        return {"version": found.version, "directories": {name: f"{path}/{handle}" for name, path in parents.items()}}

    def make(self, handle: str, limits: Limits) -> None:
        """Makes the group of a sandbox, with room for its start. Raises SandboxFault."""
        memory = _whole(limits) + (_STARTING_MB << 20)
        try:
            self._groups().make(handle, GroupLimits(memory, limits.pids + _OVERHEAD_TASKS, limits.cpus))
        except OSError as error:
            raise SandboxFault(f"the control group of a sandbox cannot be made: {error.strerror}") from None

    def close(self) -> None:
        if self._found is not None:
            self._found.close()
            self._found = None

    def _groups(self) -> Cgroups:
        if self._found is None:
            self._found = hierarchies.find(self._name) if os.geteuid() == 0 else Cgroups()
        return self._found


def join_files(account: Mapping[str, Any]) -> list[str]:
    """Returns the files to which a process writes ``0`` to become a member."""
    return Group(account["version"], account["directories"]).join_files() if account else []


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


async def removed(account: Mapping[str, Any]) -> None:
    """Removes the group of a sandbox that has ended. Raises SandboxFault."""
    if not account:
        return
    group = Group(account["version"], account["directories"])
    try:
        async with asyncio.timeout(_BOUND_S):
            while True:
                if group.remove():
                    return
                await asyncio.sleep(_AGAIN_S)  # the kernel lets go of ended processes in its own time
    except TimeoutError:
        raise SandboxFault(f"a control group of a sandbox is busy {_BOUND_S:.0f} s after its end") from None
