"""Tasks over the fake backend: how they start, how far they are, their output, their ends, and whose they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skillyard.domain.errors import Busy, Forbidden, IdempotencyConflict, InvalidInput, StoreFault, TaskNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Needs, SecretNeed, SkillKind
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.commands.tasks import TaskService
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.commands.stepping import (
    ANN,
    DONE,
    SCOPES,
    Stepping,
    is_now,
    start,
    status,
    token,
    until,
    watched,
)
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import a_skill, frame, js, result
from tests.unit.engine.runs.resuming import idle, killed, next_server

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def skill(rig: Rig) -> None:
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.principal = ANN


async def test_a_task_is_stored_before_it_is_acknowledged(rig: Rig) -> None:
    work = Stepping()
    rig.backend.script = work
    asked: dict[str, Any] = {"skill_name": "acme.notes", "command": "ls", "labels": {"team": "crm"}}
    answer = await rig.call("skills.run_cmd_async", **asked)
    record = await rig.record({"run_id": answer["task_id"]})
    assert (record.owner, record.agent, record.limits["timeout_ms"]) == ("task", "ann", 1_800_000)
    assert (answer["mode"], answer["workdir"], answer["skill_name"]) == ("batch", "skill", "acme.notes")
    work.say(None)
    ended = await watched(rig, answer["task_id"])
    assert (ended["status"], ended["exit_code"], ended["timed_out"]) == ("succeeded", 0, False)
    assert ended["labels"] == {"team": "crm"}


async def test_a_task_at_work_tells_its_state_and_its_last_output(rig: Rig) -> None:
    work = Stepping()
    task_id = await start(rig, work)
    work.say(b"out\x002err")
    told = await until(lambda: _with_output(rig, task_id))
    assert (told["status"], told["exit_code"], told["startup_ready"]) == ("running", None, True)
    assert (told["stdout_tail"], told["stderr_tail"]) == ("out", "err")
    assert (told["stdout_truncated"], told["orphaned"], told["finished_at"]) == (False, False, None)
    assert told["last_output_at"] == rig.clock.time
    short = await status(rig, task_id, tail_bytes=2)
    assert (short["stdout_tail"], short["stdout_truncated"]) == ("ut", True)
    work.say(b"\x001put", None)
    ended = await watched(rig, task_id)
    assert (ended["stdout_tail"], ended["stderr_tail"], ended["logs_blob"] is not None) == ("output", "err", True)
    assert (await status(rig, task_id, tail_bytes=3))["stdout_tail"] == "put"


async def _with_output(rig: Rig, task_id: str) -> dict[str, Any] | None:
    told = await status(rig, task_id)
    return told if told["stderr_tail"] else None


@pytest.mark.parametrize(
    ("ending", "said", "wanted"),
    [
        (None, {"exit_code": 0}, ("succeeded", "exit", 0)),
        (None, {"exit_code": 3}, ("failed", "exit", 3)),
        (Ending(Outcome.TIMEOUT), None, ("failed", "timeout", -1)),
        (Ending(Outcome.MEMORY), None, ("failed", "memory", -1)),
        (Ending(Outcome.LOST, reason="gone"), None, ("failed", "lost", -1)),
    ],
)
async def test_a_watch_ends_with_each_end(rig: Rig, ending: Ending | None, said: Any, wanted: Any) -> None:
    go_on = asyncio.Event()

    async def script(process: TwinProcess) -> None:
        await go_on.wait()
        if said is not None:
            process.write(result(said))
        if ending is not None:
            process.end(ending)

    task_id = await start(rig, script)
    waiting = asyncio.create_task(watched(rig, task_id))
    await until(lambda: is_now(rig, task_id, "running"))
    assert not waiting.done()
    go_on.set()
    ended = await waiting
    assert (ended["status"], ended["reason"], ended["exit_code"]) == wanted
    assert ended["finished_at"] is not None
    assert ended["timing"]["duration_ms"] >= 0


async def test_a_watch_says_when_its_time_is_over_and_can_be_repeated(rig: Rig) -> None:
    work = Stepping()
    task_id = await start(rig, work)
    early = await watched(rig, task_id, timeout_sec=0.01)
    assert (early["timed_out"], early["exit_code"]) == (True, None)
    assert early["status"] in ("queued", "starting", "running")
    work.say(None)
    assert (await watched(rig, task_id))["timed_out"] is False


async def test_a_heartbeat_answers_before_the_time_is_over(rig: Rig) -> None:
    work = Stepping()
    task_id = await start(rig, work)
    with pytest.raises(InvalidInput, match="heartbeat_sec"):
        await watched(rig, task_id, heartbeat_sec=1)
    params = {"provider": "bg", "task_id": task_id, "tail_bytes": 10, "timeout_sec": 3600, "heartbeat_sec": 0.01}
    early = await rig.app.by_class[TaskService].watch(rig.principal, params)
    assert (early["heartbeat"], early["timed_out"], early["exit_code"]) == (True, False, None)
    work.say(None)
    ended = await watched(rig, task_id, timeout_sec=3600, heartbeat_sec=3600)
    assert (ended["heartbeat"], ended["timed_out"], ended["status"]) == (False, False, "succeeded")


async def test_one_watch_a_key_and_an_interrupted_one_frees_it(rig: Rig) -> None:
    work = Stepping()
    task_id = await start(rig, work)
    first = asyncio.create_task(watched(rig, task_id))
    second = await until(lambda: _already(rig, task_id))
    assert (second["timed_out"], second["status"] == "succeeded") == (False, False)
    other = asyncio.create_task(watched(rig, task_id, dedupe_key="mine"))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    third = asyncio.create_task(watched(rig, task_id))
    work.say(None)
    assert (await third)["already_running"] is (await other)["already_running"] is False
    assert (await third)["status"] == "succeeded"


async def _already(rig: Rig, task_id: str) -> dict[str, Any] | None:
    told = await watched(rig, task_id, timeout_sec=0)
    return told if told["already_running"] else None


async def test_cancel_is_confirmed_before_the_state_changes(rig: Rig) -> None:
    work = Stepping()
    task_id = await start(rig, work)
    await until(lambda: is_now(rig, task_id, "running"))
    assert await rig.call("skills.task_cancel", task_id=task_id) == {
        "task_id": task_id, "status": "canceled", "canceled": True,
    }  # fmt: skip
    assert rig.backend.held == {}
    told = await status(rig, task_id)
    assert (told["status"], told["reason"], told["exit_code"]) == ("canceled", "cancelled", -1)
    again = await rig.call("skills.task_cancel", task_id=task_id)
    assert (again["canceled"], again["status"]) == (False, "canceled")


async def test_cancel_of_a_task_that_waits(rig: Rig) -> None:
    rig.configure(admission={"running": 1, "reserve": 0})
    first, second = await start(rig, Stepping()), await start(rig, Stepping())
    await until(lambda: is_now(rig, first, "running"))
    assert (await status(rig, second))["status"] == "queued"
    assert (await rig.call("skills.task_cancel", task_id=second))["canceled"]
    assert (await status(rig, second))["exit_code"] == -1
    assert len(rig.backend.started) == 1
    await rig.call("skills.task_cancel", task_id=first)


async def test_output_is_paged_with_its_streams_live_and_afterwards(rig: Rig) -> None:
    work = Stepping()
    task_id = await start(rig, work)
    work.say(b"one\x002two")

    async def page(offset: int, **more: Any) -> dict[str, Any]:
        return await rig.call("skills.task_logs", task_id=task_id, offset=offset, wait_ms=20_000, **more)

    first = await page(0)
    assert [chunk["stream"] for chunk in first["chunks"]] == ["stdout", "stderr"][: len(first["chunks"])]
    offset, texts = 0, {"stdout": "", "stderr": ""}
    work.say(b"three\x001four\xc3", b"\xa9!", None)
    while True:
        told = await page(offset)
        for chunk in told["chunks"]:
            texts[chunk["stream"]] += chunk["text"]
        if told["complete"]:
            break
        assert told["next_offset"] > offset
        offset = told["next_offset"]
    assert texts == {"stdout": "onefouré!", "stderr": "twothree"}
    whole = await page(0)
    assert whole["chunks"] == [
        {"stream": "stdout", "text": "one"}, {"stream": "stderr", "text": "twothree"},
        {"stream": "stdout", "text": "fouré!"},
    ]  # fmt: skip
    assert [chunk["text"] for chunk in (await page(0, stream="stderr"))["chunks"]] == ["twothree"]
    later = await page(3 + 2 + 3, max_bytes=4)
    assert later["chunks"] == [{"stream": "stderr", "text": "thre"}]


async def test_files_and_their_errors_come_with_the_end(rig: Rig) -> None:
    piece = frame(b"B", js({"n": 1, "kind": "text/plain", "path": "0/skill/a"})) + frame(b"E", js({"n": 1, "size": 0}))
    task_id = await start(rig, playing(piece + DONE), outputs=[{"path": "a", "save_as": "b"}, {"path": "none"}])
    told = await watched(rig, task_id)
    assert [(made["path"], made["filename"]) for made in told["created_artifacts"]] == [("skill/a", "b")]
    assert told["output_errors"] == [{"path": "skill/none", "error": "not found"}]


async def test_limits_of_tasks_are_their_own_and_refused_by_name(rig: Rig) -> None:
    task_id = await start(rig, timeout_sec=86_400)
    assert (await watched(rig, task_id))["limits"]["timeout_ms"] == 86_400_000
    with pytest.raises(InvalidInput, match=r"timeout_sec: must be at most 86400, .*commands\.max_task_timeout_s"):
        await start(rig, timeout_sec=86_401)
    with pytest.raises(InvalidInput, match=r"commands\.max_timeout_s"):
        await rig.call("skills.run_cmd", skill_name="acme.notes", command="ls", timeout_sec=121)
    with pytest.raises(InvalidInput, match="timeout_sec: must equal"):
        await start(rig, timeout_sec=5, limits={"timeout_ms": 6000})
    task_id = await start(rig, limits={"timeout_ms": 6000})
    assert (await watched(rig, task_id))["limits"]["timeout_ms"] == 6000


STRANGERS = [
    token("bob"),
    token("ann", project="other"),
    token("ann2", agent="other", agents=("x*",)),
    Principal("root", frozenset({*SCOPES, Scope.ADMIN}), project="other"),
]


@pytest.mark.parametrize("stranger", STRANGERS, ids=str)
async def test_a_task_of_another_project_or_agent_does_not_exist(rig: Rig, stranger: Principal) -> None:
    work = Stepping()
    task_id = await start(rig, work)
    await until(lambda: is_now(rig, task_id, "running"))
    for tool in ("task_status", "task_watch", "task_logs", "task_cancel"):
        texts = []
        for id in (task_id, "run_none"):
            with pytest.raises(TaskNotFound) as refused:
                await rig.call(f"skills.{tool}", stranger, task_id=id)
            texts.append(str(refused.value).replace(id, "ID"))
        assert texts == ["task_id: no task 'ID'"] * 2
    with pytest.raises(TaskNotFound):
        await rig.call("skills.task_status", stranger, provider="cmd", task_id=task_id, query_command="ls")
    assert (await rig.call("skills.tasks", stranger))["tasks"] == []
    with pytest.raises(InvalidInput, match="cursor"):
        await rig.call("skills.tasks", stranger, cursor=task_id)
    assert (await status(rig, task_id))["status"] == "running"
    work.say(None)
    await watched(rig, task_id)


async def test_runs_that_are_not_tasks_do_not_exist_as_tasks(rig: Rig) -> None:
    rig.backend.script = playing(DONE)
    ran = await rig.call("skills.run_cmd", skill_name="acme.notes", command="ls")
    rig.backend.script = playing(result({}))
    run = await rig.call("run_code", language="python", code="def main(args): return {}", detach=True)
    for run_id in (ran["run_id"], run["run_id"]):
        with pytest.raises(TaskNotFound):
            await status(rig, run_id)


async def test_a_task_belongs_to_the_agent_whoever_holds_the_token(rig: Rig) -> None:
    chief = token("chief", agents=("crawler-*",))
    crawler = token("tok-7", agent="crawler-1")
    task_id = await start(rig, None, chief, agent="crawler-1")
    assert (await rig.call("skills.task_watch", crawler, task_id=task_id))["status"] == "succeeded"
    assert (await rig.call("skills.task_status", chief, task_id=task_id))["agent"] == "crawler-1"
    assert (await rig.call("skills.task_status", chief, task_id=task_id, agent="crawler-1"))["agent"] == "crawler-1"
    with pytest.raises(TaskNotFound):
        await rig.call("skills.task_status", chief, task_id=task_id, agent="crawler-2")
    with pytest.raises(Forbidden):
        await rig.call("skills.task_status", crawler, task_id=task_id, agent="chief")
    listed = await rig.call("skills.tasks", crawler)
    assert [(task["task_id"], task["status"]) for task in listed["tasks"]] == [(task_id, "succeeded")]
    assert (await rig.call("skills.tasks", chief))["tasks"] == []
    assert len((await rig.call("skills.tasks", chief, agent="crawler-1"))["tasks"]) == 1


async def test_tasks_are_listed_page_by_page(rig: Rig) -> None:
    made = [await start(rig) for _ in range(3)]
    first = await rig.call("skills.tasks", limit=2)
    rest = await rig.call("skills.tasks", limit=2, cursor=first["next_cursor"])
    assert [task["task_id"] for task in (*first["tasks"], *rest["tasks"])] == made[::-1]
    assert rest["next_cursor"] is None
    for task_id in made:
        await watched(rig, task_id)


async def test_a_repeated_key_gets_the_first_task(rig: Rig) -> None:
    task_id = await start(rig, idempotency_key="once")
    await watched(rig, task_id)
    asked: dict[str, Any] = {"skill_name": "acme.notes", "idempotency_key": "once"}
    again = await rig.call("skills.run_cmd_async", command="ls", **asked)
    assert (again["task_id"], again["status"]) == (task_id, "succeeded")
    for method, command in (("skills.run_cmd_async", "other"), ("skills.run_cmd", "ls")):
        with pytest.raises(IdempotencyConflict):
            await rig.call(method, command=command, **asked)


async def test_a_task_goes_on_under_the_next_server(rig: Rig) -> None:
    work = Stepping()
    task_id = await start(rig, work)
    work.say(b"before\x002e1")
    await until(lambda: _with_output(rig, task_id))
    await killed(rig)
    orphan = await status(rig, task_id)
    assert (orphan["status"], orphan["orphaned"]) == ("running", True)
    with pytest.raises(Busy, match="no server drives the task"):
        await rig.call("skills.task_cancel", task_id=task_id)
    await next_server(rig)
    work.say(b"\x001after\x002e2", None)
    told = await watched(rig, task_id)
    assert (told["status"], told["stdout_tail"], told["stderr_tail"]) == ("succeeded", "beforeafter", "e1e2")
    assert work.started == 1
    await idle(rig)


async def test_a_large_output_is_stored_in_parts_and_goes_on_with_its_streams(rig: Rig) -> None:
    rig.secrets.values["TOKEN"] = "tok-0123456789"
    rig.skills.add(a_skill("acme.crm", needs=Needs(secrets=(SecretNeed("TOKEN"),))))
    rig.configure(policy={"run_code_secrets": "mounted"})
    work = Stepping()
    task_id = await start(rig, work, skill_name="acme.crm")
    work.say(b"\x002begun tok-01\x001", *[b"o" * 50_000] * 25, b" tok-0123\x002")
    await until(lambda: _has_part(rig, task_id))
    await killed(rig)
    await next_server(rig)
    work.say(b"23456789 e\x001456789 o", None)
    told = await watched(rig, task_id)
    assert told["stderr_tail"] == "begun [redacted] e"
    assert (told["stdout_tail"][-14:], told["stdout_truncated"]) == ("o [redacted] o", True)
    log = await rig.content(told["logs_blob"])
    assert log.count(b"o") == 25 * 50_000 + 1
    assert b"tok-" not in log
    [blob_id] = [info.blob_id for info in await rig.app.ports.blobs.list(None)]
    assert blob_id == told["logs_blob"], "no part is left"


async def _has_part(rig: Rig, task_id: str) -> bool:
    record = await rig.app.ports.records.get(task_id)
    return record is not None and record.offsets.log.parts > 0


STATES = [
    ("running", {"done": False, "error": False, "state": "running"}),
    ("done", {"done": True, "error": False, "state": "done"}),
    ("errored", {"done": False, "error": True, "state": "errored"}),
]


@pytest.mark.parametrize(("state", "wanted"), STATES)
async def test_a_command_tells_the_state_of_work_elsewhere(rig: Rig, state: str, wanted: dict[str, Any]) -> None:
    said = js({"status": state, "progress": 0.5, "events": ["e"]})
    rig.backend.script = playing(DONE, log=said)
    asked: dict[str, Any] = {"provider": "cmd", "skill_name": "acme.notes", "query_command": "./state"}
    told = await rig.call("skills.task_status", **asked)
    assert {name: told[name] for name in wanted} == wanted
    assert (told["progress"], told["events"], told["raw"]["status"]) == (0.5, ["e"], state)
    assert rig.backend.started[-1][1]["command"]["text"] == "./state"
    assert rig.backend.started[-1][2] == 30_000


async def test_fields_and_states_can_be_named_otherwise(rig: Rig) -> None:
    task_id = await start(rig)
    await watched(rig, task_id)
    rig.backend.script = playing(DONE, log=js({"phase": "ok", "pct": 7}))
    asked: dict[str, Any] = {"provider": "cmd", "task_id": task_id, "query_command": "x", "status_field": "phase"}
    told = await rig.call("skills.task_watch", **asked, progress_field="pct", done_states=["ok"], query_timeout_sec=2)
    assert (told["state"], told["done"], told["progress"], told["timed_out"]) == ("ok", True, 7, False)
    assert rig.backend.started[-1][2] == 2000
    bad = await rig.call("skills.task_status", **asked, error_states=["ok"], timeout_sec=2)
    assert (bad["done"], bad["error"]) == (False, True)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (playing(DONE, log=b"no json"), "must print one JSON object"),
        (playing(DONE, log=b"[1]"), "must print one JSON object"),
        (playing(DONE, log=b'{"status": NaN}'), "must print one JSON object"),
        (playing(DONE, log=b'{"status": 1e999}'), "must print one JSON object"),
        (playing(DONE, log=b'{"status": ' + 300 * b"[" + 300 * b"]" + b"}"), "must print one JSON object"),
        (playing(result({"exit_code": 4}), log=b"\x002why"), "exit code 4: why"),
    ],
)
async def test_a_query_that_tells_nothing_is_an_error(rig: Rig, script: Any, message: str) -> None:
    rig.backend.script = script
    asked: dict[str, Any] = {"provider": "cmd", "skill_name": "acme.notes", "query_command": "./state"}
    told = await rig.call("skills.task_watch", **asked)
    assert (told["error"], told["raw"], told["state"]) == (True, None, None)
    assert message in told["error_message"]


@pytest.mark.parametrize("mode", ["project_agent", "session"])
async def test_a_query_has_a_sandbox_of_its_own(rig: Rig, mode: str) -> None:
    rig.configure(sessions={"reuse_mode": mode})
    rig.backend.script = playing(DONE, log=js({"status": "done"}))
    asked: dict[str, Any] = {"provider": "cmd", "skill_name": "acme.notes", "query_command": "./state"}
    assert (await rig.call("skills.task_status", **asked))["done"]
    assert (await rig.call("skills.sessions"))["sessions"] == []


async def test_parameters_of_the_other_provider_are_refused(rig: Rig) -> None:
    others: tuple[dict[str, Any], ...] = ({"query_command": "x"}, {"done_states": []}, {"timeout_sec": 1})
    for wrong in others:
        with pytest.raises(InvalidInput, match="goes with provider 'cmd' alone"):
            await status(rig, "run_x", **wrong)
    incomplete: tuple[tuple[dict[str, Any], str], ...] = (({}, "task_id"), ({"provider": "cmd"}, "query_command"))
    for given, field in incomplete:
        with pytest.raises(InvalidInput, match=f"{field}: must be given"):
            await rig.call("skills.task_status", **given)
    with pytest.raises(InvalidInput, match="skill_name: must be given"):
        await rig.call("skills.task_status", provider="cmd", query_command="x")


async def test_a_query_runs_in_the_session_that_it_names(rig: Rig) -> None:
    rig.backend.script = playing(DONE, log=js({"status": "done"}))
    asked: dict[str, Any] = {"provider": "cmd", "skill_name": "acme.notes", "query_command": "./state"}
    assert (await rig.call("skills.task_status", **asked, session_id="work"))["done"]
    assert [one["session_id"] for one in (await rig.call("skills.sessions"))["sessions"]] == ["work"]


async def test_the_session_of_a_task_can_be_named_and_no_other(rig: Rig) -> None:
    task_id = await start(rig, session_id="work")
    assert (await watched(rig, task_id, session_id="work"))["status"] == "succeeded"
    assert (await status(rig, task_id, session_id="work"))["session_id"] == "work"
    with pytest.raises(InvalidInput, match="session_id: must be the session of the task"):
        await status(rig, task_id, session_id="other")


async def test_no_callback_where_the_operator_names_no_host(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match=r"callback_url: this server tells no callbacks: commands\.callback_hosts"):
        await start(rig, callback_url="https://example.org/hook")
    assert (await rig.call("skills.tasks"))["tasks"] == []


async def test_a_task_that_cannot_be_stored_is_not_acknowledged(rig: Rig) -> None:
    real = rig.extra["records"]

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        async def insert(self, *_: Any) -> None:
            raise StoreFault("the disk is full")

    rig.extra["records"] = Full()
    rig.configure()
    with pytest.raises(StoreFault, match="the disk is full"):
        await start(rig)
    await idle(rig)
    assert (rig.backend.started, list(rig.app.active)) == ([], [])


class Counting:
    """A store of records that counts what is asked of it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self._store, name)


async def test_watchers_ask_nothing_of_the_store_while_nothing_happens(rig: Rig) -> None:
    """Fifty of them stand still however much time goes by, and each looks once more at the end."""
    counting = rig.extra["records"] = Counting(rig.extra["records"])
    rig.configure(admission={"polls": 100, "polls_each": 100})
    work = Stepping()
    task_id = await start(rig, work)
    await until(lambda: is_now(rig, task_id, "running"))
    async with asyncio.timeout(30):
        while rig.app.active[task_id].process is None:
            await asyncio.sleep(0)
    watching = [
        asyncio.create_task(rig.call("skills.task_watch", task_id=task_id, dedupe_key=f"w{n}")) for n in range(50)
    ]
    for _ in range(200):  # all of them have begun to wait
        await asyncio.sleep(0)
    began = len(counting.asked)
    for _ in range(2000):
        rig.clock.time += 1
        await asyncio.sleep(0)
    assert counting.asked[began:] == []
    work.say(None)
    async with asyncio.timeout(60):
        told = await asyncio.gather(*watching)
    assert {(each["status"], each["already_running"]) for each in told} == {("succeeded", False)}
    asked = counting.asked[began:].count("get")
    assert 50 <= asked <= 50 * 6, asked
