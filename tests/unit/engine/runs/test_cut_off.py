"""Detached runs whose connection to their sandbox breaks, or whose program dies: only lost sandboxes are lost."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.domain.work.record import Ending, Outcome, RunStatus
from skillyard.engine.observer import LeaseLost, RunResumed
from skillyard.engine.runs.detached import ATTEMPTS
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig
from tests.unit.engine.runs.resuming import Work, check_work, ended, idle, killed, next_server, only_record

pytestmark = pytest.mark.anyio


async def _working(rig: Rig) -> tuple[Work, str, TwinProcess]:
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    [sandbox] = rig.backend.held.values()
    return work, run["run_id"], sandbox.processes[run["run_id"]]


async def test_a_connection_that_breaks_is_made_again(rig: Rig) -> None:
    work, run_id, process = await _working(rig)
    process.cut_off()
    async with asyncio.timeout(10):
        while not rig.of(RunResumed):
            await asyncio.sleep(0)
    work.go_on.set()
    await check_work(rig, await ended(rig, run_id))
    assert work.started == 1
    await idle(rig)


async def test_a_connection_that_breaks_all_the_time_is_made_again_later(rig: Rig) -> None:
    work, run_id, process = await _working(rig)
    process.cut_off(ATTEMPTS + 2)
    async with asyncio.timeout(10):
        while len(rig.of(LeaseLost)) < ATTEMPTS + 1:
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(rig.of(RunResumed)) == ATTEMPTS
    assert (await only_record(rig)).status is RunStatus.RUNNING
    await rig.app.detached.renew()
    work.go_on.set()
    await check_work(rig, await ended(rig, run_id))


@pytest.mark.parametrize("turns", range(6))
async def test_connections_that_break_at_about_the_same_time_are_all_made_again(rig: Rig, turns: int) -> None:
    """One run is left while another pass of those that were left is at work."""
    works, processes = [], []
    for _ in range(4):
        works.append(Work())
        run = await rig.run(works[-1], detach=True)
        await asyncio.wait_for(works[-1].half.wait(), 10)
        processes += [
            sandbox.processes[run["run_id"]]
            for sandbox in rig.backend.held.values()
            if run["run_id"] in sandbox.processes
        ]
    for process in processes:
        process.cut_off()
        for _ in range(turns):
            await asyncio.sleep(0)
    async with asyncio.timeout(10):
        while len(rig.of(LeaseLost)) < len(works):
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    await rig.app.detached.renew()
    for work in works:
        work.go_on.set()
    for process in processes:
        assert (await ended(rig, process.id)).status is RunStatus.COMPLETED
    await idle(rig)


async def test_a_connection_that_breaks_with_its_sandbox_is_lost(rig: Rig) -> None:
    _, run_id, process = await _working(rig)
    rig.backend.held.clear()
    process.cut_off()
    record = await ended(rig, run_id)
    assert (record.outcome, rig.of(RunResumed)) == (Outcome.LOST, [])


async def test_program_that_dies_has_its_true_outcome(rig: Rig) -> None:
    half, go_on = asyncio.Event(), asyncio.Event()

    async def dies(process: TwinProcess) -> None:
        half.set()
        await go_on.wait()
        process.end(Ending(Outcome.SIGNAL, signal=11))

    run = await rig.run(dies, detach=True)
    await asyncio.wait_for(half.wait(), 10)
    await killed(rig)
    await next_server(rig)
    go_on.set()
    record = await ended(rig, run["run_id"])
    assert (record.status, record.outcome) == (RunStatus.FAILED, Outcome.SIGNAL)
