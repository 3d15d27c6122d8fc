"""A jailed process that is killed fails its own request alone, and checks and readings stand in nobody's way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from skillyard.config.storage import SchemaSettings
from skillyard.domain.review.python_facts import Facts, Import
from skillyard.domain.skill.schema import SchemaVerdict
from skillyard.jailed.pool import NO_ACCOUNT, JailedPool
from tests.conformance.jailed.evil import EVIL

pytestmark = pytest.mark.anyio

BOUND_S = 60.0
PLACES = 2
SMALL = {"type": "object", "required": ["n"]}


@dataclass(frozen=True)
class Kind:
    """``reads`` Python, or checks values; ``ask`` does a small piece of it, whose answer is ``good``."""

    reads: bool
    ask: Callable[[JailedPool], Awaitable[SchemaVerdict | Facts]]
    good: SchemaVerdict | Facts


def check(pool: JailedPool) -> Awaitable[SchemaVerdict]:
    return pool.check("alice", "small", SMALL, b'{"n": 1}')


def read(pool: JailedPool) -> Awaitable[Facts]:
    return pool.read_python("import os")


KINDS = {
    "schema": Kind(False, check, SchemaVerdict()),
    "python": Kind(True, read, Facts(imports=(Import("os", "", 1),))),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
async def pool() -> AsyncIterator[JailedPool]:
    pool = JailedPool(NO_ACCOUNT, SchemaSettings(check_s=20, processes=PLACES))
    yield pool
    await pool.close()


def pid_of(pool: JailedPool, kind: Kind) -> int:
    """The pid of the one process of that kind."""
    [child] = [child for child in pool._children if child.reads == kind.reads]
    return child._process.pid


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():
            await asyncio.sleep(0.01)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):  # it was gone before it was looked at, or while it was read
        return "X"


async def stopped(pool: JailedPool, kind: Kind) -> int:
    """Stops the process, so that the next request to it stays at work. Returns its pid."""
    assert await kind.ask(pool) == kind.good
    pid = pid_of(pool, kind)
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: state_of(pid) == "T")
    return pid


async def at_work(pool: JailedPool, kind: Kind) -> asyncio.Future[SchemaVerdict | Facts]:
    """Returns a request that the stopped process was sent."""
    asked = asyncio.ensure_future(kind.ask(pool))
    await until(lambda: not [child for child in pool._idle if child.reads == kind.reads])
    return asked


async def test_one_that_is_killed_at_work_says_so_and_the_next_works(pool: JailedPool, kind: Kind) -> None:
    killed = await stopped(pool, kind)
    asked = await at_work(pool, kind)
    os.kill(killed, signal.SIGKILL)
    async with asyncio.timeout(BOUND_S):
        answer = await asked
        said = answer.unread if isinstance(answer, Facts) else answer.unfit
        assert "its process was killed" in said
        assert not isinstance(answer, Facts) or answer.grave
        assert isinstance(answer, Facts) or said.endswith("try again")
        assert await kind.ask(pool) == kind.good
    assert pid_of(pool, kind) != killed


async def test_one_that_is_killed_while_idle_fails_nothing(pool: JailedPool, kind: Kind) -> None:
    assert await kind.ask(pool) == kind.good
    killed = pid_of(pool, kind)
    os.kill(killed, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{killed}").exists() or state_of(killed) in "ZX")
    async with asyncio.timeout(BOUND_S):
        assert await kind.ask(pool) == kind.good
    assert pid_of(pool, kind) != killed


async def test_a_source_that_does_not_end_keeps_no_check_waiting(pool: JailedPool) -> None:
    """All places of checks are free: one for each of two principals at once."""
    python = KINDS["python"]
    pid = await stopped(pool, python)
    reading = await at_work(pool, python)
    async with asyncio.timeout(BOUND_S):
        hostile = [asyncio.ensure_future(_evil(pool, f"mallory{number}")) for number in range(PLACES)]
        await until(lambda: len(pool._children) == PLACES + 1)
        assert not reading.done()
        os.kill(pid, signal.SIGCONT)
        assert await reading == python.good
    assert not any(one.done() for one in hostile)
    await _given_up(hostile)


async def test_schemas_that_do_not_end_keep_no_source_waiting(pool: JailedPool) -> None:
    """They hold every place, and more wait; what reads Python is another process, which knows no schema."""
    hostile = [asyncio.ensure_future(_evil(pool, f"mallory{number}")) for number in range(4 * PLACES)]
    await until(lambda: len(pool._children) == PLACES)
    async with asyncio.timeout(BOUND_S):
        assert await read(pool) == KINDS["python"].good
    assert not any(one.done() for one in hostile)
    assert {child.reads: child.known for child in pool._children if child.reads} == {True: set()}
    await _given_up(hostile)


async def _evil(pool: JailedPool, principal: str) -> SchemaVerdict:
    evil = EVIL["references that multiply with the depth"]
    return await pool.check(principal, "evil", evil.schema, json.dumps(evil.value).encode(), patient=True)


async def _given_up(asked: Sequence[asyncio.Future[SchemaVerdict]]) -> None:
    for one in asked:
        one.cancel()
    await asyncio.wait(asked)
