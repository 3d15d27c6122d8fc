"""Runs that are answered while the kernel still takes their sandbox down (SECURITY.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from skillyard.domain.errors import SandboxFault
from skillyard.domain.work.record import Ending, Outcome, RunStatus, Usage
from skillyard.engine import lending
from skillyard.engine.observer import Fault, RunEnded
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import result

pytestmark = pytest.mark.anyio
BOUND_S = 60


async def parts(process: TwinProcess) -> Ending:
    process.write(result({"ok": True}))
    return Ending(Outcome.EXIT, 0, parting=True)


@pytest.fixture
def gone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Until it is set, no sandbox is gone."""
    event, destroy = asyncio.Event(), rig.backend.destroy

    async def held_up(handle: str) -> Usage:
        await event.wait()
        return await destroy(handle)

    monkeypatch.setattr(rig.backend, "destroy", held_up)
    return event


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_the_answer_does_not_wait_and_the_place_does(rig: Rig, gone: asyncio.Event) -> None:
    run = await asyncio.wait_for(rig.run(parts), BOUND_S)
    record = await rig.record(run)
    assert (run["status"], run["output"], record.status) == ("completed", {"ok": True}, RunStatus.COMPLETED)
    assert rig.app.active == {}
    assert len(rig.of(RunEnded)) == 1
    assert (len(rig.backend.held), rig.app.admission.running) == (1, 1)
    assert "gone_ms" not in record.usage
    rig.clock.time += 0.25
    gone.set()
    await until(lambda: not rig.app.admission.running)
    assert rig.backend.held == {}
    assert (await rig.record(run)).usage == {**record.usage, "gone_ms": 250.0}


async def test_the_next_run_has_no_place_before_the_sandbox_is_gone(rig: Rig, gone: asyncio.Event) -> None:
    rig.configure(admission={"running": 1})
    await asyncio.wait_for(rig.run(parts), BOUND_S)
    second = asyncio.create_task(rig.run(parts))
    await until(lambda: rig.app.admission.waiting)
    assert len(rig.backend.started) == 1
    gone.set()
    assert (await asyncio.wait_for(second, BOUND_S))["status"] == "completed"


async def test_a_teardown_that_hangs_is_told_and_its_place_is_not_used_again(
    rig: Rig, gone: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "PATIENCE_S", 0.01)
    run = await asyncio.wait_for(rig.run(parts), BOUND_S)
    await until(lambda: rig.of(Fault))
    (fault,) = rig.of(Fault)
    assert (fault.where, fault.run_id, type(fault.error)) == ("destroy", run["run_id"], TimeoutError)
    gone.set()
    await rig.app.tasks.drain()
    assert rig.app.admission.running == 1
    assert "gone_ms" not in (await rig.record(run)).usage


@pytest.mark.parametrize("error", [SandboxFault("it cannot be ended"), RuntimeError("a bug")])
async def test_a_teardown_that_fails_is_told_and_its_place_is_not_used_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(_: str) -> Usage:
        raise error

    monkeypatch.setattr(rig.backend, "destroy", fail)
    await asyncio.wait_for(rig.run(parts), BOUND_S)
    await until(lambda: rig.of(Fault))
    assert [(fault.where, fault.error) for fault in rig.of(Fault)] == [("destroy", error)]
    await rig.app.tasks.drain()
    assert rig.app.admission.running == 1


async def test_a_run_with_a_network_is_answered_when_nothing_of_it_is_left(rig: Rig, gone: asyncio.Event) -> None:
    """What it sent until then is in its record."""
    rig.with_network(rules=["*.x.com"], run_code=["*.x.com"])
    rig.backend.script = parts
    run = asyncio.create_task(rig.run(parts))
    await until(lambda: [p for held in rig.backend.held.values() for p in held.processes.values() if p.ended.done()])
    done, _ = await asyncio.wait([run], timeout=0.1)
    assert not done
    gone.set()
    assert (await asyncio.wait_for(run, BOUND_S))["status"] == "completed"


async def test_an_engine_that_closes_waits_until_nothing_is_left(rig: Rig, gone: asyncio.Event) -> None:
    await asyncio.wait_for(rig.run(parts), BOUND_S)
    closing = asyncio.create_task(rig.app.close())
    done, _ = await asyncio.wait([closing], timeout=0.1)
    assert not done
    gone.set()
    await asyncio.wait_for(closing, BOUND_S)
    assert rig.backend.held == {}
