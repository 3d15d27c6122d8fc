"""A repeated call gets the first run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skillyard.domain.errors import Busy, IdempotencyConflict
from skillyard.domain.principal import Principal
from skillyard.domain.work.record import RunKind
from skillyard.engine.runs.request import from_params
from skillyard.engine.table import METHODS
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import CODE, Rig
from tests.unit.engine.fakes import result

pytestmark = pytest.mark.anyio


async def test_a_repeated_call_gets_the_first_run(rig: Rig) -> None:
    first = await rig.run(idempotency_key="k", args={"a": 1})
    second = await rig.run(idempotency_key="k", args={"a": 1})
    assert second == first
    assert len(rig.backend.started) == 1


@pytest.mark.parametrize(
    ("method", "params", "digest"),
    [
        (
            "run_code",
            {"language": "python", "code": "1"},
            "d19fc8b866fbc99d2742659513fa41b0529d374549aa7fcc15014a3a154a8634",
        ),
        (
            "execute_skill",
            {"name": "a.b", "args": {"x": 1}, "timeout_ms": 5000},
            "ed147f65ec18cd48c213982ec0c897d083b98eb156ca753ad8a78537eb4e506f",
        ),
    ],
)
def test_a_request_is_the_same_after_an_upgrade(method: str, params: dict[str, Any], digest: str) -> None:
    """As when ``main`` was the default entrypoint: who repeats a call that the server before had gets its run."""
    kind = RunKind.CODE if method == "run_code" else RunKind.SKILL
    assert from_params(kind, METHODS[method].bind(params)).digest() == digest


async def test_it_waits_for_a_run_that_is_going_on(rig: Rig) -> None:
    go = asyncio.Event()

    async def script(process: TwinProcess) -> None:
        await go.wait()
        process.write(result({"n": 1}))

    tasks = [asyncio.create_task(rig.run(script, idempotency_key="k")) for _ in range(5)]
    while not rig.backend.started:
        await asyncio.sleep(0)
    go.set()
    runs = await asyncio.gather(*tasks)
    assert len({run["run_id"] for run in runs}) == 1
    assert len(rig.backend.started) == 1


@pytest.mark.parametrize(
    "other", [{"args": {"a": 2}}, {"code": "x = 1"}, {"timeout_ms": 5}, {"entrypoint": "f"}, {"entrypoint": "main"}]
)
async def test_other_parameters_conflict(rig: Rig, other: dict[str, object]) -> None:
    await rig.run(idempotency_key="k")
    with pytest.raises(IdempotencyConflict) as caught:
        await rig.run(idempotency_key="k", **other)
    assert (caught.value.code, caught.value.type) == (-32602, "IdempotencyConflict")
    assert len(rig.backend.started) == 1


async def test_other_parameters_conflict_while_the_first_is_going_on(rig: Rig) -> None:
    go = asyncio.Event()

    async def script(process: TwinProcess) -> None:
        await go.wait()
        process.write(result({}))

    first = asyncio.create_task(rig.run(script, idempotency_key="k"))
    while not rig.backend.started:
        await asyncio.sleep(0)
    with pytest.raises(IdempotencyConflict):
        await rig.run(idempotency_key="k", args={"other": 1})
    go.set()
    await first


async def test_keys_belong_to_a_principal(rig: Rig) -> None:
    await rig.run(idempotency_key="k")
    other = Principal("other")
    await rig.call("run_code", other, language="python", code=CODE, idempotency_key="k", args={"z": 1})
    assert len(rig.backend.started) == 2


async def test_a_call_that_was_turned_away_does_not_use_up_its_key(rig: Rig) -> None:
    rig.app.admission.close()
    with pytest.raises(Busy):
        await rig.run(idempotency_key="k")
    rig.configure()
    assert (await rig.run(idempotency_key="k"))["status"] == "completed"


async def test_the_key_survives_a_restart(rig: Rig) -> None:
    first = await rig.run(idempotency_key="k")
    rig.configure()
    assert (await rig.run(idempotency_key="k"))["run_id"] == first["run_id"]


async def test_a_cancelled_first_is_what_the_second_gets(rig: Rig) -> None:
    async def script(process: TwinProcess) -> None:
        await process.ended

    first = asyncio.create_task(rig.run(script, idempotency_key="k"))
    while not rig.backend.started:
        await asyncio.sleep(0)
    second = asyncio.create_task(rig.run(script, idempotency_key="k"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (await second)["error"]["type"] == "Cancelled"
    assert len(rig.backend.started) == 1


async def test_a_detached_call_gets_the_run_that_its_caller_waits_for(rig: Rig) -> None:
    go, began = asyncio.Event(), asyncio.Event()

    async def script(process: TwinProcess) -> None:
        began.set()
        await go.wait()
        process.write(result({"n": 1}))

    rig.backend.gate = asyncio.Event()  # the first has no record yet when the second comes
    first = asyncio.create_task(rig.run(script, idempotency_key="k"))
    while not rig.app.runs._keys._first:
        await asyncio.sleep(0)
    second = asyncio.create_task(rig.run(idempotency_key="k", detach=True))
    rig.backend.gate.set()
    live = await asyncio.wait_for(second, 20)
    assert live["status"] == "running"
    with pytest.raises(IdempotencyConflict):
        await rig.run(idempotency_key="k", detach=True, args={"other": 1})
    await asyncio.wait_for(began.wait(), 20)
    assert (await rig.run(idempotency_key="k", detach=True))["run_id"] == live["run_id"]
    go.set()
    run = await first
    assert (run["run_id"], run["output"]) == (live["run_id"], {"n": 1})
    assert len(rig.backend.started) == 1


async def test_a_call_that_is_not_detached_waits_for_a_detached_run(rig: Rig) -> None:
    go = asyncio.Event()

    async def script(process: TwinProcess) -> None:
        await go.wait()
        process.write(result({"n": 1}))

    live = await rig.run(script, idempotency_key="k", detach=True)
    assert live["status"] in ("queued", "starting", "running")
    again = await rig.run(idempotency_key="k", detach=True)
    assert again["run_id"] == live["run_id"]
    waits = [asyncio.create_task(rig.run(idempotency_key="k")) for _ in range(3)]
    while not rig.backend.started:
        await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    waits[0].cancel()  # it was not its run: that goes on
    go.set()
    runs = await asyncio.wait_for(asyncio.gather(*waits[1:]), 20)
    assert [(run["run_id"], run["output"]) for run in runs] == [(live["run_id"], {"n": 1})] * 2
    assert len(rig.backend.started) == 1
