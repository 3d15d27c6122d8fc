"""Processes of a server, as the host sees them."""

from __future__ import annotations

import os
import re
from pathlib import Path

GATE = "skillyard.gate"


def children() -> list[int]:
    """This process's, and theirs."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := re.search(r"^PPid:\s+(\d+)$", _read(entry / "status"), re.MULTILINE)):
            parents.setdefault(int(found[1]), []).append(int(entry.name))
    todo, seen = [os.getpid()], list[int]()
    while todo:
        own = parents.get(todo.pop(), [])
        seen += own
        todo += own
    return seen


def gates() -> list[int]:
    """Processes of the gate that this process started."""
    return [pid for pid in children() if any(GATE in word for word in words(pid))]


def words(pid: int) -> list[str]:
    """The command line of a process; nothing of one that is gone."""
    return _read(Path(f"/proc/{pid}/cmdline")).split("\0")


def resident_bytes(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", _read(Path(f"/proc/{pid}/status")), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def holds(pid: int, needles: list[bytes]) -> bool:
    """Whether any of ``needles`` stands in the memory of a process. Raises PermissionError."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in _read(Path(f"/proc/{pid}/maps")).splitlines():
            span, rights, *_ = line.split()
            low, high = (int(part, 16) for part in span.split("-"))
            if "r" not in rights or "[v" in line:
                continue
            try:
                memory.seek(low)
                block = memory.read(high - low)
            except (OSError, OverflowError):
                continue
            if any(needle in block for needle in needles):
                return True
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
