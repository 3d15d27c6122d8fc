"""Processor time goes by tenant: one with sixty sandboxes at work gets as much as one with a single one.

Where a controller counts, each sandbox's group weighs what its tenant is due, divided by the tenant's sandboxes, in
steps of two, so that most changes touch one group (cpu.shares, cpu.weight: sched-design-CFS, cgroup-v2). Elsewhere a
sandbox's processes are niced as they are lent, which counts for each process alone (sched(7)).
"""

from __future__ import annotations

import contextlib
import os

from skillyard.sandbox.native.keeper.sandbox import Sandbox

_NICE, _NICE_A_LEVEL, _NICEST = 5, 3, 19
"""Below the server. Three steps of niceness halve a process's weight."""


class Shares:
    def __init__(self) -> None:
        self._tenants: dict[str, set[Sandbox]] = {}
        self._levels: dict[str, int] = {}

    def lent(self, sandbox: Sandbox, tenant: str) -> None:
        """Before it gets its first program."""
        held = self._tenants.setdefault(tenant, set())
        held.add(sandbox)
        level = (len(held) - 1).bit_length()
        if level > self._levels.get(tenant, 0):
            self._weigh(tenant, held, level)
        elif sandbox.group is None or level:
            _weigh(sandbox, self._levels.get(tenant, 0))

    def ended(self, sandbox: Sandbox, tenant: str) -> None:
        held = self._tenants.get(tenant)
        if held is None or sandbox not in held:
            return
        held.remove(sandbox)
        if not held:
            del self._tenants[tenant]
            self._levels.pop(tenant, None)
        elif len(held) <= 1 << self._levels.get(tenant, 0) >> 2:  # not at once: it may go up again
            self._weigh(tenant, held, (len(held) - 1).bit_length())

    def _weigh(self, tenant: str, held: set[Sandbox], level: int) -> None:
        self._levels[tenant] = level
        for sandbox in held:
            _weigh(sandbox, level)


def _weigh(sandbox: Sandbox, level: int) -> None:
    """What cannot be weighed has ended."""
    with contextlib.suppress(OSError):
        if sandbox.group is not None and sandbox.group.weigh(level):
            return
        for pid in (sandbox.pid, sandbox.account.meter.worker):
            if pid > 0:
                os.setpriority(os.PRIO_PROCESS, pid, min(_NICEST, _NICE + _NICE_A_LEVEL * level))
