"""Attempts of tasks: a lost one is started again when its caller asked for that, once its sandbox is surely gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skillyard.domain.errors import InvalidInput, SandboxFault
from skillyard.domain.skill.skill import SkillKind
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.runs.log_pages import ATTEMPT_BYTES
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.commands.stepping import ANN, DONE, is_now, start, status, until, watched
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill
from tests.unit.engine.runs.resuming import Deadly, idle, killed, next_server

pytestmark = pytest.mark.anyio

LOST = Ending(Outcome.LOST, reason="the host fell")
GONE = Ending(Outcome.LOST, reason="its sandbox ended")


class Attempts:
    """A command whose ``n``-th start writes ``try n`` and ends as the ``n``-th of ``ends`` says.

    None is success, and GONE takes the sandbox along.
    """

    def __init__(self, rig: Rig, *ends: Ending | None) -> None:
        self._rig = rig
        self._ends = ends
        self.started = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.most = 0

    async def __call__(self, process: TwinProcess) -> None:
        self.started += 1
        self.most = max(self.most, len(self._rig.backend.held))
        number = self.started
        process.log(f"try {number}\n\x002err {number}\x001".encode())
        await self.go_on.wait()
        if (ending := self._ends[number - 1]) is None:
            process.write(DONE)
        else:
            if ending is GONE:
                for sandbox in self._rig.backend.held.values():
                    sandbox.gone = True
                self._rig.backend.held.clear()
            process.end(ending)


@pytest.fixture(autouse=True)
def skill(rig: Rig) -> None:
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.principal = ANN


async def _log(rig: Rig, task_id: str) -> list[tuple[int, str]]:
    """Returns the attempt and the text of each chunk, page by page."""
    offset, pieces = 0, []
    while True:
        page = await rig.call("skills.task_logs", task_id=task_id, offset=offset, max_bytes=8)
        pieces += [(offset // ATTEMPT_BYTES + 1, chunk["text"]) for chunk in page["chunks"]]
        if page["complete"]:
            return pieces
        offset = page["next_offset"]


async def test_a_lost_task_is_started_again_as_often_as_asked(rig: Rig) -> None:
    work = Attempts(rig, LOST, LOST, None)
    task_id = await start(rig, work, max_attempts=3)
    told = await watched(rig, task_id)
    assert (told["status"], told["attempt"], told["max_attempts"], work.started) == ("succeeded", 3, 3, 3)
    assert (told["stdout_tail"], told["stderr_tail"]) == ("try 3\n", "err 3")
    assert [(one["attempt"], one["reason"]) for one in told["attempts"]] == [(1, "lost"), (2, "lost")]
    assert all(one["started_at"] and one["finished_at"] and one["logs_blob"] for one in told["attempts"])
    assert work.most == 1, "no two sandboxes at once"
    pieces = await _log(rig, task_id)
    for number in (1, 2, 3):
        assert "".join(text for attempt, text in pieces if attempt == number) == f"try {number}\nerr {number}"
    kinds = [event["kind"] for event in (await rig.call("runs.events", run_id=task_id))["events"]]
    assert (kinds.count("attempt"), kinds.count("running"), kinds[-1]) == (2, 3, "completed")
    await idle(rig)


@pytest.mark.parametrize(("most", "starts"), [(None, 1), (1, 1), (2, 2)])
async def test_it_is_lost_when_no_attempt_is_left(rig: Rig, most: int | None, starts: int) -> None:
    work = Attempts(rig, LOST, LOST, None)
    params: dict[str, Any] = {} if most is None else {"max_attempts": most}
    task_id = await start(rig, work, **params)
    told = await watched(rig, task_id)
    assert (told["status"], told["reason"], work.started, told["attempt"]) == ("failed", "lost", starts, starts)


@pytest.mark.parametrize("ending", [Ending(Outcome.TIMEOUT), Ending(Outcome.MEMORY), Ending(Outcome.EXIT, code=3)])
async def test_other_ends_are_final(rig: Rig, ending: Ending) -> None:
    work = Attempts(rig, ending, None)
    told = await watched(rig, await start(rig, work, max_attempts=5))
    assert (told["status"], told["attempts"], work.started) == ("failed", [], 1)


async def test_none_begins_before_the_sandbox_of_the_last_is_surely_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, real = Attempts(rig, LOST, None), rig.backend.destroy

    async def stuck(_handle: str) -> Any:
        raise SandboxFault("the keeper does not answer")

    monkeypatch.setattr(rig.backend, "destroy", stuck)
    task_id = await start(rig, work, max_attempts=2)
    await until(lambda: _orphaned(rig, task_id))
    await rig.app.detached.renew()
    await until(lambda: _orphaned(rig, task_id))
    told = await status(rig, task_id)
    assert (told["status"], told["attempt"]) == ("running", 1), "it tells no end that is not sure"
    assert (work.started, len(rig.backend.held)) == (1, 1)
    monkeypatch.setattr(rig.backend, "destroy", real)
    await rig.app.detached.renew()
    told = await watched(rig, task_id)
    assert (told["status"], told["attempt"], work.started, work.most) == ("succeeded", 2, 2, 1)


async def _orphaned(rig: Rig, task_id: str) -> bool:
    return bool((await status(rig, task_id))["orphaned"])


async def test_the_next_server_goes_on_with_the_attempt_at_work(rig: Rig) -> None:
    work = Attempts(rig, LOST, None)
    task_id = await start(rig, work, max_attempts=2)
    await until(lambda: _attempt(rig, task_id, 2))
    await until(lambda: is_now(rig, task_id, "running"))
    work.go_on.clear()
    await killed(rig)
    await next_server(rig)
    work.go_on.set()
    told = await watched(rig, task_id)
    assert (told["status"], told["attempt"], work.started) == ("succeeded", 2, 2)


async def _attempt(rig: Rig, task_id: str, number: int) -> bool:
    return bool((await status(rig, task_id))["attempt"] == number)


STEPS = [(step, before) for step in range(3, 9) for before in (True, False)]


@pytest.mark.parametrize(("step", "before"), STEPS)
async def test_a_server_that_ends_at_any_step_loses_and_doubles_no_attempt(rig: Rig, step: int, before: bool) -> None:
    deadly = Deadly(rig.app.ports.records, "change", step, before=before)
    object.__setattr__(rig.app.detached._tools, "records", deadly)
    work = Attempts(rig, LOST, None)
    task_id = await start(rig, work, max_attempts=2)
    reached = asyncio.create_task(deadly.reached.wait())
    ended = asyncio.create_task(watched(rig, task_id))
    await asyncio.wait((reached, ended), return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        ended.cancel()
        await killed(rig)
        await next_server(rig)
    reached.cancel()
    told = await watched(rig, task_id)
    assert (told["status"], told["attempt"], work.started, work.most) == ("succeeded", 2, 2, 1)
    await idle(rig)


async def test_a_cancelled_task_gets_no_further_attempt(rig: Rig) -> None:
    work = Attempts(rig, LOST, LOST, LOST)
    work.go_on.clear()
    task_id = await start(rig, work, max_attempts=3)
    await until(lambda: is_now(rig, task_id, "running"))
    cancelling = asyncio.create_task(rig.call("skills.task_cancel", task_id=task_id))
    await until(lambda: _asked(rig, task_id))
    work.go_on.set()
    assert (await cancelling)["status"] == "canceled"
    assert work.started == 1


async def _asked(rig: Rig, task_id: str) -> bool:
    record = await rig.app.ports.records.get(task_id)
    return record is not None and record.cancel_requested is not None


async def test_the_number_is_bounded(rig: Rig) -> None:
    for wrong in (0, 11):
        with pytest.raises(InvalidInput, match="max_attempts"):
            await start(rig, max_attempts=wrong)
    with pytest.raises(InvalidInput, match="max_attempts"):
        await rig.call("skills.run_cmd", skill_name="acme.notes", command="ls", max_attempts=2)


async def test_a_session_that_only_it_used_is_made_anew(rig: Rig) -> None:
    work = Attempts(rig, None, GONE, GONE, None)
    rig.backend.script = work
    await rig.call("skills.run_cmd", skill_name="acme.notes", command="ls", session_id="used")
    lost = await watched(rig, await start(rig, work, session_id="used", max_attempts=2))
    assert (lost["reason"], lost["attempt"], work.started) == ("lost", 1, 2), "its files are gone"
    told = await watched(rig, await start(rig, work, session_id="fresh", max_attempts=2))
    assert (told["status"], told["attempt"], work.started) == ("succeeded", 2, 4)


async def test_a_step_of_a_job_is_started_again(rig: Rig) -> None:
    rig.backend.script = Attempts(rig, GONE, None, None)
    steps = [{"command": "ls", "max_attempts": 2}, {"command": "ls"}]
    job = await rig.call("skills.start_job", skill_name="acme.notes", session_id="work", steps=steps)
    async with asyncio.timeout(30):
        told = await rig.call("skills.job_watch", job_id=job["job_id"])
    assert (told["status"], [step["attempt"] for step in told["steps"]]) == ("succeeded", [2, 1])
