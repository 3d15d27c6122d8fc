"""Detached runs whose connection to their sandbox breaks: only those whose sandbox is gone are lost."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.domain.work.record import Outcome, RunStatus
from skillyard.engine.observer import LeaseLost, RunResumed
from skillyard.engine.runs.detached import ATTEMPTS
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import FakeProcess
from tests.unit.engine.runs.resuming import Work, check_work, ended, idle, only_record

pytestmark = pytest.mark.anyio


async def _working(rig: Rig) -> tuple[Work, str, FakeProcess]:
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


async def test_a_connection_that_breaks_with_its_sandbox_is_lost(rig: Rig) -> None:
    _, run_id, process = await _working(rig)
    rig.backend.held.clear()
    process.cut_off()
    record = await ended(rig, run_id)
    assert (record.outcome, rig.of(RunResumed)) == (Outcome.LOST, [])
