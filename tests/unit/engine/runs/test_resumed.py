"""Detached runs whose server ends at any step: the next one goes on, and nothing is started twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.errors import StoreFault
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.sandbox.spec import Held, Owner
from skillyard.domain.secret import Secret
from skillyard.domain.skill.skill import Needs, SecretNeed
from skillyard.domain.work.record import Ending, Lease, Outcome, RunRecord, RunStatus
from skillyard.engine.observer import Fault, LeaseLost, RunResumed
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import ManualClock, Rig
from tests.unit.engine.fakes import a_skill, result
from tests.unit.engine.network.fake_gate import FakeGate
from tests.unit.engine.runs.resuming import Deadly, Work, check_work, ended, idle, killed, next_server, only_record

pytestmark = pytest.mark.anyio

STEPS = [
    ("records", "change", 1, True, "queued"),
    ("records", "change", 1, False, "starting"),
    ("backend", "create", 1, True, "starting"),
    ("backend", "create", 1, False, "starting"),
    ("records", "change", 2, True, "starting"),
    ("records", "change", 2, False, "running"),
    ("blobs", "create", 1, True, "running"),
    ("blobs", "create", 1, False, "running"),
    ("blobs", "create", 2, True, "running"),
    ("blobs", "create", 3, True, "running"),
    ("blobs", "create", 3, False, "running"),
    ("records", "change", 3, True, "running"),
    ("records", "change", 3, False, "running"),
    ("backend", "destroy", 1, True, "running"),
    ("backend", "destroy", 1, False, "running"),
    ("records", "finish", 1, True, "running"),
    ("records", "finish", 1, False, "completed"),
]


def _deadly(rig: Rig, port: str, method: str, nth: int, before: bool) -> Deadly:
    """Puts a deadly port before the real one; the next server has the real one again."""
    if port == "backend":
        deadly = Deadly(rig.backend, method, nth, before=before)
        offer = rig.app.backends.default
        assert offer is not None
        offer.backend = deadly
        return deadly
    real = rig.extra[port]
    deadly = rig.extra[port] = Deadly(real, method, nth, before=before)
    rig.configure()
    rig.extra[port] = real
    return deadly


@pytest.mark.parametrize(("port", "method", "nth", "before", "status"), STEPS)
async def test_server_ends_at_a_step(rig: Rig, port: str, method: str, nth: int, before: bool, status: str) -> None:
    work = Work()
    deadly = _deadly(rig, port, method, nth, before)
    run = await rig.run(work, detach=True)
    work.go_on.set()
    await asyncio.wait_for(deadly.reached.wait(), 10)
    await killed(rig)
    assert (await only_record(rig)).status.value == status
    await next_server(rig)
    await check_work(rig, await ended(rig, run["run_id"]))
    assert work.started == 1
    await idle(rig)


async def test_resumed_in_the_middle_of_its_output(rig: Rig) -> None:
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    for _ in range(3):
        await killed(rig)
        await next_server(rig)
        assert rig.app.admission.running == 1, "it has its place again"
        page = await rig.call("runs.logs", run_id=run["run_id"], wait_ms=1000)
        assert page["content"] == "first\n"
    work.go_on.set()
    await check_work(rig, await ended(rig, run["run_id"]))
    assert [event.status for event in rig.of(RunResumed)] == ["running"] * 3
    events = (await rig.call("runs.events", run_id=run["run_id"]))["events"]
    kinds = [event["kind"] for event in events]
    assert kinds == ["queued", "starting", "running", "resumed", "resumed", "resumed", "completed"]


async def test_sandbox_that_is_gone_is_lost(rig: Rig) -> None:
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    await killed(rig)
    await rig.backend.close()
    await next_server(rig)
    record = await ended(rig, run["run_id"])
    assert (record.status, record.outcome) == (RunStatus.FAILED, Outcome.LOST)
    assert record.error is not None
    assert record.error["type"] == "SandboxLost"
    assert work.started == 1


async def test_cancel_before_the_end_of_the_server_is_honoured_after_it(rig: Rig) -> None:
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    deadly = Deadly(rig.app.active[run["run_id"]].process, "kill", before=True)
    rig.app.active[run["run_id"]].process = deadly
    asking = asyncio.create_task(rig.call("runs.cancel", run_id=run["run_id"], reason="enough"))
    await asyncio.wait_for(deadly.reached.wait(), 10)
    asking.cancel()
    await killed(rig)
    await next_server(rig)
    record = await ended(rig, run["run_id"])
    assert record.outcome is Outcome.CANCELLED
    assert "enough" in record.reason
    assert record.logs_preview == "first\n"


async def test_cancel_of_a_run_that_ends_meanwhile(rig: Rig) -> None:
    """Its last record is being written while the cancel request waits for its turn."""
    real = rig.extra["records"]
    finishing, go_on = asyncio.Event(), asyncio.Event()

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        async def finish(self, record: RunRecord) -> bool:
            finishing.set()
            await go_on.wait()
            return bool(await real.finish(record))

    rig.extra["records"] = Slow()
    rig.configure()
    work = Work()
    work.go_on.set()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(finishing.wait(), 10)
    asking = asyncio.create_task(rig.call("runs.cancel", run_id=run["run_id"]))
    while rig.app.active[run["run_id"]].cancel_reason is None:
        await asyncio.sleep(0)
    go_on.set()
    answer = await asyncio.wait_for(asking, 10)
    assert answer["cancelled"] is False
    assert answer["run"]["outcome"] == "exit"


async def test_cancel_of_a_queued_run(rig: Rig) -> None:
    rig.configure(admission={"running": 1})
    rig.backend.script = Work()
    first = await rig.run(detach=True)
    second = await rig.run(detach=True)
    answer = await rig.call("runs.cancel", run_id=second["run_id"])
    assert answer["cancelled"] is True
    assert answer["run"]["outcome"] == "cancelled"
    rig.backend.script.go_on.set()
    await check_work(rig, await ended(rig, first["run_id"]))
    assert len(rig.backend.started) == 1


async def test_queued_runs_wait_again(rig: Rig) -> None:
    rig.configure(admission={"running": 1})
    work = Work()
    runs = [await rig.run(work, detach=True) for _ in range(3)]
    await asyncio.wait_for(work.half.wait(), 10)
    await killed(rig)
    work.go_on.set()
    rig.configure()
    await rig.app.start()
    records = [await ended(rig, run["run_id"]) for run in runs]
    assert [record.status for record in records] == [RunStatus.COMPLETED] * 3
    assert work.started == 3


async def test_shutdown_leaves_it_at_work(rig: Rig) -> None:
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    async with asyncio.timeout(10):
        await rig.app.close(grace_s=300)
    assert (await only_record(rig)).status is RunStatus.RUNNING
    assert len(rig.backend.held) == 1
    await next_server(rig)
    work.go_on.set()
    await check_work(rig, await ended(rig, run["run_id"]))


async def test_secret_is_read_again_to_be_taken_out(rig: Rig) -> None:
    record = await _with_secret(rig, "hunter2-hunter2", "store:1")
    assert record.output == {"told": "[redacted] "}
    assert record.logs_preview == "it is [redacted]\n"


@pytest.mark.parametrize("later", ["", "rotated-rotated"])
async def test_old_value_is_taken_out_after_it_was_rotated_or_deleted(rig: Rig, later: str) -> None:
    value = "hunter2-hunter2"
    record = await _with_secret(rig, value, "store:1", lambda: rig.secrets.values.update(KEY=later), also=later)
    assert record.output == {"told": f"[redacted] {'[redacted]' if later else ''}"}
    assert record.logs_preview == "it is [redacted]\n"
    async with asyncio.timeout(10):
        while await rig.secrets.keeping():
            await asyncio.sleep(0)


async def test_values_of_ended_runs_are_swept(rig: Rig) -> None:
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    for run_id in (run["run_id"], "run_gone"):
        await rig.secrets.keep(run_id, ["a value"])
    await rig.app.reaper.sweep()
    assert set(await rig.secrets.keeping()) == {run["run_id"]}
    await rig.secrets.keep("run_gone", ["a value"])
    await killed(rig)
    await next_server(rig)
    assert set(await rig.secrets.keeping()) == {run["run_id"]}
    work.go_on.set()
    await ended(rig, run["run_id"])


async def test_values_that_cannot_be_kept_fail_the_run(rig: Rig) -> None:
    async def keep(run_id: str, values: Sequence[str]) -> None:
        raise StoreFault("no space left")

    rig.secrets.keep = keep  # type: ignore[method-assign]
    rig.skills.add(a_skill("a.b", needs=Needs(secrets=(SecretNeed("KEY"),))))
    rig.secrets.values = {"KEY": "hunter2-hunter2"}
    run = await rig.call("execute_skill", name="a.b", detach=True)
    record = await ended(rig, run["run_id"])
    assert record.error is not None
    assert (record.error["type"], rig.backend.started) == ("MissingSecret", [])


@pytest.mark.parametrize("later", [None, "store:2"])
async def test_output_is_withheld_when_the_secret_is_another(rig: Rig, later: str | None) -> None:
    """Of an earlier version of skillyard, which kept no values."""
    record = await _with_secret(rig, "hunter2-hunter2", later, rig.secrets._given.clear)
    assert record.status is RunStatus.FAILED
    assert record.outcome is Outcome.EXIT
    assert record.error is not None
    assert record.error["type"] == "OutputWithheld"
    assert "store:1" in record.error["message"]
    assert "hunter2" not in repr(record)
    assert (record.output, record.logs_blob, record.logs_preview) == (None, None, "")


async def _with_secret(
    rig: Rig, value: str, later: str | None, between: Callable[[], None] = lambda: None, also: str = ""
) -> Any:
    """Runs a skill that tells its secret, and ``also``. After its server's end the secret has the version ``later``."""
    rig.skills.add(a_skill("a.b", needs=Needs(secrets=(SecretNeed("KEY"),))))
    rig.secrets.values = {"KEY": value}
    half, go_on = asyncio.Event(), asyncio.Event()

    async def tells(process: TwinProcess) -> None:
        process.log(f"it is {value}\n".encode())
        half.set()
        await go_on.wait()
        process.write(result({"told": f"{value} {also}"}))

    rig.backend.script = tells
    run = await rig.call("execute_skill", name="a.b", detach=True)
    await asyncio.wait_for(half.wait(), 10)
    await killed(rig)
    between()
    plain = rig.secrets.find

    async def find(name: str, project: str, skill: str) -> Secret | None:
        found = await plain(name, project, skill)
        return None if found is None or later is None else replace(found, version=later)

    rig.secrets.find = find  # type: ignore[method-assign]
    await next_server(rig)
    page = await rig.call("runs.logs", run_id=run["run_id"], wait_ms=200)
    assert value not in page["content"]
    go_on.set()
    return await ended(rig, run["run_id"])


async def test_run_that_another_server_took_is_left_alone(rig: Rig) -> None:
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    record = await only_record(rig)
    theirs = replace(record, lease=Lease("other", rig.clock.boot(), rig.clock.boottime() + 60))
    assert await rig.app.ports.records.change(theirs, 1.0) is not None
    await rig.app.detached.renew()
    async with asyncio.timeout(10):
        while rig.app.active:
            await asyncio.sleep(0)
    assert [event.run_id for event in rig.of(LeaseLost)] == [run["run_id"]]
    assert len(rig.backend.held) == 1
    await rig.app.reaper.settle()
    assert rig.app.active == {}, "the other's lease is in force"
    rig.clock.time += 61
    await rig.app.reaper.settle()
    work.go_on.set()
    await check_work(rig, await ended(rig, run["run_id"]))


async def test_driver_that_lost_its_run_writes_nothing(rig: Rig) -> None:
    work = Work()
    await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    record = await only_record(rig)
    theirs = replace(record, lease=Lease("other", rig.clock.boot(), rig.clock.boottime() + 60))
    written = await rig.app.ports.records.change(theirs, 1.0)
    work.go_on.set()
    async with asyncio.timeout(10):
        while rig.app.active:
            await asyncio.sleep(0)
    assert await only_record(rig) == written
    assert len(rig.backend.held) == 1, "the other server's sandbox"
    assert len(rig.of(LeaseLost)) == 1


async def test_leases_are_renewed_together_and_expire_by_boot_time(rig: Rig) -> None:
    work = Work()
    await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    before = (await only_record(rig)).lease
    assert before is not None
    rig.clock.time += 30
    await rig.app.detached.renew()
    after = (await only_record(rig)).lease
    assert after == replace(before, until=before.until + 30)
    work.go_on.set()


@pytest.mark.parametrize("port", ["records", "blobs"])
async def test_store_that_fails_lets_a_sweep_go_on_later(rig: Rig, port: str) -> None:
    work = Work()
    broken = rig.extra[port] = Broken(rig.extra[port])
    rig.configure()
    await rig.app.start()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    broken.broken = True
    work.go_on.set()
    await _left(rig)
    await rig.app.detached.renew()
    await _left(rig)
    broken.broken = False
    assert (await only_record(rig)).status is RunStatus.RUNNING
    await rig.app.detached.renew()
    await check_work(rig, await ended(rig, run["run_id"]))


async def _left(rig: Rig) -> None:
    async with asyncio.timeout(10):
        while rig.app.active:
            await asyncio.sleep(0)


class Broken:
    """A store that can be read and not written."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)

        async def call(*args: Any, **more: Any) -> Any:
            if self.broken:
                raise StoreFault("the database is locked")
            return await real(*args, **more)

        return call if name in ("change", "finish", "renew", "create") else real


async def test_wall_clock_that_is_set_changes_nothing(rig: Rig) -> None:
    class Set(ManualClock):
        by = 0.0

        def now(self) -> float:
            return self.time + self.by

    clock = Set()
    rig.clock = clock
    rig.configure()
    await rig.app.start()
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    for by in (-10 * 365 * 86400.0, 50 * 365 * 86400.0):
        clock.by = by
        await rig.app.detached.renew()
        await rig.app.reaper.settle()
        await killed(rig)
        await next_server(rig)
    clock.by = 0.0
    assert rig.of(LeaseLost) == []
    work.go_on.set()
    await check_work(rig, await ended(rig, run["run_id"]))


async def test_stray_sandboxes_of_ended_runs_go(rig: Rig) -> None:
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    rig.backend.foreign = [Held("old", "run_gone", Owner.TASK, 100.0), Held("mine", run["run_id"], Owner.TASK, 100.0)]
    await rig.app.reaper.sweep()
    assert rig.backend.destroyed == ["old"]
    rig.backend.foreign = []
    work.go_on.set()
    await ended(rig, run["run_id"])


async def test_refused_run_has_a_failed_record(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b", needs=Needs(secrets=(SecretNeed("KEY"),))))
    run = await rig.call("execute_skill", name="a.b", detach=True)
    record = await ended(rig, run["run_id"])
    assert record.status is RunStatus.FAILED
    assert record.error is not None
    assert record.error["type"] == "MissingSecret"


async def _networked(rig: Rig) -> tuple[FakeGate, Work, str]:
    gate = rig.with_network(rules=(parse_rule("api.x.com"),), run_code=(parse_rule("api.x.com"),))
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    gate.last.connect("api.x.com", 443, 10, 20)
    gate.last.connect("evil.x.com", 443)
    return gate, work, run["run_id"]


async def test_network_goes_on_with_its_log(rig: Rig) -> None:
    gate, work, run_id = await _networked(rig)
    await killed(rig)
    await next_server(rig)
    gate.last.connect("api.x.com", 80)
    page = await rig.call("runs.logs", run_id=run_id, wait_ms=1000)
    assert page["content"] == "first\n"
    changed = await rig.call("runs.set_network", run_id=run_id, network=["!*"])
    assert changed["run"]["network"]["changes"]
    work.go_on.set()
    record = await ended(rig, run_id)
    await check_work(rig, record)
    assert record.network is not None
    assert [c["host"] for c in record.network["connections"]] == ["api.x.com", "evil.x.com", "api.x.com"]
    assert record.network["complete"]
    assert gate.last.closes == 1


async def test_run_goes_on_without_the_session_of_its_network(rig: Rig) -> None:
    gate, work, run_id = await _networked(rig)
    await rig.app.history.keep_networks()
    await killed(rig)
    gate.kept.clear()
    await next_server(rig)
    work.go_on.set()
    record = await ended(rig, run_id)
    await check_work(rig, record)
    assert record.network is not None
    assert [c["host"] for c in record.network["connections"]] == ["api.x.com", "evil.x.com"]
    assert not record.network["complete"]
    assert [fault.where for fault in rig.of(Fault)] == ["gate"]


async def test_sessions_of_ended_runs_are_discarded(rig: Rig) -> None:
    gate, work, run_id = await _networked(rig)
    gate.kept.add("run_of_long_ago")
    await killed(rig)
    await next_server(rig)
    assert gate.kept == {run_id}
    work.go_on.set()
    await ended(rig, run_id)


async def test_program_that_its_keeper_lost_is_lost(rig: Rig) -> None:
    work = Work()
    run = await rig.run(work, detach=True)
    await asyncio.wait_for(work.half.wait(), 10)
    [sandbox] = rig.backend.held.values()
    sandbox.processes[run["run_id"]].end(Ending(Outcome.LOST, reason="its init ended"))
    record = await ended(rig, run["run_id"])
    assert record.outcome is Outcome.LOST
    assert rig.backend.held == {}
