"""Looks at another process: its memory, threads and children (proc_pid_stat(5))."""

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


def children(pid: int) -> list[int]:
    """Returns the children of its first thread."""
    return [int(word) for word in _read(f"/proc/{pid}/task/{pid}/children").split()]


def status(pid: int) -> dict[str, str]:
    """Returns the fields of proc_pid_status(5); none when it has ended."""
    pairs = (line.partition(":") for line in _read(f"/proc/{pid}/status").split("\n"))
    return {name: value.strip() for name, _, value in pairs}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            return file.read()
    except OSError:
        return ""
