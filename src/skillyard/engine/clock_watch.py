"""Notices that somebody set the clock forward, before everything that it makes look old is removed."""

from __future__ import annotations

from skillyard.ports.clock import Clock

JUMP_S = 3600.0
"""Further than any clock drifts between two looks. A machine that slept looks the same: it only sweeps later."""


class ClockWatch:
    """Looked at once before each sweep."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: tuple[float, float] | None = None

    def jumped_s(self) -> float:
        """Seconds that the wall clock went forward since the last look beyond what passed; 0 for what is usual."""
        now = self._clock.now(), self._clock.monotonic()
        before, self._seen = self._seen or now, now
        ahead = (now[0] - before[0]) - (now[1] - before[1])
        return ahead if ahead > JUMP_S else 0.0
