"""Facts about other processes, as /proc tells them (proc_pid_task(5), proc_pid_statm(5))."""

from __future__ import annotations

import os
import sys

_PAGE = os.sysconf("SC_PAGESIZE")


_PIECE = 64 * 1024


def read(path: str, most: int = sys.maxsize) -> str:
    """Returns a file's text, at most ``most`` bytes of it; nothing when it cannot be read.

    A file object would cost three times as much, and this is called many times a second.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    text = bytearray()
    try:
        while len(text) < most and (piece := os.read(fd, min(_PIECE, most - len(text)))):
            text += piece
    except OSError:
        return ""
    finally:
        os.close(fd)
    return text.decode("utf-8", "replace")


def threads(pid: int) -> list[str]:
    """Returns the ids of a process's threads; none when it has ended."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Returns the children of every thread."""
    texts = (read(f"/proc/{pid}/task/{thread}/children") for thread in threads(pid))
    return [int(word) for text in texts for word in text.split()]


def below(root: int, most: int | None = None) -> list[int]:
    """Returns the processes below ``root``. Orphans of a sandbox go to its init, so the tree is whole.

    The look ends with more than ``most``, since a fork bomb grows faster than it can be looked at.
    """
    seen: list[int] = []
    queue = children(root)
    while queue and (most is None or len(seen) <= most):
        pid = queue.pop()
        seen.append(pid)
        queue.extend(children(pid))
    return seen


def tree_of(pid: int) -> list[int]:
    """Returns ``pid`` and all processes below it."""
    return [pid, *below(pid)]


def status(pid: int) -> dict[str, str]:
    """Returns the fields of proc_pid_status(5); none when it has ended."""
    pairs = (line.partition(":") for line in read(f"/proc/{pid}/status").split("\n"))
    return {name: value.strip() for name, _, value in pairs}


def place_of(pid: int) -> str:
    """Returns the directory of /proc that tells what a process holds.

    Once its first thread has ended and others have not, only the directory of one of those tells it.
    """
    place = f"/proc/{pid}"
    if _has_memory(place):
        return place
    return next((at for at in (f"{place}/task/{thread}" for thread in threads(pid)) if _has_memory(at)), place)


def _has_memory(place: str) -> bool:
    return read(f"{place}/statm")[:2] not in ("", "0 ")


def resident(place: str) -> int:
    """Returns bytes of private and shared resident memory: an upper bound that is cheap to read."""
    words = read(f"{place}/statm").split()
    return int(words[1]) * _PAGE if len(words) > 1 else 0


def proportional(place: str) -> int:
    """Returns bytes of memory, shared pages in part; all of it for a process that hides."""
    for line in read(f"{place}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return resident(place)
