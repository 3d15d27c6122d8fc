"""Services have places of their own: they take none of tasks, and one principal leaves some to others."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.domain.errors import Busy
from skillyard.domain.principal import Principal
from skillyard.domain.skill.skill import SkillKind
from tests.unit.engine.commands.stepping import ANN, Stepping, is_now, start, token, until, watched
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill
from tests.unit.engine.runs.resuming import idle, killed, next_server

pytestmark = pytest.mark.anyio


async def serve(rig: Rig, work: Stepping, principal: Principal) -> str:
    rig.backend.script = work
    told = await rig.call("skills.run_service", principal, skill_name="acme.notes", command="serve")
    return str(told["task_id"])


async def test_services_and_tasks_take_no_places_of_each_other(rig: Rig) -> None:
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.principal = ANN
    bob, carol = token("bob"), token("carol")
    rig.configure(
        admission={"running": 16, "tasks": 1, "tasks_live": 2, "reserve": 0},
        services={"places": 3, "places_each": 2},
    )
    served, worked = Stepping(), Stepping()
    mine = [await serve(rig, served, ANN) for _ in range(2)]
    await until(lambda: is_now(rig, mine[0], "running"))
    await until(lambda: is_now(rig, mine[1], "running"))
    with pytest.raises(Busy, match="places_each"):
        await serve(rig, served, ANN)
    theirs = await serve(rig, served, bob)
    with pytest.raises(Busy, match="too many services"):
        await serve(rig, served, carol)
    task = await start(rig, worked)
    worked.say(None)
    assert (await watched(rig, task))["status"] == "succeeded"
    async with asyncio.timeout(30):
        while rig.app.active[theirs].process is None:
            await asyncio.sleep(0)

    await killed(rig)
    await next_server(rig)
    with pytest.raises(Busy, match="too many services"):
        await serve(rig, served, carol)
    served.say(None, None, None)
    for task_id in mine:
        assert (await watched(rig, task_id))["status"] == "succeeded"
    async with asyncio.timeout(30):
        await rig.call("skills.task_watch", bob, task_id=theirs)
    await idle(rig)
    last = await serve(rig, served, carol)
    served.say(None)
    async with asyncio.timeout(30):
        assert (await rig.call("skills.task_watch", carol, task_id=last))["status"] == "succeeded"
