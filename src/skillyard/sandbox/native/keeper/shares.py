"""Fair shares of processors and processes between principals.

Processor time goes by principal: one with sixty sandboxes at work gets as much as one with a single sandbox. Where a
controller counts, the group of a sandbox weighs the share of its principal divided by the principal's sandboxes. The
weights go in steps of two, so that most changes touch one group (cpu.shares, cpu.weight: sched-design-CFS, cgroup-v2).
Elsewhere the processes of a sandbox are niced when it is lent, which counts for each process alone (sched(7)).

The number of processes is bounded, too. Processes that were forked from one interpreter or map one library share locks
of the kernel. Thousands that fork and end wait for such a lock in line, and so does everybody else who needs it,
whatever their weight.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Sequence

from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.watch.processes import threads

_NICE, _NICE_A_LEVEL, _NICEST = 5, 3, 19
"""Below the server. Three steps of niceness halve a process's weight."""
_BOMB_LOOKS = 10
"""A sandbox is ended when this many looks found forks that had been refused since the look before."""
_LEAST, _EACH_PROCESSOR = 512, 256


class Shares:
    """Weighs the sandboxes of each principal."""

    def __init__(self) -> None:
        self._held: dict[str, set[Sandbox]] = {}
        self._levels: dict[str, int] = {}

    def lent(self, sandbox: Sandbox, principal: str) -> None:
        """Weighs a sandbox before it gets its first program."""
        held = self._held.setdefault(principal, set())
        held.add(sandbox)
        level = (len(held) - 1).bit_length()
        if level > self._levels.get(principal, 0):
            self._weigh(principal, held, level)
        elif sandbox.group is None or level:
            _weigh(sandbox, self._levels.get(principal, 0))

    def ended(self, sandbox: Sandbox, principal: str) -> None:
        held = self._held.get(principal)
        if held is None or sandbox not in held:
            return
        held.remove(sandbox)
        if not held:
            del self._held[principal]
            self._levels.pop(principal, None)
        elif len(held) <= 1 << self._levels.get(principal, 0) >> 2:  # not at once: it may go up again
            self._weigh(principal, held, (len(held) - 1).bit_length())

    def _weigh(self, principal: str, held: set[Sandbox], level: int) -> None:
        self._levels[principal] = level
        for sandbox in held:
            if not sandbox.parting:
                _weigh(sandbox, level)


def _weigh(sandbox: Sandbox, level: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        if sandbox.group is not None and sandbox.group.weigh(level):
            return
        for pid in (sandbox.pid, sandbox.account.meter.worker):
            if pid > 0:
                os.setpriority(os.PRIO_PROCESS, pid, min(_NICEST, _NICE + _NICE_A_LEVEL * level))


def default_crowd() -> int:
    """Returns how many processes of one principal this host's processors bear.

    Measured on two processors: 512 that fork cost a neighbour a factor of a few, and 3,000 cost it minutes.
    """
    return max(_LEAST, _EACH_PROCESSOR * len(os.sched_getaffinity(0)))


class Crowd:
    """Ends fork bombs, and bounds the processes of one principal's sandboxes to ``together``.

    ``members`` gives the processes of a sandbox where no controller counts them.
    """

    def __init__(self, together: int, members: Callable[[int], Sequence[int]]) -> None:
        self._together = together
        self._members = members
        self._refused: dict[Sandbox, tuple[int, int]] = {}
        """Forks that were refused at the last look, and at how many looks there were more."""

    def look(self, sandboxes: Sequence[Sandbox]) -> None:
        held: dict[str, list[Sandbox]] = defaultdict(list)
        self._refused = {sandbox: self._refusals(sandbox) for sandbox in sandboxes if sandbox.group is not None}
        for sandbox in sandboxes:
            if sandbox.forced is None and sandbox.lease is not None:
                held[sandbox.lease.tenant].append(sandbox)
                self._end_bomb(sandbox)
        for sandboxes in held.values():
            if sum(sandbox.shape.pids for sandbox in sandboxes) > self._together:
                self._bound(sandboxes)

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
        return sum(len(threads(pid)) for pid in self._members(sandbox.pid))
