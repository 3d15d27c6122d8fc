"""Measures latency and throughput in rounds, so that all subjects meet the same load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from skillyard.bench.subject import GivenUp, Subject


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns a percentile, linear between the closest ranks.

    This is Hyndman and Fan's type 7, as in numpy and R. Raises ValueError for no values, or a percent outside 0 to 100.
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
    round, under the same load, and the median of those comparisons is quoted."""

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


CONCURRENCY = (1, 2, 8)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: every part is bounded by a count and by time.

    Latency ends after ``rounds`` or ``latency_s``, whichever comes first. Each throughput takes ``windows`` of
    ``window_s``. ``ready`` sandboxes are held for their idle cost; ``data`` adds the jobs with numpy and pandas.
    """

    rounds: int
    latency_s: float
    windows: int
    window_s: float
    ready: int
    data: bool

    @classmethod
    def of(cls, *, quick: bool, ready: int | None) -> Plan:
        if quick:
            return cls(rounds=6, latency_s=10, windows=1, window_s=0.25, ready=ready or 8, data=False)
        return cls(rounds=150, latency_s=50, windows=3, window_s=0.6, ready=ready or 100, data=True)


async def latency(subjects: Sequence[Subject], plan: Plan, given_up: GivenUp) -> dict[str, Rounds]:
    """Returns samples in seconds by subject id; one round is always made. Raises what a job of ours raises."""
    found = {subject.id: Rounds() for subject in subjects}
    deadline = time.perf_counter() + plan.latency_s
    for number in range(plan.rounds):
        if number and time.perf_counter() > deadline:
            break
        for subject in _turned(subjects, number):
            if number % subject.every == 0 and subject.id not in given_up:
                with given_up.tolerating(subject):
                    found[subject.id].add(number, await _block(subject))
    return found


async def throughput(subjects: Sequence[Subject], plan: Plan, given_up: GivenUp) -> dict[str, dict[int, Rounds]]:
    """Returns jobs per second by subject id and concurrency; a round is one window of each. Raises what a job of
    ours raises."""
    found = {subject.id: {level: Rounds() for level in CONCURRENCY} for subject in subjects}
    for number in range(plan.windows):
        for level in CONCURRENCY:
            for subject in _turned(subjects, number):
                if subject.id not in given_up:
                    with given_up.tolerating(subject):
                        found[subject.id][level].add(number, [await _window(subject, level, plan.window_s)])
    return found


def _turned(subjects: Sequence[Subject], number: int) -> Sequence[Subject]:
    """Returns the subjects in the order of a round; another one is first in each."""
    start = number % len(subjects) if subjects else 0
    return [*subjects[start:], *subjects[:start]]


async def _block(subject: Subject) -> list[float]:
    samples = []
    for _ in range(subject.block):
        await subject.rest()
        samples.append(await subject.doing.once())
    return samples


async def _window(subject: Subject, level: int, seconds: float) -> float:
    """Counted to the end of the last job, which may be later than the window's. All have ended when it raises."""
    began = time.perf_counter()
    callers = (subject.doing.until(began + seconds) for _ in range(level))
    ends = await asyncio.gather(*callers, return_exceptions=True)
    took = time.perf_counter() - began
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return sum(end for end in ends if isinstance(end, int)) / took
