"""What a host does to an engine's bookkeeping: a disk too full for a run's end, a clock that is set while it works."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skillyard.domain.errors import StoreFault
from skillyard.domain.work.record import Outcome, RunRecord, RunStatus
from skillyard.engine import reaper
from skillyard.engine.observer import Fault, Recovered
from skillyard.ports.records import RecordStore
from tests.unit.engine.conftest import ManualClock, Rig

pytestmark = pytest.mark.anyio


class FullDisk:
    """Records that fail at one step while ``refuses`` names it."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self.refuses = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    async def insert(self, record: RunRecord) -> None:
        self._check("insert")
        await self._records.insert(record)

    async def finish(self, record: RunRecord) -> bool:
        self._check("finish")
        return await self._records.finish(record)

    def _check(self, step: str) -> None:
        if step == self.refuses:
            raise StoreFault("the database has no room left on its disk; free some space")


@pytest.fixture
async def disk(rig: Rig) -> FullDisk:
    disk = rig.extra["records"] = FullDisk(rig.extra["records"])
    rig.configure()
    await rig.app.start()
    return disk


@pytest.mark.parametrize("step", ["insert", "finish"])
async def test_a_run_that_cannot_be_recorded_says_so_and_is_not_waited_for(rig: Rig, disk: FullDisk, step: str) -> None:
    disk.refuses = step
    with pytest.raises(StoreFault, match="free some space"):
        await rig.run()
    assert rig.app.active == {}
    assert rig.app.admission.running == 0
    async with asyncio.timeout(30):
        await rig.app.close()


async def test_its_record_is_settled_when_there_is_room_again(rig: Rig, disk: FullDisk) -> None:
    disk.refuses = "finish"
    with pytest.raises(StoreFault):
        await rig.run()
    (record,) = await disk.unfinished()
    disk.refuses = ""
    await rig.app.reaper.settle()
    settled = await disk.get(record.run_id)
    assert settled is not None
    assert (settled.status, settled.outcome) == (RunStatus.FAILED, Outcome.LOST)
    assert "could not be recorded" in settled.summary
    assert rig.of(Recovered) == [Recovered(1, 0)]


async def test_what_works_is_not_settled(rig: Rig, disk: FullDisk) -> None:
    gate = asyncio.Event()

    async def waits(_: object) -> None:
        await gate.wait()

    run = asyncio.ensure_future(rig.run(waits))
    async with asyncio.timeout(30):
        while not await disk.unfinished():
            await asyncio.sleep(0)
    await rig.app.reaper.settle()
    (record,) = await disk.unfinished()
    assert record.run_id in rig.app.active
    gate.set()
    await run


class TwoClocks(ManualClock):
    """A wall clock that can be set, and a steady one."""

    def __init__(self) -> None:
        super().__init__()
        self.set_by = 0.0

    def now(self) -> float:
        return self.time + self.set_by


async def test_a_clock_set_forward_does_not_make_everything_expire(rig: Rig) -> None:
    clock = TwoClocks()
    rig.clock = rig.extra["blobs"]._clock = clock
    rig.configure(sweep_every_s=0.001)
    await rig.app.start()
    run = await rig.run()
    clock.set_by = 50 * 365 * 86400.0
    async with asyncio.timeout(30):
        while not [fault for fault in rig.of(Fault) if isinstance(fault.error, reaper.ClockJumped)]:
            await asyncio.sleep(0)
        clock.set_by = 0.0
        swept = len(rig.of(Fault))
        for _ in range(200):
            await asyncio.sleep(0)
    assert await rig.app.ports.records.get(run["run_id"]) is not None
    assert len(rig.of(Fault)) == swept, "set back, it is no news"
    clock.time += 31 * 86400
    async with asyncio.timeout(30):
        while await rig.app.ports.records.get(run["run_id"]) is not None:
            await asyncio.sleep(0)


async def test_a_deadline_does_not_hear_of_a_clock_that_is_set(rig: Rig) -> None:
    clock = TwoClocks()
    rig.clock = clock
    await rig.app.close()  # with its first sweep, and so below: it goes on beside the run, by the clock as it was
    rig.configure(records={"ttl_s": None})
    await rig.app.start()

    async def sets_it_back(_: object) -> None:
        clock.set_by = -10 * 365 * 86400.0
        clock.time += 2.0

    run = await rig.run(sets_it_back)
    record = await rig.record(run)
    assert record.status is not RunStatus.RUNNING
    assert record.usage is None or (record.usage.get("queued_ms") or 0) >= 0
