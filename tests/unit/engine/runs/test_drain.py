"""A server that drains refuses new work, and says what is left."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.domain.errors import Busy, Forbidden
from skillyard.domain.principal import Principal, Scope
from tests.unit.engine.conftest import CODE, Rig
from tests.unit.engine.runs.test_cancel import begun

pytestmark = pytest.mark.anyio


async def test_new_work_is_refused_until_it_is_undone(rig: Rig) -> None:
    assert await rig.call("server.drain") == {"draining": True, "attached": 0, "detached": []}
    for method, params in (
        ("run_code", {"language": "python", "code": CODE}),
        ("run_code", {"language": "python", "code": CODE, "detach": True}),
        ("environments.build", {"environment": "base"}),
    ):
        with pytest.raises(Busy, match="draining") as refused:
            await rig.call(method, **params)
        assert refused.value.retry_after_ms > 0
    assert (await rig.call("runs.list"))["runs"] == []
    await rig.call("server.drain", undo=True)
    assert (await rig.run())["status"] == "completed"


async def test_runs_at_work_come_to_their_end(rig: Rig) -> None:
    endless, task = await begun(rig)
    assert (await rig.call("server.drain", wait_ms=1))["attached"] == 1
    waiting = asyncio.ensure_future(rig.call("server.drain", wait_ms=30_000))
    assert endless.process is not None
    endless.process.end()
    async with asyncio.timeout(20):
        assert (await waiting)["attached"] == 0
        await task


async def test_a_run_whose_caller_has_gone_is_waited_for(rig: Rig) -> None:
    _, task = await begun(rig)
    rig.app.drain.calls -= 1  # as if its call had ended
    assert (await rig.call("server.drain", wait_ms=1))["attached"] == 1
    rig.app.drain.calls += 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(20):
        assert (await rig.call("server.drain", wait_ms=30_000))["attached"] == 0


async def test_detached_runs_stay(rig: Rig) -> None:
    endless, task = await begun(rig, detach=True)
    await task
    [run] = (await rig.call("runs.list"))["runs"]
    async with asyncio.timeout(20):
        told = await rig.call("server.drain", wait_ms=30_000)
    assert told == {"draining": True, "attached": 0, "detached": [run["run_id"]]}
    assert endless.process is not None
    endless.process.end()


async def test_only_admins_drain(rig: Rig) -> None:
    with pytest.raises(Forbidden):
        await rig.call("server.drain", Principal("ann", frozenset({Scope.EXECUTE})))
    assert not rig.app.drain.on
