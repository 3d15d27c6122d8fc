"""Whose check comes next when callers go away, and what counts as slow."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from skillyard.config.storage import SchemaSettings
from skillyard.domain.errors import Busy
from skillyard.domain.skill.schema import SchemaVerdict
from skillyard.jailed.pool import NO_ACCOUNT, JailedPool
from skillyard.jailed.turns import Turns
from tests.conformance.jailed.evil import EVIL

pytestmark = pytest.mark.anyio

SMALL = {"type": "object", "properties": {"n": {"type": "integer"}}}
SLOW = "ab"
BOUND_S = 20.0


@pytest.fixture
async def pool() -> AsyncIterator[JailedPool]:
    pool = JailedPool(NO_ACCOUNT, SchemaSettings(check_s=0.3))
    yield pool
    await pool.close()


async def small(pool: JailedPool, principal: str) -> SchemaVerdict:
    return await pool.check(principal, "small", SMALL, b'{"n": 1}')


@pytest.mark.parametrize("gone", [1, 2, 3])
async def test_who_goes_away_in_the_moment_of_its_turn_is_passed_over(gone: int) -> None:
    """The cancelled ones still stand in the queue when the one before them ends in the same turn of the loop."""
    turns, served = Turns(1), []

    async def wait(name: str) -> None:
        async with turns.turn("alice", patient=False):
            served.append(name)

    async with asyncio.timeout(BOUND_S):
        async with turns.turn("alice", patient=False):
            waiting = [asyncio.create_task(wait(f"{n}")) for n in range(3)]
            await asyncio.sleep(0)
            for task in waiting[:gone]:
                task.cancel()
        await asyncio.wait(waiting)
        assert served == [f"{n}" for n in range(gone, 3)]
        await wait("next")
    assert served[-1] == "next"
    assert (turns._waiting, turns._at_work, dict(turns._queues)) == (0, set(), {})


async def test_who_needs_a_new_process_is_not_slow_for_that(pool: JailedPool) -> None:
    """Whoever ends the process that another used would else have it wait among the slow ones."""
    evil = EVIL["references that multiply with the depth"]
    assert await small(pool, "alice") == SchemaVerdict()
    assert "took longer" in (await pool.check("mallory", "x", evil.schema, json.dumps(evil.value).encode())).unfit
    assert await small(pool, "alice") == SchemaVerdict()
    assert list(pool._turns._slow) == ["mallory"]


async def test_an_idle_process_that_does_not_heed_its_end_is_ended(pool: JailedPool) -> None:
    async with asyncio.timeout(BOUND_S):
        await asyncio.gather(small(pool, "alice"), small(pool, "bob"))
        old, _ = pool._idle
        old.used -= 1000.0
        os.kill(old._process.pid, signal.SIGSTOP)
        await small(pool, "alice")
        assert await old._process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_comes_and_goes_the_bounds_hold_and_nobody_waits_for_ever(seed: int) -> None:
    chance, now = random.Random(seed), asyncio.get_running_loop().time()
    turns, at_work = Turns(chance.choice([2, 4]), waiting=chance.choice([4, 16, 64])), Counter[str]()
    for name in SLOW:
        turns._note(name, 1.0, now)

    async def check(name: str) -> None:
        with suppress(Busy):
            async with turns.turn(name, patient=chance.random() < 0.3):
                at_work[name] += 1
                assert at_work[name] == 1
                assert at_work.total() <= turns._places
                assert sum(at_work[slow] for slow in SLOW) <= turns._places // 2
                try:
                    for _ in range(chance.randrange(4)):
                        await asyncio.sleep(0)
                finally:
                    at_work[name] -= 1

    tasks: list[asyncio.Task[None]] = []
    for _ in range(200):
        tasks += [asyncio.create_task(check(chance.choice("abcdef"))) for _ in range(chance.randrange(4))]
        if chance.random() < 0.7:
            await asyncio.sleep(0)
        for task in chance.sample(tasks, min(len(tasks), chance.randrange(4))):
            task.cancel()
    async with asyncio.timeout(BOUND_S):
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ended} == {type(None), asyncio.CancelledError}
    assert (turns._waiting, turns._at_work, dict(turns._queues)) == (0, set(), {})
