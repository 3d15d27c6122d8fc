"""Start-up settles what a dead server left; the sweep removes what time has overtaken."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from skillyard.domain.errors import StoreFault
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.sandbox.spec import Held, Owner
from skillyard.domain.work.record import Lease, Outcome, RunKind, RunRecord, RunStatus
from skillyard.engine import reaper
from skillyard.engine.observer import Fault, Recovered
from skillyard.engine.runs.record import ended as ended_record
from skillyard.engine.table import invoke
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import CODE, Rig, playing
from tests.unit.engine.fakes import blob, result

pytestmark = pytest.mark.anyio


def unfinished(run_id: str) -> RunRecord:
    return RunRecord(run_id, RunKind.CODE, "local", RunStatus.RUNNING, 1.0)


async def test_runs_of_a_dead_server_are_lost_and_their_sandboxes_destroyed(rig: Rig) -> None:
    for number in range(3):
        await rig.app.ports.records.insert(unfinished(f"run_{number}"))
    rig.backend.foreign = [Held("h0", "run_0", Owner.RUN, 5.0), Held("h9", "unknown", Owner.RUN, 0.1)]
    await rig.app.reaper.recover()
    for number in range(3):
        record = await rig.app.ports.records.get(f"run_{number}")
        assert record is not None
        assert (record.status, record.outcome) == (RunStatus.FAILED, Outcome.LOST)
        assert record.error is not None
        assert record.error["type"] == "SandboxLost"
        assert record.ended_at is not None
    assert sorted(rig.backend.destroyed) == ["h0", "h9"]
    assert rig.of(Recovered) == [Recovered(lost_runs=3, destroyed_sandboxes=2)]


async def test_sandboxes_of_live_tasks_stay_and_others_go(rig: Rig) -> None:
    task = replace(unfinished("run_task"), owner=Owner.TASK, lease=Lease("other", "another boot", 5.0))
    await rig.app.ports.records.insert(task)
    rig.backend.foreign = [Held("h2", "nobody", Owner.TASK, 5.0)]
    await rig.app.reaper.recover()
    assert rig.backend.destroyed == ["h2"]
    record = await rig.app.ports.records.get("run_task")
    assert record is not None
    assert (record.status, record.outcome) == (RunStatus.FAILED, Outcome.LOST)
    assert "request" in record.reason


async def test_nothing_to_settle_is_not_worth_a_word(rig: Rig) -> None:
    await rig.app.reaper.recover()
    assert rig.of(Recovered) == []


async def test_old_records_expired_blobs_and_stray_sandboxes_go(rig: Rig) -> None:
    run = await rig.run()
    await rig.call("create_blob", content="x", kind="text/plain")
    rig.backend.foreign = [
        Held("stray", "gone", Owner.RUN, reaper.STRAY_AFTER_S + 1),
        Held("young", "gone", Owner.RUN, 1.0),
        Held("task", "gone", Owner.TASK, 10_000.0),
    ]
    rig.backend.destroyed.clear()
    first = await rig.app.reaper.sweep()
    assert (first.blobs, first.records) == (0, 0)
    assert rig.backend.destroyed == ["stray", "task"]
    assert await rig.app.ports.records.get(run["run_id"]) is not None
    rig.clock.time += 31 * 86400
    await rig.app.reaper.sweep()
    assert await rig.app.ports.records.get(run["run_id"]) is None
    assert await rig.app.ports.blobs.list(None) == []


async def test_records_are_kept_for_ever_where_the_operator_says_so(rig: Rig) -> None:
    await rig.run()
    rig.configure(records={"ttl_s": None})
    rig.clock.time += 10_000 * 86400
    assert (await rig.app.reaper.sweep()).records == 0


async def test_a_principal_keeps_so_many_records_and_loses_none_to_others(rig: Rig) -> None:
    mallory = Principal("mallory", frozenset(Scope))
    params = {"language": "python", "code": CODE}
    others = [(await invoke(rig.app, mallory, "run_code", params))["run_id"] for _ in range(4)]
    own = (await rig.run())["run_id"]
    rig.configure(records={"owner_count": 2})
    assert (await rig.app.reaper.sweep(expire=False)).records == 2
    assert [await rig.app.ports.records.get(run_id) is None for run_id in others] == [True, True, False, False]
    assert await rig.app.ports.records.get(own) is not None
    rig.configure(records={"owner_count": None})
    assert (await rig.app.reaper.sweep()).records == 0


async def test_the_oldest_blobs_of_ended_runs_go_beyond_a_bound(rig: Rig) -> None:
    async def works(process: TwinProcess) -> None:
        process.write(blob(1, "text/plain", b"w" * 1000))
        begun.set()
        await may_end.wait()
        process.write(result({}))

    begun, may_end = asyncio.Event(), asyncio.Event()
    at_work = asyncio.create_task(rig.run(works))
    await begun.wait()
    made = []
    for _ in range(3):
        run = await rig.run(playing(blob(1, "text/plain", b"x" * 1000), result({})))
        made += run["output_blobs"]
    rig.clock.time += 1
    rig.configure(blobs={"made_bytes": 2000})
    assert (await rig.app.reaper.sweep()).blobs == 1
    assert [await rig.app.ports.blobs.stat(blob_id) is None for blob_id in made] == [True, False, False]
    may_end.set()
    [kept] = (await at_work)["output_blobs"]
    assert await rig.app.ports.blobs.stat(kept) is not None
    rig.configure(blobs={"made_bytes": None})
    assert (await rig.app.reaper.sweep()).blobs == 0


async def test_a_sweep_that_fails_is_told_and_tried_again(rig: Rig) -> None:
    class Tired:
        calls = 0

        async def sweep(self) -> int:
            self.calls += 1
            raise StoreFault("the disk is full")

    tired = Tired()
    rig.extra["blobs"] = tired
    rig.configure(sweep_every_s=0.001)
    await rig.app.start()
    while tired.calls < 3:
        await _turn()
    assert {event.where for event in rig.of(Fault)} == {"sweep"}


async def _turn() -> None:
    import asyncio

    await asyncio.sleep(0)


def test_a_lost_record_keeps_what_was_known() -> None:
    record = replace(unfinished("run_1"), skill="a.b", limits={"pids": 1})
    ended = ended_record(record, reaper.LOST, 5.0)
    assert (ended.skill, ended.limits, ended.ended_at) == ("a.b", {"pids": 1}, 5.0)
