"""Jobs over the sandbox twin: their steps in order, their ends, their artifacts, and whose they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from skillyard.domain.errors import (
    Busy,
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    JobNotFound,
    QuotaExceeded,
    SkillNotFound,
    StoreFault,
)
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.sandbox.spec import Guest
from skillyard.domain.skill.skill import SkillKind
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.commands.test_run_cmd import file
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill, result

pytestmark = pytest.mark.anyio
SCOPES = frozenset({Scope.RUN_CODE, Scope.BLOBS})
ANN = Principal("ann", SCOPES)


class Steps:
    """The program of every step: it tells its text, waits where it is held, and ends with its exit code."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.inputs: dict[str, list[list[str]]] = {}
        self.codes: dict[str, int] = {}
        self.held: dict[str, asyncio.Event] = {}
        self.writes: dict[str, bytes] = {}

    async def __call__(self, process: TwinProcess) -> None:
        assert isinstance(process.program, Guest)
        command = process.program.request["command"]
        text = command["text"]
        self.inputs[text] = command["inputs"]
        self.begun.append(text)
        process.log(text.encode())
        if text in self.held:
            await self.held[text].wait()
        if text in self.writes:
            process.write(self.writes[text])
        process.write(result({"exit_code": self.codes.get(text, 0)}))

    def hold(self, text: str) -> asyncio.Event:
        self.held[text] = asyncio.Event()
        return self.held[text]


@pytest.fixture
def steps(rig: Rig) -> Steps:
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.principal = ANN
    rig.backend.script = steps = Steps()
    return steps


async def start(rig: Rig, *commands: Any, principal: Principal | None = None, **params: Any) -> str:
    asked = {
        "skill_name": "acme.notes",
        "session_id": "work",
        "steps": [{"command": one} if isinstance(one, str) else one for one in commands],
        **params,
    }
    job = await rig.call("skills.start_job", principal, **asked)
    assert job["status"] == "queued"
    return str(job["job_id"])


async def watched(rig: Rig, job_id: str, **params: Any) -> dict[str, Any]:
    async with asyncio.timeout(30):
        return await rig.call("skills.job_watch", job_id=job_id, **params)


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(30):
        while not (found := await look()):
            await asyncio.sleep(0)
    return found


async def begun(steps: Steps, text: str) -> None:
    async def look() -> bool:
        return text in steps.begun

    await until(look)


def states(job: dict[str, Any]) -> list[str]:
    return [step["status"] for step in job["steps"]]


async def test_steps_work_one_after_the_other_in_one_session(rig: Rig, steps: Steps) -> None:
    go_on = steps.hold("one")
    job_id = await start(rig, {"name": "first", "command": "one"}, "two")
    waiting = asyncio.create_task(watched(rig, job_id))
    await begun(steps, "one")
    told = await until(lambda: _said(rig, job_id))
    assert (told["status"], told["current_step_index"], states(told)) == ("running", 0, ["running", "pending"])
    assert told["steps"][1]["task_id"] is None
    assert steps.begun == ["one"]
    assert not waiting.done()
    go_on.set()
    ended = await waiting
    assert (ended["status"], ended["reason"], states(ended)) == ("succeeded", "", ["succeeded", "succeeded"]), ended
    assert [step["name"] for step in ended["steps"]] == ["first", "step-2"]
    assert [step["exit_code"] for step in ended["steps"]] == [0, 0]
    assert [step["stdout_tail"] for step in ended["steps"]] == ["one", "two"]
    assert (ended["session_id"], ended["timed_out"], ended["already_running"]) == ("work", False, False)
    assert ended["finished_at"] is not None
    assert len(rig.backend.held) == 1, "all steps had the session's sandbox"
    tasks = (await rig.call("skills.tasks"))["tasks"]
    assert [task["task_id"] for task in tasks] == [step["task_id"] for step in reversed(ended["steps"])]


async def _said(rig: Rig, job_id: str) -> dict[str, Any] | None:
    told = await rig.call("skills.job_status", job_id=job_id)
    return told if told["steps"][0]["stdout_tail"] == "one" else None


async def test_a_job_is_stored_before_it_is_acknowledged(
    rig: Rig, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weakness 21 of the reference: failed persistence was only logged."""

    async def fails(*_: Any) -> Any:
        raise StoreFault("the disk is full")

    monkeypatch.setattr(rig.app.ports.jobs, "insert", fails)
    with pytest.raises(StoreFault):
        await start(rig, "one")
    assert (await rig.call("skills.jobs"))["jobs"] == []
    assert (steps.begun, await rig.app.ports.records.list(None)) == ([], [])


@pytest.mark.parametrize("code", [1, 255])
async def test_a_failed_step_fails_the_job(rig: Rig, steps: Steps, code: int) -> None:
    steps.codes["two"] = code
    ended = await watched(rig, await start(rig, "one", "two", "three"))
    assert (ended["status"], ended["reason"]) == ("failed", "step_failed")
    assert ended["error_message"] == f"step 'step-2': the command ended with exit code {code}"
    assert states(ended) == ["succeeded", "failed", "skipped"]
    assert ended["steps"][1]["exit_code"] == code
    assert (ended["current_step_index"], steps.begun) == (1, ["one", "two"])


async def test_a_cancelled_step_fails_the_job(rig: Rig, steps: Steps) -> None:
    steps.hold("one")
    job_id = await start(rig, "one", "two")
    await begun(steps, "one")
    told = await until(lambda: _said(rig, job_id))
    await rig.call("skills.task_cancel", task_id=told["steps"][0]["task_id"], reason="wrong input")
    ended = await watched(rig, job_id)
    assert (ended["status"], ended["reason"], states(ended)) == ("failed", "step_failed", ["canceled", "skipped"])
    assert "wrong input" in ended["error_message"]


async def test_a_cancelled_job_stays_cancelled(rig: Rig, steps: Steps) -> None:
    """Weakness 23: the loop of the job overwrote 'canceled' with 'failed'."""
    steps.hold("one")
    job_id = await start(rig, "one", "two")
    await begun(steps, "one")
    answer = await rig.call("skills.job_cancel", job_id=job_id, reason="not needed")
    assert answer == {"job_id": job_id, "status": "canceled", "reason": "not needed", "canceled": True}
    [record] = await rig.app.ports.records.list(None)
    assert not record.status.live, "its step has ended when the call answers"
    ended = await watched(rig, job_id)
    assert (ended["status"], ended["reason"], states(ended)) == ("canceled", "cancelled", ["canceled", "skipped"])
    again = await rig.call("skills.job_cancel", job_id=job_id, reason="other")
    assert (again["status"], again["reason"], again["canceled"]) == ("canceled", "not needed", False)
    await rig.app.jobs.resume()
    assert (await rig.call("skills.job_status", job_id=job_id))["status"] == "canceled"
    assert steps.begun == ["one"]


async def test_a_cancel_while_a_step_is_starting_ends_that_step_too(
    rig: Rig, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weakness 23: the new task kept on running."""
    real, stands, go_on = rig.app.ports.records.insert, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> None:
        stands.set()
        await go_on.wait()
        await real(*args)

    steps.hold("one")
    monkeypatch.setattr(rig.app.ports.records, "insert", slow)
    job_id = await start(rig, "one", "two")
    await stands.wait()
    cancelling = asyncio.create_task(rig.call("skills.job_cancel", job_id=job_id))
    job = await until(lambda: _asked(rig, job_id))
    assert job.state.live
    go_on.set()
    async with asyncio.timeout(30):
        assert (await cancelling)["status"] == "canceled"
    [record] = await rig.app.ports.records.list(None)
    assert (record.status.value, record.outcome) == ("failed", "cancelled")
    told = await rig.call("skills.job_status", job_id=job_id)
    assert [step["task_id"] for step in told["steps"]] == [record.run_id, None]


async def _asked(rig: Rig, job_id: str) -> Any:
    job = await rig.app.ports.jobs.get(job_id)
    return job if job is not None and job.cancel_requested else None


async def test_a_job_ends_when_its_time_is_over(rig: Rig, steps: Steps) -> None:
    steps.hold("two")
    ended = await watched(rig, await start(rig, "one", "two", "three", max_wall_time_sec=0.5))
    assert (ended["status"], ended["reason"]) == ("failed", "job_timeout")
    assert ended["error_message"] == "its 0.5 seconds are over (max_wall_time_sec)"
    assert ended["steps"][2]["status"] == "skipped"
    assert all(not record.status.live for record in await rig.app.ports.records.list(None))


async def test_times_above_a_limit_are_refused_with_its_name(rig: Rig, steps: Steps) -> None:
    """Weakness 3: long work was capped silently."""
    with pytest.raises(InvalidInput) as refused:
        await start(rig, "one", max_wall_time_sec=86_401)
    assert refused.value.data["limit"] == "commands.max_job_time_s"
    with pytest.raises(InvalidInput, match=r"steps\[1\].timeout_sec") as refused:
        await start(rig, "one", {"command": "two", "timeout_sec": 86_401})
    assert refused.value.data["limit"] == "commands.max_task_timeout_s"
    job_id = await start(rig, {"command": "one", "timeout_sec": 86_400}, max_wall_time_sec=86_400)
    ended = await watched(rig, job_id)
    record = await rig.record({"run_id": ended["steps"][0]["task_id"]})
    assert (record.limits["timeout_ms"], ended["max_wall_time_sec"]) == (86_400_000, 86_400)
    usual = await watched(rig, await start(rig, "two"))
    assert (usual["max_wall_time_sec"], steps.begun) == (1800, ["one", "two"])


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_concurrency": 2}, "max_concurrency"),
        ({"steps": [{"command": "a", "name": "x"}, {"command": "b", "name": "x"}]}, "steps[1].name"),
        ({"steps": [{"command": "a"}, {"command": " "}]}, "steps[1].command"),
        ({"steps": [{"command": "a", "env": {"a-b": "c"}}]}, "steps[0].env"),
        ({"steps": [{"command": "a", "workdir": "../x"}]}, "steps[0].workdir"),
        ({"steps": []}, "steps"),
        ({"session_id": "a/b"}, "steps[0].session_id"),
        ({"heartbeat_sec": 5}, "heartbeat_sec"),
    ],
)
async def test_nothing_is_accepted_and_ignored(rig: Rig, wrong: dict[str, Any], field: str) -> None:
    """Weakness 7."""
    asked = {"skill_name": "acme.notes", "session_id": "work", "steps": [{"command": "one"}], **wrong}
    with pytest.raises(InvalidInput) as refused:
        await rig.call("skills.start_job", **asked)
    assert refused.value.field == field
    assert (await rig.call("skills.jobs"))["jobs"] == []


@pytest.mark.usefixtures("steps")
async def test_a_skill_that_is_not_there_is_refused_at_once(rig: Rig) -> None:
    with pytest.raises(SkillNotFound):
        await start(rig, "one", skill_name="acme.nothing")
    assert (await rig.call("skills.jobs"))["jobs"] == []


async def test_a_step_takes_the_artifacts_of_earlier_steps(rig: Rig, steps: Steps) -> None:
    """Weakness 10: steps took neither inputs nor outputs."""
    steps.writes["one"] = file(1, "0/skill/out.txt", b"made")
    steps.writes["two"] = file(1, "0/skill/two.txt", b"again")
    job_id = await start(
        rig,
        {"name": "make", "command": "one", "outputs": [{"path": "out.txt", "save_as": "kept.txt"}]},
        {
            "command": "two",
            "inputs": [{"artifact_id": "step:make/kept.txt", "mount_path": "in.txt"}],
            "outputs": [{"path": "two.txt"}],
        },
    )
    ended = await watched(rig, job_id)
    assert ended["status"] == "succeeded", ended
    [made] = ended["steps"][0]["created_artifacts"]
    assert made["filename"] == "kept.txt"
    assert await rig.content(made["artifact_id"]) == b"made"
    assert [row[0] for row in steps.inputs["two"]] == [made["artifact_id"]], steps.inputs


async def test_a_missing_artifact_is_not_an_empty_one(rig: Rig, steps: Steps) -> None:
    """Weakness 22."""
    steps.writes["three"] = file(1, "0/skill/empty.txt", b"")
    missing = await watched(
        rig,
        await start(
            rig,
            {"name": "make", "command": "one", "outputs": [{"path": "out.txt"}]},
            {"command": "two", "inputs": [{"artifact_id": "step:make/out.txt", "mount_path": "in.txt"}]},
        ),
    )
    assert (missing["status"], missing["reason"], states(missing)) == ("failed", "step_failed", ["succeeded", "failed"])
    assert "step 'make' left no artifact 'out.txt'" in missing["error_message"]
    assert missing["steps"][0]["output_errors"] == [{"path": "skill/out.txt", "error": "not found"}]
    empty = await watched(
        rig,
        await start(
            rig,
            {"name": "make", "command": "three", "outputs": [{"path": "empty.txt"}]},
            {"command": "four", "inputs": [{"artifact_id": "step:make/empty.txt", "mount_path": "in.txt"}]},
        ),
    )
    assert (empty["status"], empty["steps"][0]["created_artifacts"][0]["size"]) == ("succeeded", 0)
    assert steps.begun == ["one", "three", "four"]


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("named", ["step:two/out.txt", "step:nobody/out.txt", "step:one/other.txt"])
async def test_a_step_names_files_of_earlier_steps_alone(rig: Rig, named: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await start(
            rig,
            {"name": "one", "command": "one", "outputs": [{"path": "out.txt"}]},
            {
                "name": "two",
                "command": "two",
                "inputs": [{"artifact_id": named, "mount_path": "in.txt"}],
                "outputs": [{"path": "out.txt"}],
            },
        )
    assert refused.value.field == "steps[1].inputs[0].artifact_id"


async def test_jobs_of_others_do_not_exist(rig: Rig, steps: Steps) -> None:
    """Weakness 18: lookups did not check the project or the agent."""
    steps.hold("one")
    job_id = await start(rig, "one")
    others = [
        Principal("bob", SCOPES),
        Principal("ann2", SCOPES, project="other", agent="ann"),
        Principal("eve", SCOPES, agent="eve", agents=("mallory",)),
    ]
    for other in others:
        for method in ("skills.job_status", "skills.job_watch", "skills.job_cancel"):
            with pytest.raises(JobNotFound, match="no job 'job_") as theirs:
                await rig.call(method, other, job_id=job_id)
            with pytest.raises(JobNotFound) as nobodys:
                await rig.call(method, other, job_id="job_nothing")
            assert theirs.value.message == nobodys.value.message.replace("job_nothing", job_id)
        assert (await rig.call("skills.jobs", other))["jobs"] == []
    with pytest.raises(Forbidden):
        await rig.call("skills.job_status", others[0], job_id=job_id, agent="ann")
    colleague = Principal("cat", SCOPES, agents=("ann",))
    assert (await rig.call("skills.job_status", colleague, job_id=job_id))["status"] != "failed"
    assert (await rig.call("skills.job_cancel", colleague, job_id=job_id))["canceled"] is True


async def test_a_watch_ends_with_the_job_and_frees_its_key(rig: Rig, steps: Steps) -> None:
    """Weaknesses 5 and 6: watches polled, did not end, and left their keys behind."""
    go_on = steps.hold("one")
    job_id = await start(rig, "one")
    gone = asyncio.create_task(watched(rig, job_id))
    await begun(steps, "one")
    second = await watched(rig, job_id)
    assert (second["already_running"], second["timed_out"], second["status"]) == (True, False, "running")
    gone.cancel()
    await asyncio.wait((gone,))
    over = await watched(rig, job_id, timeout_sec=0)
    assert (over["already_running"], over["timed_out"], over["heartbeat"]) == (False, True, False)
    first = asyncio.create_task(watched(rig, job_id, timeout_sec=3600))
    other = asyncio.create_task(watched(rig, job_id, dedupe_key="mine", poll_interval_sec=600))
    await until(lambda: _watched_by(rig, 2))
    go_on.set()
    assert [(await each)["status"] for each in (first, other)] == ["succeeded"] * 2


async def _watched_by(rig: Rig, count: int) -> bool:
    from skillyard.engine.jobs.service import JobService

    return len(rig.app.by_class[JobService]._watched) == count


async def test_a_key_stands_for_one_job(rig: Rig, steps: Steps) -> None:
    first = await start(rig, "one", idempotency_key="k")
    await watched(rig, first)
    again = await rig.call(
        "skills.start_job", skill_name="acme.notes", session_id="work", steps=[{"command": "one"}], idempotency_key="k"
    )
    assert (again["job_id"], again["status"]) == (first, "succeeded")
    with pytest.raises(IdempotencyConflict):
        await start(rig, "two", idempotency_key="k")
    assert steps.begun == ["one"]


async def test_a_principal_has_so_many_live_jobs(rig: Rig, steps: Steps) -> None:
    rig.configure(commands={"jobs_each": 2})
    steps.hold("one")
    jobs = [await start(rig, "one", session_id=f"s{number}") for number in range(2)]
    with pytest.raises(QuotaExceeded) as refused:
        await start(rig, "one")
    assert refused.value.data["limit"] == "commands.jobs_each"
    await rig.call("skills.job_cancel", job_id=jobs[0])
    await rig.call("skills.job_cancel", job_id=await start(rig, "one", session_id="s2"))
    await rig.call("skills.job_cancel", job_id=jobs[1])


async def test_jobs_are_listed_page_by_page(rig: Rig, steps: Steps) -> None:
    jobs = [await start(rig, f"c{number}") for number in range(3)]
    for job_id in jobs:
        await watched(rig, job_id)
    page = await rig.call("skills.jobs", limit=2)
    assert [row["job_id"] for row in page["jobs"]] == [jobs[2], jobs[1]]
    rest = await rig.call("skills.jobs", limit=2, cursor=page["next_cursor"])
    assert ([row["job_id"] for row in rest["jobs"]], rest["next_cursor"]) == ([jobs[0]], None)
    assert sorted(steps.begun) == ["c0", "c1", "c2"]


async def test_a_job_ends_with_its_session(rig: Rig, steps: Steps) -> None:
    """A later session of the alias lacks the files of the steps before."""
    go_on = steps.hold("one")
    job_id = await start(rig, "one", "two")
    await begun(steps, "one")
    [session] = await rig.app.ports.sessions.live()
    await rig.call("skills.end_session", session_id="work", reason="enough")
    go_on.set()
    ended = await watched(rig, job_id)
    assert (ended["status"], states(ended)) == ("failed", ["canceled", "skipped"])
    assert steps.begun == ["one"]
    assert not await rig.app.sessions.is_live(session.session_id)


async def call(rig: Rig, **params: Any) -> dict[str, Any]:
    return await rig.call("skills.run_cmd", skill_name="acme.notes", session_id="work", **params)


async def test_a_job_holds_its_session_between_its_steps(rig: Rig, steps: Steps) -> None:
    go_on = steps.hold("one")
    first = await start(rig, "one", "two", "three")
    await begun(steps, "one")
    second = await start(rig, "four")
    other = asyncio.create_task(call(rig, command="other", wait_ms=60_000))
    with pytest.raises(Busy) as busy:
        await call(rig, command="hasty", wait_ms=0)
    assert busy.value.retry_after_ms > 0
    go_on.set()
    async with asyncio.timeout(30):
        assert [(await watched(rig, job_id))["status"] for job_id in (first, second)] == ["succeeded", "succeeded"]
        assert (await other)["status"] == "succeeded"
    assert steps.begun[:3] == ["one", "two", "three"]
    assert sorted(steps.begun[3:]) == ["four", "other"]


async def test_tasks_that_wait_for_a_session_keep_no_place_from_its_job(rig: Rig, steps: Steps) -> None:
    rig.configure(admission={"tasks": 1})
    go_on = steps.hold("one")
    job_id = await start(rig, "one", "two")
    await begun(steps, "one")
    task = await rig.call("skills.run_cmd_async", skill_name="acme.notes", session_id="work", command="other")
    go_on.set()
    assert (await watched(rig, job_id))["status"] == "succeeded"
    async with asyncio.timeout(30):
        await rig.call("skills.task_watch", task_id=task["task_id"])
    assert steps.begun == ["one", "two", "other"]


@pytest.mark.parametrize("end", ["cancel", "fail"])
async def test_a_job_that_ends_early_lets_go_of_its_session(rig: Rig, steps: Steps, end: str) -> None:
    go_on, steps.codes = steps.hold("one"), {"one": 3}
    job_id = await start(rig, "one", "two")
    await begun(steps, "one")
    other = asyncio.create_task(call(rig, command="other", wait_ms=60_000))
    async with asyncio.timeout(30):
        if end == "cancel":
            await rig.call("skills.job_cancel", job_id=job_id)
        else:
            go_on.set()
            assert (await watched(rig, job_id))["status"] == "failed"
        assert (await other)["status"] == "succeeded"


async def test_ending_a_session_ends_the_job_that_holds_it(rig: Rig, steps: Steps) -> None:
    steps.hold("one")
    job_id = await start(rig, "one", "two")
    await begun(steps, "one")
    async with asyncio.timeout(30):
        await rig.call("skills.end_session", session_id="work")
        assert (await watched(rig, job_id))["status"] == "failed"
        assert (await call(rig, command="other"))["status"] == "succeeded"
