"""Control groups that were used and are as new, for later sandboxes with the same limits.

Making and removing a directory in each hierarchy costs more than all else that a keeper does for a run. A group is used
again only where the kernel shows no trace of its sandbox in it, and never one whose descriptors a process with foreign
code had.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from skillyard.sandbox.native.groups.groups import PERIOD_US, Group, GroupLimits

MOST = 64
REST_S = 2 * PERIOD_US / 1e6
"""Until then the quota of the period in which its sandbox ended, of which little may be left, is over."""
KEPT_S = 2.0
"""So long a group waits for a sandbox: a keeper without work holds none."""


class Spares:
    """Keeps at most MOST groups. ``bury`` takes one that is of no use any more."""

    def __init__(self, bury: Callable[[Group], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._bury = bury
        self._clock = clock
        self._held: deque[tuple[float, GroupLimits, Group]] = deque()

    def take(self, limits: GroupLimits) -> Group | None:
        """Returns a group that is as new; None where there is none."""
        now = self._clock()
        for entry in list(self._held):
            since, its_limits, group = entry
            if now - since < REST_S:
                return None
            if its_limits == limits:
                self._held.remove(entry)
                if group.renew():
                    return group
                self._bury(group)
        return None

    def keep(self, group: Group, limits: GroupLimits) -> None:
        """Takes a group whose sandbox is gone.

        A full store gives up the group that has waited longest. While that one still rests, it gives up the new one:
        many short runs would remove each group before a sandbox can use it.
        """
        now = self._clock()
        if len(self._held) == MOST:
            if now - self._held[0][0] < REST_S:
                self._bury(group)
                return
            self._bury(self._held.popleft()[2])
        self._held.append((now, limits, group))

    def fade(self) -> float | None:
        """Gives up what waited for KEPT_S. Returns the seconds until the next has; None where none is left."""
        now = self._clock()
        while self._held and now - self._held[0][0] >= KEPT_S:
            self._bury(self._held.popleft()[2])
        return KEPT_S - (now - self._held[0][0]) if self._held else None
