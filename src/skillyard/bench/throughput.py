"""Throughput: short windows of back-to-back jobs, the subjects taking turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from skillyard.bench.latency import turned
from skillyard.bench.plan import CONCURRENCY, Plan
from skillyard.bench.stats import Rounds
from skillyard.bench.subject import GivenUp, Subject


async def measure(subjects: Sequence[Subject], plan: Plan, given_up: GivenUp) -> dict[str, dict[int, Rounds]]:
    """Jobs per second by subject id and concurrency; a round is one window of each. Raises what a job of ours
    raises."""
    found = {subject.id: {level: Rounds() for level in CONCURRENCY} for subject in subjects}
    for number in range(plan.windows):
        for level in CONCURRENCY:
            for subject in turned(subjects, number):
                if subject.id not in given_up:
                    with given_up.tolerating(subject):
                        found[subject.id][level].add(number, [await _window(subject, level, plan.window_s)])
    return found


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
