"""kill -9 of the processes below a keeper: a typed outcome for the run that is hit, the next one works."""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from skillyard.client.run import Run
from tests.crash.leftovers import Footprint, Process, Snapshot, gone, idle
from tests.crash.parts import anything, inits, kill, workers, zygotes
from tests.crash.programs import BRIEF, FAMILY, FOREVER, QUICK
from tests.crash.server import Callers, Server
from tests.crash.store import contradictions

pytestmark = pytest.mark.anyio
Choose = Callable[[Snapshot], list[Process]]
SHORT_WORK = (
    "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(1)\n    return {'n': args['n']}\n"
)


@pytest.mark.parametrize(
    ("choose", "outcome", "error"), [(inits, "lost", "SandboxLost"), (workers, "signal", "SignalError")]
)
@pytest.mark.parametrize(
    "code", [pytest.param(FOREVER, id="one", marks=pytest.mark.long), pytest.param(FAMILY, id="family")]
)
async def test_of_a_working_sandbox(tmp_path: Path, choose: Choose, outcome: str, error: str, code: str) -> None:
    footprint = Footprint(tmp_path / "data")
    with Server(tmp_path / "data") as server:
        async with server.callers() as callers:
            run = callers.run(code)
            await callers.until_begun(1)
            kill(choose(footprint.look())[:1])
            ended = await run
            assert ended is not None
            assert ended.error is not None
            assert (ended["outcome"], ended.error["type"]) == (outcome, error), dict(ended)
            assert ended.logs_preview == "begun\n"
            await _works(callers)
            idle(footprint)
        assert server.stop() == 0, server.log()
    gone(footprint)


async def test_of_ready_sandboxes(tmp_path: Path) -> None:
    """Whoever comes next is not given a dead one."""
    footprint = Footprint(tmp_path / "data")
    with Server(tmp_path / "data", ready=4) as server:
        async with server.callers() as callers:
            for choose in (inits, workers, zygotes):
                await _works(callers)
                await _noticed(footprint, choose)
                await asyncio.gather(*(_works(callers) for _ in range(6)))
        idle(footprint, ahead=True)
        assert server.stop() == 0, server.log()
    gone(footprint)


async def test_of_the_zygote_while_a_run_works(tmp_path: Path) -> None:
    """A sandbox needs its zygote no more once it stands."""
    footprint = Footprint(tmp_path / "data")
    with Server(tmp_path / "data") as server:
        async with server.callers() as callers:
            run = callers.run(SHORT_WORK, {"n": 3})
            await callers.until_begun(1)
            kill(zygotes(footprint.look()))
            await _works(callers)
            ended = await run
            assert ended is not None
            assert ended.output == {"n": 3}, dict(ended)
            idle(footprint)


@pytest.mark.parametrize(
    ("rounds", "ready"),
    [(8, 4), pytest.param(200, 0, marks=pytest.mark.long), pytest.param(200, 4, marks=pytest.mark.long)],
)
@pytest.mark.timeout(600)
async def test_at_random_moments(tmp_path: Path, rounds: int, ready: int) -> None:
    data_dir, chance = tmp_path / "data", random.Random(rounds + ready)
    footprint, seen = Footprint(data_dir), collections.Counter[str]()
    with Server(data_dir, ready=ready) as server:
        async with server.callers() as callers:
            for _ in range(rounds):
                runs = [callers.run(BRIEF, {"n": number, "seconds": chance.uniform(0, 0.6)}) for number in range(8)]
                await asyncio.sleep(chance.uniform(0, 0.1))
                found = anything(footprint.look())
                kill(chance.sample(found, min(2, len(found))))
                seen.update(_ended(run) for run in await asyncio.gather(*runs))
                await _works(callers)
            idle(footprint, ahead=ready > 0)
        assert server.stop() == 0, server.log()
    gone(footprint)
    assert contradictions(data_dir) == []
    print(f"{rounds} kills, ready {ready}: {dict(seen)}")


async def _noticed(footprint: Footprint, choose: Choose) -> None:
    """Kill, and wait until the keeper has taken note of it."""
    kill(killed := choose(footprint.look()))
    pids = {process.pid for process in killed}
    async with asyncio.timeout(10):
        while pids.intersection(process.pid for process in footprint.look().processes):
            await asyncio.sleep(0.01)


def _ended(run: Run | None) -> str:
    """How, which must be one of the ways that a killed part explains."""
    assert run is not None, "the server lives"
    how = "completed" if run.error is None else f"{run['outcome']} {run.error['type']}"
    assert how in ("completed", "signal SignalError", "lost SandboxLost"), dict(run)
    return how


async def _works(callers: Callers) -> None:
    run = await callers.run(QUICK, {"n": 5})
    assert run is not None
    assert run.output == {"n": 5}, dict(run)
