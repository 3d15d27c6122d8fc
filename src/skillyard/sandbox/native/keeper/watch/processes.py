"""Looks at other processes through /proc: trees, memory, threads and status (proc_pid_stat(5))."""

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


def tree_of(pid: int) -> list[int]:
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


def place_of(pid: int) -> str:
    """The directory of /proc that tells what a process holds: when its first thread has ended and others have not,
    /proc/PID tells of nothing, and one of theirs of all that they share (proc_pid_task(5))."""
    place = f"/proc/{pid}"
    if not _has_memory(place):
        try:
            threads = os.listdir(f"{place}/task")
        except OSError:
            return place  # it has ended
        return next((at for at in (f"{place}/task/{thread}" for thread in threads) if _has_memory(at)), place)
    return place


def _has_memory(place: str) -> bool:
    return _read(f"{place}/statm")[:2] not in ("", "0 ")
