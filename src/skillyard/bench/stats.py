"""Medians, percentiles, and ratios that survive a noisy machine. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the closest ranks (Hyndman and Fan's type 7, as numpy and R do).

    Raises ValueError for no values, or a percent outside 0 to 100.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"no percentile {percent} of {len(values)} values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """Raises ValueError for no values."""
    return percentile(values, 50)


@dataclass(slots=True)
class Rounds:
    """Samples of one subject by round. Subjects take turns in every round, so two of them are compared round by
    round, under the same weather, and the median of those comparisons is quoted."""

    blocks: dict[int, list[float]] = field(default_factory=dict)

    def add(self, number: int, samples: Sequence[float]) -> None:
        if samples:
            self.blocks.setdefault(number, []).extend(samples)

    @property
    def samples(self) -> list[float]:
        return [value for block in self.blocks.values() for value in block]

    def ratio(self, base: Rounds) -> float | None:
        """The median over common rounds of own median / the base's; None without a common round."""
        pairs = self._pairs(base)
        return median([own / other for own, other in pairs]) if pairs else None

    def excess(self, base: Rounds) -> float | None:
        """As :meth:`ratio`, for the difference."""
        pairs = self._pairs(base)
        return median([own - other for own, other in pairs]) if pairs else None

    def _pairs(self, base: Rounds) -> list[tuple[float, float]]:
        common = self.blocks.keys() & base.blocks.keys()
        return [(median(self.blocks[number]), median(base.blocks[number])) for number in common]


def in_ms(seconds: Sequence[float]) -> Mapping[str, float]:
    """``min``, ``p50``, ``p95`` and ``p99`` in milliseconds, to the microsecond."""
    points = {"min": 0, "p50": 50, "p95": 95, "p99": 99}
    return {f"{name}_ms": round(percentile(seconds, percent) * 1000, 3) for name, percent in points.items()}
