"""Jobs whose server ends at each of their writes: the next one goes on, and starts each step once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from skillyard.engine.jobs.driving import Jobs
from tests.unit.engine.conftest import Rig
from tests.unit.engine.jobs.test_jobs import Steps, begun, start, states, steps, watched
from tests.unit.engine.runs.resuming import Deadly, next_server

__all__ = ["steps"]
pytestmark = pytest.mark.anyio


async def killed(rig: Rig) -> None:
    """Ends the server as a kill does: nothing is written, and nobody drives its jobs and tasks any more."""
    await rig.app.jobs.leave()
    await rig.app.detached.leave()


async def test_the_next_server_goes_on_in_the_middle_of_a_step(rig: Rig, steps: Steps) -> None:
    go_on = steps.hold("two")
    job_id = await start(rig, "one", "two", "three")
    await begun(steps, "two")
    await killed(rig)
    await next_server(rig)
    go_on.set()
    ended = await watched(rig, job_id)
    assert (ended["status"], states(ended)) == ("succeeded", ["succeeded"] * 3), ended
    assert steps.begun == ["one", "two", "three"]


async def test_a_step_that_ended_without_a_server_is_seen(rig: Rig, steps: Steps) -> None:
    go_on = steps.hold("one")
    steps.codes["two"] = 3
    job_id = await start(rig, "one", "two", "three")
    await begun(steps, "one")
    await killed(rig)
    go_on.set()
    await next_server(rig)
    ended = await watched(rig, job_id)
    assert (ended["status"], states(ended)) == ("failed", ["succeeded", "failed", "skipped"]), ended
    assert steps.begun == ["one", "two"]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("store", "method", "nth"),
    [
        *[("jobs", "change", nth) for nth in range(1, 7)],
        *[("records", "insert", nth) for nth in range(1, 4)],
        *[("records", "finish", nth) for nth in range(1, 4)],
    ],
)
async def test_each_step_starts_once_whenever_the_server_ends(
    rig: Rig, steps: Steps, store: str, method: str, nth: int, before: bool
) -> None:
    real = rig.extra[store]
    rig.extra[store] = deadly = Deadly(real, method, nth, before=before)
    rig.configure()
    job_id = await start(rig, "one", "two", "three")
    async with asyncio.timeout(30):
        await deadly.reached.wait()
    rig.app.jobs.stop()
    await killed(rig)
    rig.app.tasks.cancel()
    rig.extra[store] = real
    await next_server(rig)
    ended = await watched(rig, job_id)
    assert (ended["status"], states(ended)) == ("succeeded", ["succeeded"] * 3), ended
    assert steps.begun == ["one", "two", "three"]
    tasks = [task["task_id"] for task in (await rig.call("skills.tasks"))["tasks"]]
    assert tasks == [step["task_id"] for step in reversed(ended["steps"])], "no task is started twice"


class LosesSandboxes:
    """Records whose second task is written just before the sandbox of its session is lost."""

    def __init__(self, rig: Rig) -> None:
        self._rig, self._real, self._count = rig, rig.extra["records"], 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def insert(self, *given: Any, **more: Any) -> Any:
        found = await self._real.insert(*given, **more)
        self._count += 1
        if self._count == 2:
            for handle in list(self._rig.backend.held):
                await self._rig.backend.destroy(handle)
        return found


async def test_no_step_begins_in_another_life_of_the_session(rig: Rig, steps: Steps) -> None:
    rig.extra["records"] = LosesSandboxes(rig)
    rig.configure()
    ended = await watched(rig, await start(rig, "one", "two", "three"))
    assert (ended["status"], ended["reason"]) == ("failed", "session_ended"), ended
    assert (states(ended), steps.begun) == (["succeeded", "failed", "skipped"], ["one"])


async def test_a_cancel_holds_at_the_next_server(rig: Rig, steps: Steps) -> None:
    """The server ends when it has written that the job is to end, and before it ended the step."""
    steps.hold("one")
    job_id = await start(rig, "one", "two")
    await begun(steps, "one")
    await killed(rig)
    job = await rig.app.ports.jobs.get(job_id)
    assert job is not None
    assert await rig.app.ports.jobs.change(replace(job, cancel_requested="enough")) is not None
    await next_server(rig)
    ended = await watched(rig, job_id)
    assert (ended["status"], ended["reason"], states(ended)) == ("canceled", "cancelled", ["canceled", "skipped"])
    assert (ended["error_message"], steps.begun) == ("enough", ["one"])


async def test_two_drivers_start_each_step_once(rig: Rig, steps: Steps) -> None:
    """Nothing but the stores tells them apart."""
    go_on = steps.hold("one")
    job_id = await start(rig, "one", "two", "three")
    await begun(steps, "one")
    second = Jobs(rig.app.jobs._around)
    await second.resume()
    go_on.set()
    ended = await watched(rig, job_id)
    assert (ended["status"], states(ended)) == ("succeeded", ["succeeded"] * 3), ended
    assert steps.begun == ["one", "two", "three"]
    await second.leave()
