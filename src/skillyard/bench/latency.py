"""Latency: rounds in which every subject has its turn, so that all meet the same weather."""

from __future__ import annotations

import time
from collections.abc import Sequence

from skillyard.bench.plan import Plan
from skillyard.bench.stats import Rounds
from skillyard.bench.subject import GivenUp, Subject


async def measure(subjects: Sequence[Subject], plan: Plan, given_up: GivenUp) -> dict[str, Rounds]:
    """Samples in seconds by subject id. One round is always made. Raises what a job of ours raises."""
    found = {subject.id: Rounds() for subject in subjects}
    deadline = time.perf_counter() + plan.latency_s
    for number in range(plan.rounds):
        if number and time.perf_counter() > deadline:
            break
        for subject in turned(subjects, number):
            if number % subject.every == 0 and subject.id not in given_up:
                with given_up.tolerating(subject):
                    found[subject.id].add(number, await _block(subject))
    return found


def turned(subjects: Sequence[Subject], number: int) -> Sequence[Subject]:
    """Each round begins with another one, so that nobody always follows the same neighbour's dirt."""
    start = number % len(subjects) if subjects else 0
    return [*subjects[start:], *subjects[:start]]


async def _block(subject: Subject) -> list[float]:
    samples = []
    for _ in range(subject.block):
        await subject.rest()
        samples.append(await subject.doing.once())
    return samples
