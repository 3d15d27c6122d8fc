"""kill -9 of the server in the middle of many runs: the next server finds nothing left but true records."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from skillyard.client.run import Run
from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.programs import QUICK, mixed
from tests.crash.server import Callers, Server
from tests.crash.store import contradictions

pytestmark = pytest.mark.anyio
LINGER_S = 15.0
"""A keeper without server and task ends itself within five seconds; noise on top."""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def test_ten_runs(data_dir: Path) -> None:
    await killed_among(data_dir, 10)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ready", [0, 4])
async def test_fifty_runs_again_and_again(data_dir: Path, ready: int) -> None:
    for _ in range(5):
        await killed_among(data_dir, 50, ready=ready)


async def test_its_keeper_leaves_when_no_server_comes(data_dir: Path) -> None:
    footprint = Footprint(data_dir)
    with Server(data_dir, ready=2) as server:
        async with server.callers() as callers:
            runs = [callers.run(mixed(number), {"n": number}) for number in range(4)]
            await _in_the_middle(callers, len(runs))
            footprint.look()
            server.kill()
            await asyncio.gather(*runs)
    until(lambda: not footprint.look().processes, LINGER_S, "the keeper ends itself")
    left = footprint.look()
    assert not left.mounts, left.lines()
    assert not left.cgroups, left.lines()
    unswept = [path for path in left.files if "/blobs/tmp/" not in path]
    assert not unswept, left.lines()


async def test_at_two_random_moments(data_dir: Path) -> None:
    chance = random.Random(1)
    for _ in range(2):
        await killed_at_random(data_dir, chance)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_at_fifty_random_moments(data_dir: Path) -> None:
    chance = random.Random(4)
    for _ in range(50):
        await killed_at_random(data_dir, chance)


async def killed_among(data_dir: Path, count: int, *, ready: int = 0) -> None:
    """Kill the server when ``count`` runs were sent, some ended and the others work; then look."""
    footprint = Footprint(data_dir)
    with Server(data_dir, ready=ready) as server:
        async with server.callers() as callers:
            runs = [callers.run(mixed(number), {"n": number}) for number in range(count)]
            await _in_the_middle(callers, count)
            assert footprint.look().sandboxed, "the runs have processes"
            server.kill()
            answers = await asyncio.gather(*runs)
    records = await _after(data_dir, footprint, answers, ready)
    assert sum(record["outcome"] == "lost" for record in records) >= count // 2


async def killed_at_random(data_dir: Path, chance: random.Random) -> None:
    """Kill the server up to 60 ms after the first of up to eight runs was sent, wherever they are then."""
    footprint = Footprint(data_dir)
    ready = chance.choice([0, 2])
    with Server(data_dir, ready=ready) as server:
        async with server.callers() as callers:
            await callers.run(QUICK, {"n": -1})
            footprint.look()
            moment = asyncio.get_running_loop().time() + chance.uniform(0, 0.06)
            runs = [callers.run(mixed(number), {"n": number}) for number in range(chance.randint(1, 8))]
            await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))
            server.kill()
            answers = await asyncio.gather(*runs)
    await _after(data_dir, footprint, answers, ready)


async def _in_the_middle(callers: Callers, count: int) -> None:
    """Wait until those that can have ended and all others have begun."""
    await callers.until_begun(sum(1 for number in range(count) if number % 4))


async def _after(data_dir: Path, footprint: Footprint, answers: list[Run | None], ready: int) -> list[dict[str, Any]]:
    """A new server: what was answered is true, the rest is lost or ended, nothing else is left. The records."""
    with Server(data_dir, ready=ready) as server:
        async with server.callers() as callers:
            records = await callers.records()
            _check_records({record["run_id"]: record for record in records}, answers)
            again = await callers.run(QUICK, {"n": 7})
            assert again is not None, server.log()
            assert again.output == {"n": 7}
            idle(footprint, ahead=ready > 0)
            until(lambda: not contradictions(data_dir), 10, "the store agrees with itself")
        assert server.stop() == 0, server.log()
    gone(footprint)
    return records


def _check_records(records: dict[str, dict[str, Any]], answers: list[Run | None]) -> None:
    for answer in answers:
        if answer is not None:
            assert records[answer.run_id]["status"] == answer.status
    answered = {answer.run_id for answer in answers if answer is not None}
    for record in records.values():
        if record["run_id"] not in answered and record["outcome"] != "exit":
            error = record["error"]
            assert (record["status"], record["outcome"], error["type"]) == ("failed", "lost", "SandboxLost"), record
            assert record["ended_at"] is not None
