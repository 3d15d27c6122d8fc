"""Where no memory controller may be used: look at each sandbox's memory often, and end the one that passes its limit.

Supervised, not enforced: between two looks a sandbox may pass its limit by what it can touch in that time. Each
process is also held to the limit by RLIMIT_DATA, and the files of the sandbox by the size of their tmpfs.
"""

from __future__ import annotations

import os

from skillyard.sandbox.native.keeper.box import Box
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.yard import MIB, Yard

_EVERY_S = 0.05
_PAGE = os.sysconf("SC_PAGESIZE")


def start(loop: Loop, yard: Yard) -> None:
    def look() -> None:
        for box in yard.survey():
            if not box.dead and box.pid > 0:
                _check(box)
        loop.after(_EVERY_S, look)

    look()


def _check(box: Box) -> None:
    limit = box.shape.memory_mb * MIB
    tree = _tree(box.pid)
    used = sum(_resident(pid) for pid in tree)
    if used > limit:
        used = sum(_proportional(pid) for pid in tree)
    box.sampled_peak = max(box.sampled_peak, used)
    if used > limit and box.forced is None:
        box.forced = ("memory", f"over the memory limit of {box.shape.memory_mb} MiB")
        for program in box.programs.values():
            if program.ending is None and program.forced is None:
                program.forced = box.forced
        box.kill()


def _tree(pid: int) -> list[int]:
    """``pid`` and all below it: orphans of a sandbox come back to its init, so the tree is whole."""
    seen: list[int] = []
    queue = [pid]
    while queue:
        at = queue.pop()
        seen.append(at)
        try:
            for thread in os.listdir(f"/proc/{at}/task"):
                queue.extend(int(word) for word in _read(f"/proc/{at}/task/{thread}/children").split())
        except OSError:
            continue  # it has ended since
    return seen


def _resident(pid: int) -> int:
    """Private and shared resident memory, an upper bound that is cheap to read (proc_pid_statm(5))."""
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[1]) * _PAGE if len(words) > 1 else 0


def _proportional(pid: int) -> int:
    """Pages shared with the zygote count in part only (proc_pid_smaps_rollup in proc_pid_smaps(5))."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
