"""Whatever a schema costs, its check ends, and nothing of the server waits for it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.storage import SchemaSettings
from skillyard.domain.errors import Busy
from skillyard.domain.skill.schema import SchemaVerdict
from skillyard.jailed.pool import NO_ACCOUNT, JailedPool
from skillyard.jailed.turns import Turns
from skillyard.stores.skills.validation.schema import complaints
from tests.conformance.jailed.evil import EVIL, Evil

pytestmark = pytest.mark.anyio

SMALL = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
LIMITS = SchemaSettings(check_s=0.3, processes=4)
BOUND_S = 10.0


@pytest.fixture
async def pool() -> AsyncIterator[JailedPool]:
    pool = JailedPool(NO_ACCOUNT, LIMITS)
    yield pool
    await pool.close()


async def small(pool: JailedPool, principal: str) -> SchemaVerdict:
    return await pool.check(principal, "small", SMALL, b'{"n": 1}')


@pytest.mark.parametrize("name", EVIL)
async def test_a_check_ends_and_another_principal_is_served_meanwhile(pool: JailedPool, name: str) -> None:
    evil, ended = EVIL[name], asyncio.Event()
    value = json.dumps(evil.value).encode()

    async def attack() -> SchemaVerdict:
        try:
            return await pool.check("mallory", name, evil.schema, value)
        finally:
            ended.set()

    async def loop_is_free() -> float:
        """The longest work of the loop's thread that anything else had to wait for."""
        worst, now = 0.0, time.thread_time
        while not ended.is_set():
            began = now()
            await asyncio.sleep(0)
            worst = max(worst, now() - began)
        return worst

    async with asyncio.timeout(BOUND_S):
        assert await small(pool, "alice") == SchemaVerdict()
        attacking = asyncio.create_task(attack())
        watching = asyncio.create_task(loop_is_free())
        assert await small(pool, "alice") == SchemaVerdict()
        verdict, worst = await attacking, await watching
        assert await small(pool, "mallory") == SchemaVerdict()
    assert worst < 0.5, verdict
    assert not evil.published or "too large" not in verdict.unfit


@pytest.mark.parametrize("name", EVIL)
def test_publishing_judges_it_soon(name: str) -> None:
    evil: Evil = EVIL[name]
    began = time.process_time()
    found = [complaint for complaint in complaints(evil.schema) if complaint.level != "warning"]
    assert time.process_time() - began < BOUND_S
    assert (not found) == evil.published, found


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "allOf": [1] * 80_000},
        {"type": "object", "allOf": [{"required": [1] * 50} for _ in range(1500)]},
        {"type": ["x"] * 50_000},
        {"dependencies": {"a": [1] * 80_000}},
    ],
    ids=["allOf", "required", "type", "dependencies"],
)
def test_publishing_judges_one_with_many_mistakes_soon(schema: dict[str, Any]) -> None:
    """The library would word each of them, and hold the interpreter meanwhile."""
    began = time.process_time()
    [found] = complaints(schema)
    assert time.process_time() - began < BOUND_S / 4
    assert (found.level, found.rule) == ("error", "schema")


async def test_one_that_takes_too_long_says_so_and_its_process_is_replaced(pool: JailedPool) -> None:
    evil = EVIL["references that multiply with the depth"]
    verdict = await pool.check("mallory", "x", evil.schema, json.dumps(evil.value).encode())
    assert "took longer than 0.3 s" in verdict.unfit
    assert await small(pool, "mallory") == SchemaVerdict()


async def test_memory_is_bounded() -> None:
    pool = JailedPool(NO_ACCOUNT, SchemaSettings(check_s=10, memory_mb=128))
    try:
        value = json.dumps([[n] for n in range(3_000_000)]).encode()
        verdict = await pool.check("mallory", "x", {"uniqueItems": True}, value)
        assert "128 MiB" in verdict.unfit
        assert await small(pool, "mallory") == SchemaVerdict()
    finally:
        await pool.close()


async def test_slow_principals_leave_half_of_the_processes() -> None:
    """Of four places slow ones get two, however many wait; others come before those that wait."""
    turns, done = Turns(4), asyncio.Event()
    names = [f"slow{n}" for n in range(6)]
    now = asyncio.get_running_loop().time()
    for name in names:
        turns._note(name, 1.0, now)
    at_work: list[str] = []

    async def work(name: str) -> None:
        async with turns.turn(name, patient=True):
            at_work.append(name)
            await done.wait()

    slow = [asyncio.create_task(work(name)) for name in names]
    await asyncio.sleep(0)
    quick = [asyncio.create_task(work(name)) for name in ("alice", "alice", "bob", "carol")]
    await asyncio.sleep(0)
    assert at_work == ["slow0", "slow1", "alice", "bob"]
    done.set()
    async with asyncio.timeout(BOUND_S):
        await asyncio.gather(*slow, *quick)
    assert sorted(at_work) == sorted([*names, "alice", "alice", "bob", "carol"])


async def test_one_principals_checks_wait_for_each_other_and_are_bounded() -> None:
    pool = JailedPool(NO_ACCOUNT, LIMITS)
    try:
        answers = await asyncio.gather(*(small(pool, "alice") for _ in range(300)), return_exceptions=True)
        assert len(pool._children) == 1
        assert {type(answer) for answer in answers} == {SchemaVerdict, Busy}
        patient = (pool.check("alice", "small", SMALL, b'{"n": 1}', patient=True) for _ in range(300))
        assert set(await asyncio.gather(*patient)) == {SchemaVerdict()}
    finally:
        await pool.close()


async def test_who_stops_waiting_takes_no_turn(pool: JailedPool) -> None:
    first, second, third = (asyncio.create_task(small(pool, "alice")) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    assert await first == await third == SchemaVerdict()
    first = asyncio.create_task(small(pool, "alice"))
    await asyncio.sleep(0)
    first.cancel()  # at work: its process is not used again
    await asyncio.wait([first])
    assert await small(pool, "alice") == SchemaVerdict()


async def test_its_process_has_nothing_and_can_get_nothing(pool: JailedPool) -> None:
    await small(pool, "alice")
    (child,) = pool._children
    status = Path(f"/proc/{child._process.pid}/status").read_text()
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    assert "CapBnd:\t0000000000000000" in status or "Uid:\t0" not in status
    limits = Path(f"/proc/{child._process.pid}/limits").read_text()
    for name in ("Max open files", "Max processes", "Max file size"):
        assert next(line for line in limits.splitlines() if line.startswith(name)).split()[-3] == "0"


@pytest.mark.parametrize("schema", [{"$ref": "http://127.0.0.1:1/x"}, {"$ref": "file:///etc/passwd"}, {"$ref": "#/no"}])
async def test_nothing_is_fetched(pool: JailedPool, schema: dict[str, str]) -> None:
    assert (await pool.check("a", str(schema), schema, b"{}")).unfit
