"""The watch on memory, processes and files of landlock sandboxes, which no cgroup limits.

Each sandbox is looked at often, and ended if it holds more than it may. It can pass its limit between two looks only.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from skillyard.sandbox.native.grounds.landlock.place import LandlockPlace
from skillyard.sandbox.native.grounds.landlock.tree import Sum, measuring, work
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import MIB
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch import memory
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects
from skillyard.sandbox.native.keeper.watch.processes import below, place_of, proportional, read, resident, threads
from skillyard.sandbox.native.linux import kernel

INODES_PER_MIB = 128
LEAST_INODES = 4096
_TORN_IN_A_ROW = 2
"""After this many counts that missed something, the sandbox is stopped for the next."""
_HOLD_S = 0.005
"""Seconds until stopped processes stand still on their processors, too."""
_REST = 8
"""The next count of files waits this many times as long as the last one took."""
_MAPPINGS_EVERY = 10
_HIDDEN_IN_A_ROW = 20
"""Looks that may find a hiding process: a child of init hides, too, until it is confined."""


@dataclass(slots=True)
class Held:
    """The open files of processes: ``removed`` ones without a name (inode: bytes) and ``sockets``.

    ``hides`` says that one process does not show them, as an undumpable one may (PR_SET_DUMPABLE(2const)).
    """

    removed: dict[int, int] = field(default_factory=dict)
    sockets: set[int] = field(default_factory=set)
    hides: bool = False


def held_by(places: Iterable[str], device: int) -> Held:
    """Returns the open sockets of processes, and their removed files on ``device``."""
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
    """Returns the inodes of mapped files below ``homes`` that have no name any more."""
    found: set[int] = set()
    for line in read(f"{place}/maps").split("\n"):  # names hold every other character that str.splitlines takes
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith(homes) and words[5].endswith(" (deleted)"):
            found.add(int(words[4]))
    return found


@contextmanager
def eyes_of(uid: int) -> Iterator[None]:
    """Looks as ``uid``: a container's root may not look into others' processes (ptrace(2))."""
    if not uid:
        yield
        return
    kernel.set_file_ids(uid, uid)
    try:
        yield
    finally:
        kernel.set_file_ids(0, 0)


class DiskWatch:
    """Counts the files of one sandbox, a little at a time."""

    def __init__(self, loop: Loop, sandbox: Sandbox, root: str) -> None:
        self._loop = loop
        self._sandbox = sandbox
        self._root = root
        self.device = os.stat(root).st_dev
        self._counting = False
        self._next_at = 0.0
        self._torn = 0
        self._turns = 0
        self._nameless = 0
        self._hiding = 0

    def see(self, places: Sequence[str], held: Held) -> None:
        """Takes the open files of its processes, which no count of names finds."""
        self._nameless = self._removed(places, held.removed)
        self._hiding = self._hiding + 1 if held.hides else 0
        if self._hiding > _HIDDEN_IN_A_ROW:
            self._sandbox.end_for("disk", "a process that hides what files it holds")

    def count(self) -> None:
        now = time.monotonic()
        if not self._counting and now >= self._next_at:
            self._counting = True
            if self._torn > _TORN_IN_A_ROW:
                sandbox = self._sandbox
                stopped = stop(sandbox.pid, sandbox.shape.pids)
                self._loop.after(_HOLD_S, lambda: self._walk(now, stopped))
            else:
                self._walk(now, set())

    def _walk(self, began: float, stopped: set[int]) -> None:
        total = Sum()

        def done(error: OSError | None) -> None:
            self._counted(began, total, error)
            if stopped:
                self._torn = 0
                if not self._sandbox.dead:
                    go_on(self._sandbox.pid, self._sandbox.shape.pids, stopped)

        work(self._loop, self._all(total), done)

    def _all(self, total: Sum) -> Iterator[None]:
        for name in ("workspace", "tmp", "dev/shm"):
            yield from measuring(f"{self._root}/{name}", total)

    def _counted(self, began: float, total: Sum, error: OSError | None) -> None:
        self._counting = False
        now = time.monotonic()
        self._next_at = now + _REST * (now - began)
        sandbox = self._sandbox
        if sandbox.dead or sandbox.forced is not None or error is not None:
            return
        self._torn = self._torn + 1 if total.torn else 0
        limit = sandbox.shape.disk_mb * MIB
        if total.bytes + self._nameless > limit:
            sandbox.end_for("disk", f"over the disk limit of {sandbox.shape.disk_mb} MiB")
        elif total.names > max(LEAST_INODES, sandbox.shape.disk_mb * INODES_PER_MIB):
            sandbox.end_for("disk", f"more files than go with a disk limit of {sandbox.shape.disk_mb} MiB")

    def _removed(self, places: Sequence[str], held: dict[int, int]) -> int:
        """Returns bytes of removed files that are held. A mapped one tells no size and counts as the largest."""
        self._turns += 1
        if self._turns % _MAPPINGS_EVERY == 0:
            largest = self._sandbox.shape.disk_mb * MIB
            for place in places:
                for inode in removed_mappings(place, self._root):
                    held.setdefault(inode, largest)
        return sum(held.values())


class Watch:
    """Watches all sandboxes; their ``processes``, too, where the kernel has no limit for them."""

    def __init__(self, loop: Loop, *, processes: bool) -> None:
        self._loop = loop
        self._processes = processes
        self._disks: dict[str, DiskWatch] = {}

    def check(self, sandbox: Sandbox, place: LandlockPlace, objects: Objects) -> None:
        if sandbox.forced is not None or place.removed:
            return  # it is ending, and its directory may be gone
        most = sandbox.shape.pids
        tree = below(sandbox.pid, most)
        if self._processes and (len(tree) > most or sum(len(threads(pid)) for pid in tree) > most):
            sandbox.end_for("processes", f"over the limit of {most} processes and threads")
            return
        disk = self._disk(sandbox, place)
        with eyes_of(place.uid):
            places = [place_of(pid) for pid in tree]
            held = held_by(places, disk.device)
            self._check_memory(sandbox, places, len(held.sockets))
            objects.check(sandbox, places, counted=False)
            disk.see(places, held)
        disk.count()

    def forget(self, place: LandlockPlace) -> None:
        self._disks.pop(place.root, None)

    def _disk(self, sandbox: Sandbox, place: LandlockPlace) -> DiskWatch:
        if place.root not in self._disks:
            self._disks[place.root] = DiskWatch(self._loop, sandbox, place.root)
        return self._disks[place.root]

    def _check_memory(self, sandbox: Sandbox, places: Sequence[str], sockets: int) -> None:
        limit = sandbox.shape.memory_mb * MIB
        used = sum(map(resident, places))
        if used > limit:
            used = sum(map(proportional, places))
        used = max(used, sum(map(memory.of_process, places)) + memory.of_sockets(sockets))
        sandbox.account.meter.used.saw(used)
        if used > limit and sandbox.forced is None:
            sandbox.end_for("memory", f"over the memory limit of {sandbox.shape.memory_mb} MiB")


_ROUNDS = 64
"""A sandbox that goes on forking for more rounds is ended by other means."""


def stop(init: int, most: int) -> set[int]:
    """Stops all processes below ``init``; returns those that were not stopped before."""
    seen: set[int] = set()
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = [pid for pid in below(init, most) if pid not in seen]
        if not fresh:
            break
        seen.update(fresh)
        for pid in fresh:
            with suppress(ProcessLookupError, PermissionError):
                if not is_stopped(pid):
                    os.kill(pid, signal.SIGSTOP)
                    stopped.add(pid)
    return stopped


def go_on(init: int, most: int, stopped: set[int]) -> None:
    for pid in stopped.intersection(below(init, most)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Returns whether a signal stopped it (the state in proc_pid_stat(5))."""
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] == ["T"]
