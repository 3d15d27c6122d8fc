"""Turns of tasks: places of their own, fair shares of principals, a bounded number; and their silence."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.domain.errors import Busy
from skillyard.domain.skill.skill import SkillKind
from tests.unit.engine.commands.stepping import ANN, Stepping, is_now, start, status, token, until, watched
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import a_skill, result
from tests.unit.engine.runs.resuming import idle, killed, next_server

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def skill(rig: Rig) -> None:
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.principal = ANN


async def test_long_work_leaves_places_to_runs(rig: Rig) -> None:
    rig.configure(admission={"running": 4, "reserve": 0, "tasks": 2})
    work = Stepping()
    made = [await start(rig, work) for _ in range(4)]
    await until(lambda: is_now(rig, made[1], "running"))
    rig.backend.script = playing(result({"ok": True}))
    async with asyncio.timeout(30):
        run = await rig.call("run_code", language="python", code="def main(args): return {}")
    assert run["status"] == "completed"
    assert work.started == 2
    rig.backend.script = work
    work.say(*[None] * 4)
    for task_id in made:
        assert (await watched(rig, task_id))["status"] == "succeeded"
    assert work.started == 4
    await idle(rig)


async def test_a_free_place_goes_to_the_principal_with_the_fewest_tasks(rig: Rig) -> None:
    rig.configure(admission={"running": 4, "reserve": 0, "tasks": 1})
    work = Stepping()
    flood = [await start(rig, work) for _ in range(5)]
    await until(lambda: is_now(rig, flood[0], "running"))
    bob = token("bob")
    mine = await start(rig, work, bob)
    work.say(None, None, None)
    async with asyncio.timeout(30):
        assert (await rig.call("skills.task_watch", bob, task_id=mine))["status"] == "succeeded"
    assert (await status(rig, flood[2]))["finished_at"] is None
    work.say(*[None] * 3)
    for task_id in flood:
        await watched(rig, task_id)


async def test_the_number_of_tasks_is_bounded_for_each(rig: Rig) -> None:
    rig.configure(admission={"tasks_live": 4, "tasks": 1})
    work = Stepping()
    made = [await start(rig, work) for _ in range(3)]
    with pytest.raises(Busy, match="too many tasks"):
        await start(rig, work)
    made.append(await start(rig, work, token("bob")))
    with pytest.raises(Busy, match="too many tasks"):
        await start(rig, work, token("carol"))
    await killed(rig)
    await next_server(rig)
    with pytest.raises(Busy, match="too many tasks"):
        await start(rig, work, token("carol"))
    work.say(*[None] * 4)
    for task_id in made[:3]:
        await watched(rig, task_id)
    await idle(rig)
    rest = await start(rig, work)
    work.say(None)
    await watched(rig, rest)


async def test_many_tasks_wait_and_are_drained(rig: Rig) -> None:
    made = [await start(rig) for _ in range(200)]
    assert {(await watched(rig, task_id))["status"] for task_id in made} == {"succeeded"}
    assert len(rig.backend.started) == 200
    await idle(rig)


async def test_a_silence_is_told_and_its_end(rig: Rig) -> None:
    work = Stepping()
    task_id = await start(rig, work, quiet_after_sec=1)

    async def kinds() -> list[str]:
        page = await rig.call("runs.events", run_id=task_id)
        return [event["kind"] for event in page["events"]]

    async def told(kind: str) -> bool:
        return kind in await kinds()

    await until(lambda: told("quiet"))
    assert (await status(rig, task_id))["quiet"] is True
    work.say(b"again")
    await until(lambda: told("output"))
    assert (await status(rig, task_id))["quiet"] is False
    await killed(rig)
    await next_server(rig)
    await until(lambda: is_now(rig, task_id, "running"))
    work.say(None)
    assert (await watched(rig, task_id))["quiet"] is False
    assert (await kinds())[:5] == ["queued", "starting", "running", "quiet", "output"]
    other = await start(rig, work)
    await until(lambda: is_now(rig, other, "running"))
    work.say(None)
    await watched(rig, other)
