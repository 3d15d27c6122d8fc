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
from skillyard.sandbox.native.keeper.watch.tree import place_of, tree_of

_PAGE = os.sysconf("SC_PAGESIZE")


def check(box: Sandbox, objects: Objects) -> None:
    limit = box.shape.memory_mb * MIB
    if box.group is not None and box.group.counts_memory():
        objects.check(box, [place_of(pid) for pid in box.group.leaders()], counted=True)
        used = box.group.own_memory() + kernel_memory.uncharged(box.pid)
    else:
        places = [place_of(pid) for pid in tree_of(box.pid)]
        objects.check(box, places, counted=False)
        used = _of_tree(box, places, limit)
    box.account.meter.used.saw(used)
    if used > limit and box.forced is None:
        box.end_for("memory", f"over the memory limit of {box.shape.memory_mb} MiB")


def _of_tree(box: Sandbox, places: Sequence[str], limit: int) -> int:
    """What its processes hold, or what the kernel holds for them, whichever is more: each is bounded by the limit."""
    used = sum(map(_resident, places))
    if used > limit:
        used = sum(map(_proportional, places))
    return max(used, kernel_memory.held(box.pid, places, box.listeners))


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
