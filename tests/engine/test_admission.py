"""Places, queues, fairness, refusals."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.domain.errors import Busy, InvalidInput
from skillyard.engine.admission import Admission
from skillyard.engine.config import AdmissionConfig

pytestmark = pytest.mark.anyio


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def admission(running: int = 1, queued: int = 100, each: int = 100, memory_mb: int | None = None) -> Admission:
    return Admission(AdmissionConfig(running, queued, each, memory_mb))


async def test_the_queue_is_bounded_and_says_when_to_come_again() -> None:
    gate = admission(queued=1)
    await gate.enter("a", 1)
    waiting = asyncio.create_task(gate.enter("a", 1))
    await settle()
    with pytest.raises(Busy) as caught:
        await gate.enter("b", 1)
    assert caught.value.code == -32005
    assert caught.value.data()["retry_after_ms"] >= 100
    gate.leave(1, 10)
    await waiting
    assert (gate.running, gate.waiting) == (1, 0)


async def test_one_principal_cannot_fill_the_queue() -> None:
    gate = admission(queued=10, each=2)
    await gate.enter("greedy", 1)
    waiting = [asyncio.create_task(gate.enter("greedy", 1)) for _ in range(2)]
    await settle()
    with pytest.raises(Busy):
        await gate.enter("greedy", 1)
    other = asyncio.create_task(gate.enter("other", 1))
    await settle()
    assert gate.waiting == 3
    for task in (*waiting, other):
        task.cancel()
    await asyncio.gather(*waiting, other, return_exceptions=True)
    assert gate.waiting == 0


async def test_places_go_round_from_principal_to_principal() -> None:
    gate, order = admission(), []

    async def one(name: str) -> None:
        await gate.enter(name, 1)
        order.append(name)
        gate.leave(1, 1)

    await gate.enter("first", 1)
    tasks = [asyncio.create_task(one(name)) for name in ("a", "a", "a", "a", "b", "c")]
    await settle()
    gate.leave(1, 1)
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "a", "a", "a"]
    assert (gate.running, gate.waiting, gate.reserved_mb) == (0, 0, 0)


async def test_memory_is_reserved_and_a_large_run_is_not_starved() -> None:
    gate = admission(running=10, memory_mb=100)
    await gate.enter("a", 60)
    large = asyncio.create_task(gate.enter("a", 80))
    await settle()
    small = asyncio.create_task(gate.enter("b", 10))
    await settle()
    assert not large.done()
    assert not small.done()
    gate.leave(60, 1)
    await asyncio.gather(large, small)
    assert gate.reserved_mb == 90


async def test_what_could_never_fit_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="at most 100"):
        await admission(memory_mb=100).enter("a", 101)


async def test_a_cancelled_waiter_frees_its_turn() -> None:
    gate = admission()
    await gate.enter("a", 1)
    gone = asyncio.create_task(gate.enter("a", 1))
    stays = asyncio.create_task(gate.enter("b", 1))
    await settle()
    gone.cancel()
    gate.leave(1, 1)  # in the same turn of the loop
    await stays
    await asyncio.gather(gone, return_exceptions=True)
    assert (gate.running, gate.waiting) == (1, 0)


async def test_a_place_given_to_somebody_who_left_is_passed_on() -> None:
    gate = admission()
    await gate.enter("a", 1)
    gone = asyncio.create_task(gate.enter("a", 1))
    stays = asyncio.create_task(gate.enter("b", 1))
    await settle()
    gate.leave(1, 1)  # gives it to gone ...
    gone.cancel()  # ... who leaves before it runs
    await stays
    await asyncio.gather(gone, return_exceptions=True)
    assert (gate.running, gate.waiting, gate.reserved_mb) == (1, 0, 1)


async def test_closing_turns_everybody_away() -> None:
    gate = admission()
    await gate.enter("a", 1)
    waiting = asyncio.create_task(gate.enter("b", 1))
    await settle()
    gate.close()
    with pytest.raises(Busy, match="shutting down"):
        await waiting
    with pytest.raises(Busy, match="shutting down"):
        await gate.enter("c", 1)
    gate.leave(1, 1)
    assert (gate.running, gate.waiting) == (0, 0)
