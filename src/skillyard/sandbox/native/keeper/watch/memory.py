"""The memory of one sandbox: a look at it, and the end of the one that passes its limit.

A memory controller bounds memory and files together, since it charges a tmpfs to those who fill it: what is looked
for then is memory alone above its own limit, with what the network holds and no controller charges. Without one this
watch is all there is for a tree of processes; between two looks a sandbox may pass its limit by what it can touch in
that time. Each process is also held by RLIMIT_DATA.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from skillyard.sandbox.native.keeper.request import MIB
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch import kernel_memory
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects
from skillyard.sandbox.native.keeper.watch.processes import place_of, tree_of

_PAGE = os.sysconf("SC_PAGESIZE")


def check(sandbox: Sandbox, objects: Objects) -> None:
    limit = sandbox.shape.memory_mb * MIB
    if sandbox.group is not None and sandbox.group.counts_memory():
        objects.check(sandbox, [place_of(pid) for pid in sandbox.group.leaders()], counted=True)
        used = sandbox.group.own_memory() + kernel_memory.uncharged(sandbox.pid)
    else:
        places = [place_of(pid) for pid in tree_of(sandbox.pid)]
        objects.check(sandbox, places, counted=False)
        used = _of_tree(sandbox, places, limit)
    sandbox.account.meter.used.saw(used)
    if used > limit and sandbox.forced is None:
        sandbox.end_for("memory", f"over the memory limit of {sandbox.shape.memory_mb} MiB")


def _of_tree(sandbox: Sandbox, places: Sequence[str], limit: int) -> int:
    """What its processes hold, or what the kernel holds for them, whichever is more: each is bounded by the limit."""
    used = sum(map(_resident, places))
    if used > limit:
        used = sum(map(_proportional, places))
    return max(used, kernel_memory.held(sandbox.pid, places, sandbox.listeners))


def _resident(place: str) -> int:
    """Private and shared resident memory, an upper bound that is cheap to read (proc_pid_statm(5))."""
    words = _read(f"{place}/statm").split()
    return int(words[1]) * _PAGE if len(words) > 1 else 0


def _proportional(place: str) -> int:
    """Pages shared with the zygote count in part only (proc_pid_smaps_rollup in proc_pid_smaps(5)). A process that
    hides counts with all it has."""
    for line in _read(f"{place}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return _resident(place)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
