"""Measures latency and throughput in rounds in which every subject has its turn, so that all meet the same load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from skillyard.bench.stats import Rounds
from skillyard.bench.subject import GivenUp, Subject

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
    """Returns the subjects, another one first in each round, so that nobody always follows the same neighbour."""
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
