"""Places, queues, fairness, refusals."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.config.limits import AdmissionSettings
from skillyard.domain.errors import Busy, InvalidInput
from skillyard.engine.shares import Admission, Place

pytestmark = pytest.mark.anyio


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def admission(
    running: int = 1, queued: int = 100, each: int = 100, memory_mb: int = 1 << 30, reserve: float = 0.25
) -> Admission:
    settings = AdmissionSettings(running=running, queued=queued, queued_each=each, reserve=reserve)
    return Admission(settings, memory_mb)


async def hold(gate: Admission, principal: str, most: int = 1000) -> list[Place]:
    """All the places that it gets at once, and its next run waits."""
    places: list[Place] = []
    while len(places) < most:
        entering = asyncio.create_task(gate.enter(principal, 1))
        await settle()
        if not entering.done():
            entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)
            break
        places.append(entering.result())
    return places


async def test_the_queue_is_bounded_and_says_when_to_come_again() -> None:
    gate = admission(queued=1)
    first = await gate.enter("a", 1)
    waiting = asyncio.create_task(gate.enter("a", 1))
    await settle()
    with pytest.raises(Busy) as caught:
        await gate.enter("b", 1)
    assert caught.value.code == -32005
    assert caught.value.data["retry_after_ms"] >= 100
    gate.leave(first)
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
        place = await gate.enter(name, 1)
        order.append(name)
        gate.leave(place)

    first = await gate.enter("first", 1)
    tasks = [asyncio.create_task(one(name)) for name in ("a", "a", "a", "a", "b", "c")]
    await settle()
    gate.leave(first)
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "a", "a", "a"]
    assert (gate.running, gate.waiting, gate.reserved_mb) == (0, 0, 0)


async def test_memory_is_reserved_and_a_large_run_is_not_starved() -> None:
    gate = admission(running=10, memory_mb=100)
    first = await gate.enter("a", 60)
    large = asyncio.create_task(gate.enter("c", 80))
    await settle()
    small = asyncio.create_task(gate.enter("b", 10))
    await settle()
    assert not large.done()
    assert not small.done()
    gate.leave(first)
    await asyncio.gather(large, small)
    assert gate.reserved_mb == 90


async def test_what_could_never_fit_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="at most 100"):
        await admission(memory_mb=100).enter("a", 101)


async def test_a_cancelled_waiter_frees_its_turn() -> None:
    gate = admission()
    first = await gate.enter("a", 1)
    gone = asyncio.create_task(gate.enter("a", 1))
    stays = asyncio.create_task(gate.enter("b", 1))
    await settle()
    gone.cancel()
    gate.leave(first)  # in the same turn of the loop
    await stays
    await asyncio.gather(gone, return_exceptions=True)
    assert (gate.running, gate.waiting) == (1, 0)


async def test_a_place_given_to_somebody_who_left_is_passed_on() -> None:
    gate = admission()
    first = await gate.enter("a", 1)
    gone = asyncio.create_task(gate.enter("a", 1))
    stays = asyncio.create_task(gate.enter("b", 1))
    await settle()
    gate.leave(first)  # gives it to gone ...
    gone.cancel()  # ... who leaves before it runs
    await stays
    await asyncio.gather(gone, return_exceptions=True)
    assert (gate.running, gate.waiting, gate.reserved_mb) == (1, 0, 1)


async def test_closing_turns_everybody_away() -> None:
    gate = admission()
    first = await gate.enter("a", 1)
    waiting = asyncio.create_task(gate.enter("b", 1))
    await settle()
    gate.close()
    with pytest.raises(Busy, match="shutting down"):
        await waiting
    with pytest.raises(Busy, match="shutting down"):
        await gate.enter("c", 1)
    gate.leave(first)
    assert (gate.running, gate.waiting) == (0, 0)


async def test_one_principal_alone_leaves_the_reserve() -> None:
    gate = admission(running=64)
    assert len(await hold(gate, "greedy")) == 48
    assert len(await hold(gate, "other", 3)) == 3
    assert gate.waiting == 0


async def test_several_that_want_all_get_like_shares_and_leave_room_for_the_next() -> None:
    gate = admission(running=64)
    held = [await hold(gate, name) for name in ("a", "b", "c")]
    for name, places in zip(("a", "b", "c"), held, strict=True):
        for place in places[16:]:  # as if each had come to its share
            gate.leave(place)
        assert len(places[:16]) + len(await hold(gate, name, 20)) <= 48
    assert gate.running < 64
    await asyncio.wait_for(gate.enter("d", 1), 1)


async def test_who_holds_nothing_is_not_held_up_by_who_has_used_up_its_share() -> None:
    gate = admission(running=4)
    await hold(gate, "greedy")
    waiting = [asyncio.create_task(gate.enter("greedy", 1)) for _ in range(5)]
    await settle()
    assert gate.waiting == 5
    await asyncio.wait_for(gate.enter("other", 1), 1)
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert gate.waiting == 0


async def test_memory_is_shared_as_places_are() -> None:
    gate = admission(running=100, memory_mb=100)
    await gate.enter("greedy", 70)
    more = asyncio.create_task(gate.enter("greedy", 10))
    await settle()
    assert not more.done()
    await asyncio.wait_for(gate.enter("other", 30), 1)
    more.cancel()
    await asyncio.gather(more, return_exceptions=True)


async def test_who_waits_alone_in_a_crowded_queue_has_room() -> None:
    gate = admission(running=1, queued=8)
    await gate.enter("first", 1)
    waiting = [asyncio.create_task(gate.enter("greedy", 1)) for _ in range(8)]
    await settle()
    assert gate.waiting == 6
    other = asyncio.create_task(gate.enter("other", 1))
    await settle()
    assert gate.waiting == 7
    for task in (*waiting, other):
        task.cancel()
    await asyncio.gather(*waiting, other, return_exceptions=True)


async def test_when_to_come_again_follows_how_long_runs_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now, gate = 1000.0, admission(queued=0)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    async def told() -> float:
        with pytest.raises(Busy) as caught:
            await gate.enter("a", 1)
        return float(caught.value.data["retry_after_ms"])

    place = await gate.enter("a", 1)
    at_first = await told()
    now += 5  # it has been at work for five seconds
    assert at_first < 1000 < 4900 <= await told() <= 5100
    gate.leave(place)
    place = await gate.enter("a", 1)
    assert 4900 <= await told() <= 5100, "its last one took five seconds"
    now += 3600
    assert await told() == 60_000, "nobody knows, so never more than a minute"
