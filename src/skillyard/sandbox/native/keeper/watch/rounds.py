"""End what forks for forking's sake, and bound the processes of one tenant's sandboxes together.

A kernel shares locks among all that was forked from one interpreter and all that maps one library. Thousands of
processes that fork and end wait for them in line, each for its turn on a processor first, and whoever else needs
such a lock waits behind them, whatever it weighs: so their number is bounded, not only their share.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.sandboxes import Sandboxes

_EVERY_S = 0.05
_BOMB_LOOKS = 10
"""Looks at which forks had been refused since the look before, after which it is no accident."""
_LEAST, _EACH_PROCESSOR = 512, 256


def default_crowd() -> int:
    """What this host's processors bear: measured on two, where 512 that fork cost a neighbour a factor of a few, and
    3,000 cost it minutes."""
    return max(_LEAST, _EACH_PROCESSOR * len(os.sched_getaffinity(0)))


class Crowd:
    """``together`` is the most processes and threads that one tenant's sandboxes may have. ``members`` gives the
    processes of a sandbox where no controller counts them."""

    def __init__(self, together: int, members: Callable[[int], Sequence[int]]) -> None:
        self._together = together
        self._members = members
        self._refused: dict[Sandbox, tuple[int, int]] = {}
        """Forks that were refused at the last look, and at how many looks there were more."""

    def look(self, sandboxes: Sequence[Sandbox]) -> None:
        tenants: dict[str, list[Sandbox]] = defaultdict(list)
        self._refused = {sandbox: self._refusals(sandbox) for sandbox in sandboxes if sandbox.group is not None}
        for sandbox in sandboxes:
            if sandbox.forced is None and sandbox.lease is not None:
                tenants[sandbox.lease.tenant].append(sandbox)
                self._end_bomb(sandbox)
        for held in tenants.values():
            if sum(sandbox.shape.pids for sandbox in held) > self._together:
                self._bound(held)

    def _refusals(self, sandbox: Sandbox) -> tuple[int, int]:
        before, looks = self._refused.get(sandbox, (0, 0))
        refused = sandbox.group.refused_forks() if sandbox.group is not None else 0
        return refused, looks + (refused > before)

    def _end_bomb(self, sandbox: Sandbox) -> None:
        if self._refused.get(sandbox, (0, 0))[1] >= _BOMB_LOOKS:
            sandbox.end_for("processes", f"it went on forking at its limit of {sandbox.shape.pids} processes")

    def _bound(self, held: Sequence[Sandbox]) -> None:
        counts = {sandbox: self._count(sandbox) for sandbox in held}
        total = sum(counts.values())
        for sandbox in sorted(held, key=lambda sandbox: counts[sandbox], reverse=True):
            if total <= self._together:
                return
            total -= counts[sandbox]
            if sandbox.forced is None:
                sandbox.end_for(
                    "processes", f"all runs of its principal had more than {self._together} processes together"
                )

    def _count(self, sandbox: Sandbox) -> int:
        if sandbox.group is not None:
            return sandbox.group.processes()
        return sum(map(_threads, self._members(sandbox.pid)))


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def start(
    loop: Loop,
    sandboxes: Sandboxes,
    check: Callable[[Sandbox], None],
    together: Callable[[Sequence[Sandbox]], None],
) -> None:
    """Calls ``check`` for each sandbox many times a second while anything runs, and ``together`` for all of them."""
    looking = False

    def look() -> None:
        nonlocal looking
        begun = time.monotonic()
        running = [sandbox for sandbox in sandboxes.survey() if not sandbox.dead and sandbox.running()]
        for sandbox in running:
            try:
                check(sandbox)
            except Exception as error:  # noqa: BLE001 - one that nobody can look at ends
                loop.report(error)
                sandbox.fault(error)
        together(running)
        looking = bool(sandboxes.survey())
        if looking:
            turns.after(max(_EVERY_S, time.monotonic() - begun), look)

    def lent() -> None:
        nonlocal looking
        if not looking:
            looking = True
            turns.after(_EVERY_S, look)

    turns = loop.guarded(lambda _: again())

    def again() -> None:
        """Looks again later; one failed look leaves nothing unwatched."""
        turns.after(_EVERY_S, look)

    sandboxes.on_lent = lent
