"""Runs whose program begins with their sandbox: when their record is written, and what is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from skillyard.domain.errors import StoreFault
from skillyard.domain.sandbox.guarantees import Probe
from skillyard.domain.sandbox.spec import SandboxSpec, Start
from skillyard.domain.work.record import Outcome, RunRecord, RunStatus
from skillyard.engine.observer import RunStarted
from skillyard.ports.sandbox import Launched
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import result

pytestmark = pytest.mark.anyio


async def test_a_program_that_was_told_of_late_began_before_that(rig: Rig) -> None:
    """A backend may tell of a launch together with its end."""
    probe = await rig.backend.probe()
    launches(rig, probe, ago_s=3600.0)
    await rig.app.backends.start()
    record = await rig.record(await rig.run())
    [started] = rig.of(RunStarted)
    assert -3600_000 <= started.created_ms < 0, "this one, by an hour before its request"
    assert record.started_at is not None
    assert record.ended_at is not None
    assert record.ended_at - record.started_at >= 3600


def launches(rig: Rig, probe: Probe, *, ago_s: float = 0.0) -> list[str]:
    """Lets the backend start programs with their sandboxes. Returns the steps that were taken.

    A step is ``asked``, before anything was awaited, and ``stored``, with the status.
    """
    backend, records, steps = rig.backend, rig.app.ports.records, []

    def launch(spec: SandboxSpec, key: str, first: Start) -> Coroutine[Any, Any, Launched]:
        steps.append("asked")
        return launched(spec, key, first)

    async def launched(spec: SandboxSpec, key: str, first: Start) -> Launched:
        sandbox = await backend.create(spec, key)
        process = await sandbox.start(first.program, id=first.id, timeout_ms=first.timeout_ms, streams=first.streams)
        if over := ago_s > 0:
            async with asyncio.timeout(1):
                await process.wait()
        return Launched(sandbox, ago_s, over)

    insert = records.insert

    async def stores(record: RunRecord, request: str | None = None) -> None:
        steps.append(f"stored {record.status.value}")
        await insert(record, request)

    backend.enforces, backend.launch, records.insert = probe.enforced(), launch, stores  # type: ignore[attr-defined, method-assign]
    return steps


async def test_a_launched_run_that_is_over_at_once_is_written_once(rig: Rig) -> None:
    steps = launches(rig, await rig.backend.probe(), ago_s=1.0)
    await rig.app.backends.start()
    run = await rig.run()
    assert (steps, run["status"]) == (["asked", "stored completed"], "completed")
    assert (await rig.record(run)).outcome is Outcome.EXIT
    assert (rig.backend.held, dict(rig.app.active)) == ({}, {})


async def test_a_launched_run_has_its_record_while_it_works(rig: Rig) -> None:
    steps = launches(rig, await rig.backend.probe())
    await rig.app.backends.start()
    seen: list[RunStatus] = []

    async def script(process: TwinProcess) -> None:
        async with asyncio.timeout(5):
            while (record := await rig.app.ports.records.get(process.id)) is None:
                await asyncio.sleep(0)
        seen.append(record.status)
        process.write(result({}))

    run = await rig.run(script)
    assert (steps, seen) == (["asked", "stored running"], [RunStatus.RUNNING])
    assert (await rig.record(run)).status is RunStatus.COMPLETED


@pytest.mark.parametrize("what", ["key", "blob"])
async def test_a_run_that_is_not_done_twice_or_sees_files_has_its_record_first(rig: Rig, what: str) -> None:
    steps = launches(rig, await rig.backend.probe(), ago_s=1.0)
    await rig.app.backends.start()
    blob_id = (await rig.call("create_blob", content="hi", kind="text/plain"))["blob_id"]
    await rig.run(**({"idempotency_key": "k"} if what == "key" else {"input_blobs": [blob_id]}))
    assert steps == ["stored running", "asked"]


@pytest.mark.parametrize("over", [True, False])
async def test_a_launched_run_whose_record_cannot_be_written_leaves_nothing(
    rig: Rig, over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(record: RunRecord, request: str | None = None) -> None:
        raise StoreFault("the disk is full")

    launches(rig, await rig.backend.probe(), ago_s=float(over))
    monkeypatch.setattr(rig.app.ports.records, "insert", refuse)
    await rig.app.backends.start()
    with pytest.raises(StoreFault, match="full"):
        await rig.run()
    assert (rig.backend.held, dict(rig.app.active)) == ({}, {})
    assert rig.app.admission.running == 0
