"""Processes of a server, as the host sees them."""

from __future__ import annotations

import json
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
    """Processes of the gates of data directories that this process or a child of it owns."""
    owners = {os.getpid(), *children()}
    every = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in every if any(GATE in word for word in words(pid)) and _owner(words(pid)) in owners]


def _owner(command: list[str]) -> int:
    """The process that holds the data directory of a gate, 0 when it cannot be told."""
    config = next((word for word in command if word.startswith("{")), "{}")
    home = Path(json.loads(config).get("directory", "/")).parents
    found = re.match(r"process (\d+)", _read(home[1] / "lock")) if len(home) > 1 else None
    return int(found[1]) if found else 0


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
