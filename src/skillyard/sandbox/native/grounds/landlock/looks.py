"""What the kernel tells the keeper of other processes (proc_pid_task(5), proc_pid_statm(5), proc_pid_smaps(5))."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from skillyard.sandbox.native.linux import kernel

_PAGE = os.sysconf("SC_PAGESIZE")


def children(pid: int) -> list[int]:
    """Of every thread."""
    found: list[int] = []
    for thread in threads(pid):
        found.extend(int(word) for word in read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended


def tree(root: int, most: int) -> list[int]:
    """What is below ``root``: orphans come back to it, so this is whole, but for what is more than ``most``: a bomb
    grows faster than it can be looked at."""
    seen: list[int] = []
    queue = children(root)
    while queue and len(seen) <= most:
        pid = queue.pop()
        seen.append(pid)
        queue.extend(children(pid))
    return seen


def is_stopped(pid: int) -> bool:
    """By a signal (the state in proc_pid_stat(5))."""
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] == ["T"]


def resident(place: str) -> int:
    """Bytes of private and shared resident memory: an upper bound that is cheap to read. ``place`` is where /proc
    tells of a process (:func:`skillyard.sandbox.native.keeper.watch.processes.place_of`)."""
    words = read(f"{place}/statm").split()
    return int(words[1]) * _PAGE if len(words) > 1 else 0


def proportional(place: str) -> int:
    """Bytes, with what is shared counted in part only. A process that hides counts with all it has."""
    for line in read(f"{place}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return resident(place)


@dataclass(slots=True)
class Held:
    """What processes hold open: ``removed``, files that have no name any more (inode: bytes); ``sockets``; whether
    one of them ``hides`` it, which a process may that cannot be traced (PR_SET_DUMPABLE(2const))."""

    removed: dict[int, int] = field(default_factory=dict)
    sockets: set[int] = field(default_factory=set)
    hides: bool = False


def held(places: Iterable[str], device: int) -> Held:
    """Of files, those on ``device``."""
    found = Held()
    for place in places:
        try:
            numbers = os.listdir(f"{place}/fd")
        except OSError as error:
            found.hides |= isinstance(error, PermissionError) and resident(place) > 0
            continue  # or it has ended
        for number in numbers:
            with suppress(OSError):
                _add(found, os.stat(f"{place}/fd/{number}"), device)
    return found


def _add(found: Held, about: os.stat_result, device: int) -> None:
    if stat.S_ISSOCK(about.st_mode):
        found.sockets.add(about.st_ino)
    elif about.st_nlink == 0 and about.st_dev == device:
        found.removed[about.st_ino] = about.st_blocks * 512


def removed_mappings(place: str, homes: str) -> set[int]:
    """Inodes of files below ``homes`` that a process has mapped and that have no name any more."""
    found: set[int] = set()
    for line in read(f"{place}/maps").split("\n"):  # names hold every other character that str.splitlines takes
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith(homes) and words[5].endswith(" (deleted)"):
            found.add(int(words[4]))
    return found


@contextmanager
def eyes_of(uid: int) -> Iterator[None]:
    """Look as ``uid``: a container's root may not look into others' processes (ptrace(2), access mode checking)."""
    if not uid:
        yield
        return
    kernel.set_file_ids(uid, uid)
    try:
        yield
    finally:
        kernel.set_file_ids(0, 0)


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            return file.read()
    except OSError:
        return ""
