"""How many calls the tokens of a profile may make within a window."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice

from skillyard.config.profiles import ProfileSettings
from skillyard.domain.errors import Busy
from skillyard.domain.principal import Principal
from skillyard.ports.clock import Clock
from skillyard.values import dataclass


@dataclass(slots=True)
class _Window:
    """The calls of one token. It ends ``length_s`` after ``since``, of the monotonic clock."""

    since: float
    length_s: float
    calls: int = 0

    def has(self, now: float) -> bool:
        """Returns whether it is open. A clock that went back closes it, so that nobody waits for a time long past."""
        return self.since <= now < self.since + self.length_s


class CallQuotas:
    """Counts calls in memory, for tokens whose profile bounds them. A refused call costs a look and is not counted.

    A window begins with a token's first call. Those that are over are forgotten when another begins.
    """

    def __init__(self, profiles: Mapping[str, ProfileSettings], clock: Clock) -> None:
        self._profiles = profiles
        self._clock = clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        """By token, in the order in which they began."""

    def __len__(self) -> int:
        """Returns the number of tokens that are remembered."""
        return len(self._windows)

    def count(self, principal: Principal) -> None:
        """Counts a call. Raises Busy where the quota of the principal's profile has no more within this window."""
        section = self._profiles.get(principal.profile or "")
        if section is None or (most := section.quotas.calls) is None:
            return
        now, window = self._clock.monotonic(), self._windows.get(principal.name)
        if window is None or not window.has(now):
            window = self._begin(principal.name, now, section.quotas.calls_window_s)
        if window.calls >= most:
            raise _too_many(principal.profile or "", most, window, now)
        window.calls += 1

    def _begin(self, token: str, now: float, length_s: float) -> _Window:
        self._windows.pop(token, None)
        for other, window in list(islice(self._windows.items(), 2)):  # two go for each that comes, so that none pile up
            if not window.has(now):
                del self._windows[other]
            else:
                self._windows.move_to_end(other)
        window = self._windows[token] = _Window(now, length_s)
        return window


def _too_many(profile: str, most: int, window: _Window, now: float) -> Busy:
    after_ms = max(1, math.ceil(1000 * (window.since + window.length_s - now)))
    name = f"profiles.{profile}.quotas.calls"
    rule = f"calls: this token has made {most} calls within {window.length_s:g} s, and its profile '{profile}' allows"
    remedy = f"no more; come again in {after_ms} ms, or raise {name}"
    return Busy(f"{rule} {remedy}", after_ms, limit=name, maximum=most)
