"""Look at each sandbox's memory often, and end the one that passes its limit.

A memory controller bounds memory and files together, since it charges a tmpfs to those who fill it: what is looked
for then is memory alone above its own limit, with what the network holds and no controller charges. Without one this
watch is all there is for a tree of processes; between two looks a sandbox may pass its limit by what it can touch in
that time. Each process is also held by RLIMIT_DATA.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.sandbox import Box
from skillyard.sandbox.native.keeper.sandboxes import MIB, Yard
from skillyard.sandbox.native.keeper.watch import kernel_memory
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects
from skillyard.sandbox.native.keeper.watch.tree import place_of, tree_of

_EVERY_S = 0.05
_PAGE = os.sysconf("SC_PAGESIZE")


def start(
    loop: Loop, yard: Yard, check: Callable[[Box], None], together: Callable[[Sequence[Box]], None] = lambda _: None
) -> None:
    """``check`` each sandbox while anything runs, and all of them ``together``; ``yard.on_lent`` starts it again."""
    looking = False

    def look() -> None:
        nonlocal looking
        begun = time.monotonic()
        running = [box for box in yard.survey() if not box.dead and box.running()]
        for box in running:
            try:
                check(box)
            except Exception as error:  # noqa: BLE001 - one that nobody can look at ends
                loop.report(error)
                box.fault(error)
        together(running)
        looking = bool(yard.survey())
        if looking:
            turns.after(max(_EVERY_S, time.monotonic() - begun), look)

    def lent() -> None:
        nonlocal looking
        if not looking:
            looking = True
            turns.after(_EVERY_S, look)

    turns = loop.guarded(lambda _: again())

    def again() -> None:
        """Looks again later; one failed look leaves nothing unwatched."""
        turns.after(_EVERY_S, look)

    yard.on_lent = lent


def check(box: Box, objects: Objects) -> None:
    limit = box.shape.memory_mb * MIB
    if box.group is not None and box.group.counts_memory():
        objects.check(box, [place_of(pid) for pid in box.group.leaders()], counted=True)
        used = box.group.own_memory() + kernel_memory.uncharged(box.pid)
    else:
        places = [place_of(pid) for pid in tree_of(box.pid)]
        objects.check(box, places, counted=False)
        used = _of_tree(box, places, limit)
    box.account.saw(used)
    if used > limit and box.forced is None:
        box.end_for("memory", f"over the memory limit of {box.shape.memory_mb} MiB")


def _of_tree(box: Box, places: Sequence[str], limit: int) -> int:
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
