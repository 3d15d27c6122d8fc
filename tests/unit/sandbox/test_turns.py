"""One maker at a time for each key, also after one that failed."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.sandbox.turns import Turns

pytestmark = pytest.mark.anyio


async def test_those_who_come_after_a_failure_wait_for_those_who_waited() -> None:
    turns, inside, most = Turns(), 0, 0

    async def make(*, fails: bool) -> None:
        nonlocal inside, most
        async with turns.of("key"):
            inside += 1
            most = max(most, inside)
            try:
                for _ in range(5):
                    await asyncio.sleep(0)
                if fails:
                    raise OSError
            finally:
                inside -= 1

    first, waiting = asyncio.create_task(make(fails=True)), asyncio.create_task(make(fails=False))
    await asyncio.wait({first})
    await asyncio.gather(waiting, make(fails=False))
    assert isinstance(first.exception(), OSError)
    assert most == 1


async def test_keys_do_not_wait_for_others_and_are_forgotten() -> None:
    turns = Turns()
    async with turns.of("one"), asyncio.timeout(1), turns.of("two"):
        assert len(turns) == 2
    assert len(turns) == 0
