"""Control groups of the machine for an agent that root makes, and all that it starts."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GROUPS = "/sys/fs/cgroup"
_CONTROLLERS = {"memory": "memory", "pids": "pids", "cpus": "cpu"}
"""Controllers by the limit that is theirs."""
_SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""Limits that a kernel without swap does not have."""


def made() -> dict[str, str]:
    """Makes control groups without limits; returns them by the limit that each may have."""
    found: dict[str, str] = {}
    for name, controller in _CONTROLLERS.items():
        group = f"{_GROUPS}/{controller}/skillyard"
        if _one_tree():
            group = f"{_GROUPS}/skillyard"
            if not _written(f"{_GROUPS}/cgroup.subtree_control", f"+{controller}"):
                continue
        try:
            os.makedirs(group, exist_ok=True)
        except OSError:
            continue
        found[name] = group
    return found


def _one_tree() -> bool:
    """Returns whether control groups are of version 2."""
    return os.path.exists(f"{_GROUPS}/cgroup.controllers")


def limited(groups: dict[str, str], wanted: dict[str, Any]) -> list[str]:
    """Gives control groups their limits; returns the names of those that took theirs."""
    memory, pids, share = wanted["memory"], wanted["pids"], int(wanted["cpus"] * 100_000)
    values: dict[str, dict[str, object]] = {
        "memory": {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        "pids": {"pids.max": pids},
        "cpus": {"cpu.cfs_period_us": 100_000, "cpu.cfs_quota_us": share},
    }
    if _one_tree():
        values["memory"] = {"memory.max": memory, "memory.swap.max": 0, "memory.oom.group": 0}
        values["cpus"] = {"cpu.max": f"{share} 100000"}
    return [
        name
        for name, group in groups.items()
        if all(_written(f"{group}/{key}", value) or key in _SWAP for key, value in values[name].items())
    ]


def _written(file: str, value: object) -> bool:
    try:
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(str(value))
    except OSError:
        return False
    return True
