"""Control groups that were used and are as new, for later sandboxes with the same limits.

Making and removing a directory in each hierarchy costs more than all else that a keeper does for a run. A group is used
again only where the kernel shows no trace of its sandbox in it, and never one whose descriptors a process with foreign
code had.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from skillyard.sandbox.native.groups.groups import PERIOD_US, Group, GroupLimits

MOST = 64
REST_S = 2 * PERIOD_US / 1e6
"""Until then the quota of the period in which its sandbox ended, of which little may be left, is over."""
KEPT_S = 2.0
"""So long a group waits for a sandbox: a keeper without work holds none."""


@dataclass(slots=True, eq=False)
class _Spare:
    since: float
    limits: GroupLimits
    group: Group
    clean: bool | None = None
    """Whether it was found so, once it was looked at. Nobody gets into it before it is taken."""


class Spares:
    """Keeps at most MOST groups. ``bury`` takes one that is of no use any more."""

    def __init__(self, bury: Callable[[Group], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._bury = bury
        self._clock = clock
        self._held: deque[_Spare] = deque()

    def take(self, limits: GroupLimits) -> Group | None:
        """Returns a group that is as new; None where there is none."""
        now = self._clock()
        for spare in list(self._held):
            if now - spare.since < REST_S:
                return None
            if spare.limits == limits:
                self._held.remove(spare)
                if (spare.clean or spare.group.is_clean()) and spare.group.renew():
                    return spare.group
                self._bury(spare.group)
        return None

    def keep(self, group: Group, limits: GroupLimits) -> None:
        """Takes a group whose sandbox is gone.

        A full store gives up the group that has waited longest. While that one still rests, it gives up the new one:
        many short runs would remove each group before a sandbox can use it.
        """
        now = self._clock()
        if len(self._held) == MOST:
            if now - self._held[0].since < REST_S:
                self._bury(group)
                return
            self._bury(self._held.popleft().group)
        self._held.append(_Spare(now, limits, group))

    def look(self) -> bool:
        """Looks at one group, ahead of the sandbox that needs it; returns whether others are left.

        The kernel may take back a charge late: one that is not clean yet is looked at again when it is taken.
        """
        new = [spare for spare in self._held if spare.clean is None]
        if new:
            new[0].clean = new[0].group.is_clean()
        return len(new) > 1

    def fade(self) -> float | None:
        """Gives up what waited for KEPT_S. Returns the seconds until the next has; None where none is left."""
        now = self._clock()
        while self._held and now - self._held[0].since >= KEPT_S:
            self._bury(self._held.popleft().group)
        return KEPT_S - (now - self._held[0].since) if self._held else None
