"""The processes of a keeper, seen from the host through /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")
_PARENT = re.compile(r"^PPid:\t(\d+)$", re.MULTILINE)
_NUMBERS = re.compile(r"^NSpid:((?:\t\d+)+)$", re.MULTILINE)


def family(run_dir: Path) -> dict[int, int]:
    """Returns the keepers that work in ``run_dir`` and all that descends from them: pid and in how many pid namespaces,
    from ours on, it has a number."""
    status = {int(name): proc_text(f"{name}/status") for name in os.listdir(_PROC) if name.isdigit()}  # noqa: PTH208
    parents = {pid: int(found[1]) for pid, text in status.items() if (found := _PARENT.search(text))}
    keepers = _keepers(run_dir, parents)
    return {pid: _depth(status[pid]) for pid in parents if _descends(pid, keepers, parents)}


def sandboxed(run_dir: Path) -> list[int]:
    """Returns the pids inside sandboxes: they live in a pid namespace below the keeper's."""
    depths = family(run_dir)
    keepers = _keepers(run_dir, depths)
    own = max((depths[pid] for pid in keepers), default=0)
    return [pid for pid, depth in depths.items() if depth > own]


def alive(pid: int) -> bool:
    """Returns whether it still runs; a dead one that nobody has waited for does not."""
    return re.search(r"^State:\t[^ZX]", proc_text(f"{pid}/status"), re.MULTILINE) is not None


def proc_text(name: str) -> str:
    """Returns the text of a file below /proc; empty when it is gone, or not ours to see."""
    try:
        return (_PROC / name).read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _keepers(run_dir: Path, pids: Mapping[int, int]) -> set[int]:
    """Returns the keepers: each carries its directory in its arguments."""
    wanted = f'"{run_dir.resolve()}"'
    return {pid for pid in pids if wanted in proc_text(f"{pid}/cmdline")}


def _descends(pid: int, ancestors: set[int], parents: Mapping[int, int]) -> bool:
    while pid in parents and pid not in ancestors:
        pid = parents[pid]
    return pid in ancestors


def _depth(status: str) -> int:
    found = _NUMBERS.search(status)
    return found[1].count("\t") if found else 0
