"""kill -9 of the keeper in the middle of runs: all it held is gone, records say lost, the same server works on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from skillyard.client.run import Run
from skillyard.config.backends import NativeSettings
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.sandbox.native.backend import NativeBackend
from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.programs import ENDLESS, FOREVER, QUICK
from tests.crash.server import SMALL, Callers, Server, end_kept
from tests.crash.store import contradictions

pytestmark = pytest.mark.anyio


async def test_in_the_middle_of_runs(tmp_path: Path) -> None:
    await _killed(tmp_path / "data", 8, times=1)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_in_the_middle_of_fifty_runs(tmp_path: Path) -> None:
    await _killed(tmp_path / "data", 50, times=3)


@pytest.mark.parametrize("times", [4, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.timeout(300)
async def test_at_random_moments(tmp_path: Path, times: int) -> None:
    """Runs come all the time; each ends as completed or as lost, and those after the kill complete."""
    data_dir, chance = tmp_path / "data", random.Random(times)
    footprint = Footprint(data_dir)
    with Server(data_dir, ready=2) as server:
        async with server.callers() as callers:
            for _ in range(times):
                runs = [callers.run(QUICK, {"n": number}) for number in range(12)]
                await asyncio.sleep(chance.uniform(0, 0.1))
                footprint.kill_keeper()
                for run in await asyncio.gather(*runs):
                    _check_completed_or_lost(run)
                await _works(callers)
            idle(footprint, ahead=True)
        assert server.stop() == 0, server.log()
    gone(footprint)
    assert contradictions(data_dir) == []


async def test_no_name_of_the_old_one_is_a_name_of_the_next(tmp_path: Path) -> None:
    """Who still holds a handle of the old one's, to destroy it or attach to it, must not get another's sandbox."""
    footprint, backend, handles = Footprint(tmp_path), NativeBackend(tmp_path / "run", NativeSettings(ready=0)), []
    try:
        for _ in range(2):
            handles.append((await backend.create(SandboxSpec(), "the-key")).handle)
            footprint.kill_keeper()
            until(lambda: not footprint.keepers(), 10, "the keeper is gone")
        sandbox = await backend.create(SandboxSpec(), "the-key")
        for handle in handles:
            await backend.destroy(handle)
        assert [held.handle for held in await backend.survey()] == [sandbox.handle]
    finally:
        await backend.close()
    gone(footprint)


async def test_its_groups_go_wherever_they_are(tmp_path: Path) -> None:
    """The next one may run elsewhere in the hierarchy, and looks beside its own groups only."""
    footprint, backend = Footprint(tmp_path), NativeBackend(tmp_path / "run", NativeSettings(ready=0))
    try:
        await backend.create(SandboxSpec(), "the-key")
        note = tmp_path / "run" / "groups"
        parents = [Path(line) for line in note.read_text().splitlines()]
        if not parents:
            pytest.skip("this host lets us make no control groups")
        footprint.kill_keeper()
        until(lambda: not footprint.keepers(), 10, "the keeper is gone")
        place = parents[0].with_name(f"elsewhere-{os.urandom(4).hex()}")
        (place / parents[0].name).mkdir(parents=True)
        try:
            note.write_text(f"{place / parents[0].name}\n")
            await backend.create(SandboxSpec(), "the-key")
            assert list(place.glob("skillyard-*")) == []
        finally:
            for left in (*place.glob("skillyard-*"), place):
                left.rmdir()
    finally:
        await backend.close()
    gone(footprint)


async def test_its_death_while_the_server_is_idle_is_not_noticed(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Server(data_dir) as server:
        async with server.callers() as callers:
            await _works(callers)
            footprint.kill_keeper()
            await _works(callers)
        footprint.kill_keeper()
        assert server.stop() == 0, server.log()
    left = footprint.look()
    assert not left.processes, left.lines()


@pytest.mark.long
async def test_a_keeper_that_hangs_is_no_reason_for_a_stop_to_hang(tmp_path: Path) -> None:
    """SIGSTOP stands for a keeper in trouble: the server ends within a bound, and says so."""
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Server(data_dir) as server:
        async with server.callers() as callers:
            await _works(callers)
        [keeper] = footprint.keepers()
        os.kill(keeper, signal.SIGSTOP)
        try:
            assert server.stop() != 0
        finally:
            footprint.kill_keeper()
        assert "the keeper did not end" in server.log().splitlines()[-1]


async def _killed(data_dir: Path, count: int, *, times: int) -> None:
    footprint = Footprint(data_dir)
    with Server(data_dir) as server:
        async with server.callers() as callers:
            for _ in range(times):
                await _runs_lose_their_keeper(callers, footprint, count)
        assert server.stop() == 0, server.log()
    gone(footprint)
    assert contradictions(data_dir) == []


async def _runs_lose_their_keeper(callers: Callers, footprint: Footprint, count: int) -> None:
    runs = [callers.run(ENDLESS[number % len(ENDLESS)]) for number in range(count)]
    await callers.until_begun(count)
    assert len(footprint.look().sandboxed) >= 2 * count
    footprint.kill_keeper()
    for run in await asyncio.gather(*runs):
        assert run is not None, "the server lives"
        assert run.error is not None
        assert (run.status, run["outcome"], run.error["type"]) == ("failed", "lost", "SandboxLost"), dict(run)
    await _works(callers)
    idle(footprint)
    assert await callers.records("running") == []


async def _works(callers: Callers) -> None:
    run = await callers.run(QUICK, {"n": 5})
    assert run is not None
    assert run.output == {"n": 5}, dict(run)


def _check_completed_or_lost(run: Run | None) -> None:
    assert run is not None, "the server lives"
    if not run.ok:
        assert run.error is not None
        assert (run["outcome"], run.error["type"]) == ("lost", "SandboxLost"), dict(run)


def test_kept_work_of_a_test_that_failed_is_ended(tmp_path: Path) -> None:
    """Else a detached run and its keeper stay on the host, and their control groups."""
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Server(data_dir) as server, server.client() as client:
        run = client.call("run_code", {"language": "python", "code": FOREVER, "limits": SMALL, "detach": True})
        until(lambda: footprint.look().sandboxed, 30, f"{run} has a sandbox")
        server.kill()
    assert footprint.keepers()
    end_kept()
    gone(footprint)
