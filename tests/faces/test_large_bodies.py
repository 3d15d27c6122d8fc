"""Large bodies wait for each other while others call, and for nobody else."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.faces.http.rpc import LargeBodies

pytestmark = pytest.mark.anyio

TEN_MS = 1_000_000
"""Bytes that take about ten milliseconds of work, and so a tenth of a second of their turn."""


async def seconds(heavy: LargeBodies, principal: str, size: int = TEN_MS, values: int = 0) -> float:
    clock = asyncio.get_running_loop().time
    begun = clock()
    await heavy.turn(principal, size, values)
    return clock() - begun


async def test_who_is_alone_waits_for_nothing() -> None:
    heavy = LargeBodies()
    assert sum([await seconds(heavy, "a") for _ in range(20)]) < 1.5, "twenty turns of a tenth of a second"


async def test_beside_others_large_bodies_leave_most_of_the_time_to_small_ones() -> None:
    heavy = LargeBodies()
    await seconds(heavy, "quiet", 100)
    await seconds(heavy, "greedy")
    waiting = [asyncio.create_task(seconds(heavy, "greedy")) for _ in range(3)]
    await asyncio.sleep(0)
    await seconds(heavy, "quiet", 100)
    assert not any(task.done() for task in waiting)
    waited = await asyncio.gather(*waiting)
    assert waited[0] >= 0.08
    assert waited[2] >= 0.26


async def test_many_values_are_large_too() -> None:
    heavy = LargeBodies()
    await seconds(heavy, "quiet", 100)
    await seconds(heavy, "greedy", 20_000, 10_000)
    assert await seconds(heavy, "greedy", 20_000, 10_000) >= 0.08
