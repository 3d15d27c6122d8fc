"""What the kernel says of another process: its memory, its threads, whether it has children (proc_pid_stat(5))."""

from __future__ import annotations

import os

_PAGE = os.sysconf("SC_PAGESIZE")


def resident(pid: int) -> int:
    """Bytes, as the kernel counts them (proc_pid_statm(5))."""
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[1]) * _PAGE if len(words) > 1 else 0


def threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def has_children(pid: int) -> bool:
    return bool(_read(f"/proc/{pid}/task/{pid}/children").strip())


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
