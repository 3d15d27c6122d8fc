"""What no namespace and no cgroup limits here: memory, processes and files of each sandbox are looked at often, and
the one that takes more is ended. Between two looks it may take more by what it can in that time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from skillyard.sandbox.native.grounds.landlock import looks
from skillyard.sandbox.native.grounds.landlock.place import LandlockPlace
from skillyard.sandbox.native.grounds.landlock.tree import Sum, measuring, work
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import MIB
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch import memory
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects
from skillyard.sandbox.native.keeper.watch.processes import place_of

INODES_PER_MIB = 128
LEAST_INODES = 4096
_TORN_IN_A_ROW = 2
"""Counts that missed something, after which the next is made while nothing moves."""
_HOLD_S = 0.005
"""Until what was stopped stands still on its processor too."""
_REST = 8
"""After a count of files, this many times its own time passes until the next."""
_MAPPINGS_EVERY = 10
_HIDDEN_IN_A_ROW = 20
"""Looks. A child of init hides too, until it is confined."""


class DiskWatch:
    """Of one sandbox: counts its files, a little at a time."""

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

    def see(self, places: Sequence[str], held: looks.Held) -> None:
        """What its processes hold that no count of names finds. With the eyes of the sandbox's user."""
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
        """Bytes of files that were removed and are still held. What is only mapped tells no size: it counts as the
        largest that a file may be."""
        self._turns += 1
        if self._turns % _MAPPINGS_EVERY == 0:
            largest = self._sandbox.shape.disk_mb * MIB
            for place in places:
                for inode in looks.removed_mappings(place, self._root):
                    held.setdefault(inode, largest)
        return sum(held.values())


class Watch:
    """``processes`` says whether it counts those too: where no limit of the kernel does."""

    def __init__(self, loop: Loop, *, processes: bool) -> None:
        self._loop = loop
        self._processes = processes
        self._disks: dict[str, DiskWatch] = {}

    def check(self, sandbox: Sandbox, place: LandlockPlace, objects: Objects) -> None:
        if sandbox.forced is not None or place.removed:
            return  # it is ending, and its directory may be gone
        most = sandbox.shape.pids
        tree = looks.tree(sandbox.pid, most)
        if self._processes and (len(tree) > most or sum(len(looks.threads(pid)) for pid in tree) > most):
            sandbox.end_for("processes", f"over the limit of {most} processes and threads")
            return
        disk = self._disk(sandbox, place)
        with looks.eyes_of(place.uid):
            places = [place_of(pid) for pid in tree]
            held = looks.held(places, disk.device)
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
        used = sum(map(looks.resident, places))
        if used > limit:
            used = sum(map(looks.proportional, places))
        used = max(used, sum(map(memory.of_process, places)) + memory.of_sockets(sockets))
        sandbox.account.meter.used.saw(used)
        if used > limit and sandbox.forced is None:
            sandbox.end_for("memory", f"over the memory limit of {sandbox.shape.memory_mb} MiB")


_ROUNDS = 64
"""What goes on forking for longer than that is ended by other means."""


def stop(init: int, most: int) -> set[int]:
    """All below ``init``, until nobody is new there; those that were not stopped before. SIGSTOP cannot be ignored."""
    seen: set[int] = set()
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = [pid for pid in looks.tree(init, most) if pid not in seen]
        if not fresh:
            break
        seen.update(fresh)
        for pid in fresh:
            with suppress(ProcessLookupError, PermissionError):
                if not looks.is_stopped(pid):
                    os.kill(pid, signal.SIGSTOP)
                    stopped.add(pid)
    return stopped


def go_on(init: int, most: int, stopped: set[int]) -> None:
    for pid in stopped.intersection(looks.tree(init, most)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)
