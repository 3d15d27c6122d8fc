"""The tasks extension, and the approval of a skill's needs, with a real runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from mcp.client import Client, advertise
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    ElicitRequestFormParams,
    ElicitResult,
    NotificationParams,
    Request,
    RequestParams,
    Result,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsListenRequest,
    SubscriptionsListenRequestParams,
)

from skillyard.config.settings import load_settings
from skillyard.domain.principal import LOCAL, Principal, Profile, Scope
from skillyard.faces.mcp import tasks
from skillyard.faces.mcp.caller import Callers
from skillyard.faces.mcp.tasks import EXTENSION
from skillyard.runtime import Runtime
from tests.faces.mcp.support import CODE, answering, face_of
from tests.faces.support import Engine

pytestmark = pytest.mark.anyio

NEEDY = """name = "acme.net.fetch"
version = "1.0.0"
description = "Fetches."
kind = "action"

[runtime]
language = "python"
entrypoint = "main.py"
export = "main"

[permissions]
network = ["api.example.com:443"]
"""


async def opened(stack: AsyncExitStack, place: Path) -> Runtime:
    skill = place / "skills" / "acme.net.fetch"
    skill.mkdir(parents=True)
    (skill / "skill.toml").write_text(NEEDY)
    (skill / "SKILL.md").write_text("---\nname: fetch\ndescription: Fetches.\n---\n# Fetch\n")
    (skill / "main.py").write_text("def main(args):\n    return {'done': True}\n")
    settings = load_settings(data_dir=place / "data", skills_dirs=(place / "skills",), trust={"directories": False})
    return await stack.enter_async_context(Runtime(settings=settings))


@pytest.fixture(scope="module")
async def runtime(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    async with AsyncExitStack() as stack:
        yield await opened(stack, tmp_path_factory.mktemp("tasks"))


OF_ANSWERS = ("resultType", "_meta")
"""Members of an answer that a notification does not have."""


class TaskParams(RequestParams):
    task_id: str


class Ask(Request[TaskParams, str]):
    method: str
    params: TaskParams


class Open(Result, extra="allow"):
    pass


def knowing(runtime: Runtime, principal: Principal = LOCAL, **more: Any) -> Client:
    """Returns a client that declares the extension."""
    return Client(face_of(runtime, principal)[0], extensions=[advertise(EXTENSION, {})], **more)


async def ask(client: Client, method: str, task_id: str) -> dict[str, Any]:
    answer = await client.session.send_request(Ask(method=method, params=TaskParams(task_id=task_id)), Open)
    return answer.model_dump(by_alias=True)


async def started(client: Client, code: str) -> dict[str, Any]:
    params = CallToolRequestParams(name="run_code", arguments={"language": "python", "code": code})
    answer = await client.session.send_request(CallToolRequest(params=params), Open)
    return answer.model_dump(by_alias=True)


async def ended(client: Client, task_id: str) -> dict[str, Any]:
    with anyio.fail_after(30):
        while (task := await ask(client, "tasks/get", task_id))["status"] == "working":
            await anyio.sleep(0.05)
    return task


async def test_a_run_that_ends_at_once_is_no_task(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AT_ONCE_MS", 30_000)
    async with knowing(runtime) as client:
        done = await started(client, CODE["code"])
    assert done["structuredContent"]["status"] == "completed"


async def test_a_long_run_is_a_task_with_its_result(runtime: Runtime) -> None:
    code = "import time\ntime.sleep(2)\ndef main(args): return {'x': 1}"
    async with knowing(runtime) as client:
        task = await started(client, code)
        assert (task["resultType"], task["status"], task["ttlMs"] is None or task["ttlMs"] > 0) == (
            "task",
            "working",
            True,
        )
        done = await ended(client, task["taskId"])
    assert (done["status"], done["result"]["isError"]) == ("completed", False)
    assert done["result"]["structuredContent"]["output"] == {"x": 1}
    assert done["createdAt"] == task["createdAt"] <= done["lastUpdatedAt"]


async def test_a_run_that_fails_is_a_completed_task_with_an_error(runtime: Runtime) -> None:
    async with knowing(runtime) as client:
        task = await started(client, "import time\ntime.sleep(2)\n1/0")
        done = await ended(client, task["taskId"])
    assert (done["status"], done["result"]["isError"]) == ("completed", True)
    assert done["result"]["structuredContent"]["error"]["type"] == "ZeroDivisionError"


async def test_a_cancelled_task_has_ended(runtime: Runtime) -> None:
    async with knowing(runtime) as client:
        task = await started(client, "import time\ntime.sleep(600)")
        assert (await ask(client, "tasks/update", task["taskId"]))["resultType"] == "complete"
        await ask(client, "tasks/cancel", task["taskId"])
        assert (await ask(client, "tasks/get", task["taskId"]))["status"] == "cancelled"
    assert not runtime.app.active


async def test_a_task_outlives_its_client_and_server(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        runtime = await opened(stack, tmp_path)
        async with knowing(runtime) as client:
            task = await started(client, "import time\ntime.sleep(4)\ndef main(args): return {'x': 2}")
    async with Runtime(settings=runtime.settings) as again, knowing(again) as client:
        done = await ended(client, task["taskId"])
    assert done["result"]["structuredContent"]["output"] == {"x": 2}


async def test_only_its_owner_sees_a_task(runtime: Runtime) -> None:
    bob = Principal("bob", LOCAL.scopes - {next(s for s in LOCAL.scopes if s.value == "admin")})
    async with knowing(runtime) as client, knowing(runtime, bob) as other:
        task = await started(client, "import time\ntime.sleep(600)")
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            with pytest.raises(MCPError) as refused:
                await ask(other, method, task["taskId"])
            assert refused.value.error.code == -32602
        assert (await ask(client, "tasks/get", task["taskId"]))["status"] == "working"
        await ask(client, "tasks/cancel", task["taskId"])


class Heard(ClientExtension):
    """A client's tasks as it is told of them; ``more`` is set with each."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.tasks: list[dict[str, Any]] = []
        self.more = anyio.Event()

    def notifications(self) -> list[NotificationBinding[Told]]:
        return [NotificationBinding(method="notifications/tasks", params_type=Told, handler=self.hear)]

    async def hear(self, params: Told) -> None:
        self.tasks.append(params.model_dump(by_alias=True))
        self.more.set()
        self.more = anyio.Event()

    async def until(self, status: str) -> dict[str, Any]:
        with anyio.fail_after(60):
            while True:
                more = self.more
                if found := [task for task in self.tasks if task["status"] == status]:
                    return found[-1]
                await more.wait()


class Told(NotificationParams, extra="allow"):
    pass


def listening(*task_ids: Any) -> SubscriptionsListenRequest:
    named = SubscriptionFilter.model_validate({"taskIds": list(task_ids)})
    return SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=named))


async def test_a_client_that_listens_hears_how_its_task_ends(runtime: Runtime) -> None:
    """The tasks of others, and unknown ones, are not agreed to."""
    heard, agreed = Heard(), list[Any]()

    async def hear(message: Any) -> None:
        if isinstance(message, SubscriptionsAcknowledgedNotification):
            agreed.append(message.params.notifications.model_extra)

    other = replace(LOCAL, name="other")
    async with (
        knowing(runtime, other) as stranger,
        Client(face_of(runtime)[0], extensions=[heard], message_handler=hear) as client,
        anyio.create_task_group() as group,
    ):
        theirs = await started(stranger, "import time\ndef main(args):\n    time.sleep(60)\n    return {}")
        code = "import time\ndef main(args):\n    time.sleep(3)\n    return {'sum': 6}"
        task_id = (await started(client, code))["taskId"]
        request = listening(task_id, theirs["taskId"], "run_unknown")
        group.start_soon(client.session.send_request, request, Open)
        assert (await heard.until("working"))["taskId"] == task_id
        done = await heard.until("completed")
        polled = await ask(client, "tasks/get", task_id)
        assert done["result"]["structuredContent"]["output"] == {"sum": 6}
        assert [(name, done[name]) for name in polled if name not in OF_ANSWERS] == [
            (name, value) for name, value in polled.items() if name not in OF_ANSWERS
        ]
        assert {task["taskId"] for task in heard.tasks} == {task_id}
        assert agreed == [{"taskIds": [task_id]}]
        group.cancel_scope.cancel()
        await ask(stranger, "tasks/cancel", theirs["taskId"])


async def test_listening_to_tasks_needs_a_client_that_knows_them(runtime: Runtime) -> None:
    async with Client(face_of(runtime)[0]) as client, knowing(runtime) as knows:
        with anyio.fail_after(30):
            with pytest.raises(MCPError) as refused:
                await client.session.send_request(listening("run_1"), Open)
            assert refused.value.error.code == -32021
            with pytest.raises(MCPError, match="must be a list of task ids"):
                await knows.session.send_request(listening(1), Open)


@pytest.mark.parametrize(("mode", "code"), [("auto", -32021), ("legacy", -32601)])
async def test_tasks_need_a_client_that_knows_them(runtime: Runtime, mode: Any, code: int) -> None:
    async with Client(face_of(runtime)[0], mode=mode) as client:
        with pytest.raises(MCPError) as refused:
            await ask(client, "tasks/get", "run_1")
    assert refused.value.error.code == code


FETCH = ("execute_skill", {"name": "acme.net.fetch"})


async def is_approved(runtime: Runtime) -> bool:
    return bool((await runtime.call("catalogue.needs", {"name": "acme.net.fetch"}))["approved"])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_user_approves_what_a_skill_asks_for(tmp_path: Path, mode: Any) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": True})

    async with AsyncExitStack() as stack:
        runtime = await opened(stack, tmp_path)
        client = await stack.enter_async_context(Client(face_of(runtime)[0], mode=mode, elicitation_callback=answer))
        assert not await is_approved(runtime)
        for _ in range(2):
            done = await client.call_tool(*FETCH)
            assert done.structured_content["run_id"]
        assert await is_approved(runtime)
    assert len(asked) == 1
    assert "network: api.example.com:443" in asked[0]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    "given",
    [
        ElicitResult(action="decline"),
        ElicitResult(action="cancel"),
        ElicitResult(action="accept", content={"approve": False}),
        ElicitResult(action="accept"),
    ],
)
async def test_a_user_who_declines_approves_nothing(runtime: Runtime, mode: Any, given: ElicitResult) -> None:
    async def answer(context: Any, params: Any) -> ElicitResult:
        return given

    async with Client(face_of(runtime)[0], mode=mode, elicitation_callback=answer) as client:
        done = await client.call_tool(*FETCH)
    assert done.is_error
    assert "declined" in str(done.content)
    assert not await is_approved(runtime)


@pytest.mark.parametrize(
    "principal",
    [
        Principal("bob", frozenset(s for s in LOCAL.scopes if s.value != "admin")),
        replace(LOCAL, profile="agents", allowed=Profile(("execute_skill",))),
    ],
)
async def test_nobody_is_asked_who_may_not_approve(runtime: Runtime, principal: Principal) -> None:
    async def answer(context: Any, params: Any) -> ElicitResult:
        raise AssertionError("asked")

    async with Client(face_of(runtime, principal)[0], elicitation_callback=answer) as client:
        await client.call_tool(*FETCH)
    assert not await is_approved(runtime)


async def test_a_client_that_cannot_ask_approves_nothing(runtime: Runtime) -> None:
    async with Client(face_of(runtime)[0]) as client:
        await client.call_tool(*FETCH)
    assert not await is_approved(runtime)


async def test_an_answer_to_no_question_approves_nothing(runtime: Runtime) -> None:
    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    async def forged(client: Client, state: str | None) -> dict[str, Any]:
        given: dict[str, Any] = {"approval": ElicitResult(action="accept", content={"approve": True})}
        params = CallToolRequestParams(name=FETCH[0], arguments=FETCH[1], input_responses=given, request_state=state)
        return (await client.session.send_request(CallToolRequest(params=params), Open)).model_dump(by_alias=True)

    async with Client(face_of(runtime)[0], elicitation_callback=answer) as client:
        told = await forged(client, None)
        assert told["resultType"] == "input_required"
        with pytest.raises(MCPError) as refused:
            await forged(client, told["requestState"][:-4] + "AAAA")
        assert refused.value.error.code == -32602
    assert not await is_approved(runtime)


class Endless:
    """A run that does not end by itself."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def wait(self, _principal: Principal, _run_id: str, _wait_ms: int) -> Any:
        await anyio.sleep_forever()

    async def cancel(self, _principal: Principal, run_id: str, _reason: str | None) -> bool:
        await anyio.sleep(0)
        self.cancelled.append(run_id)
        return True


async def test_a_run_ends_whose_client_cancels_before_it_knows_the_task() -> None:
    engine, runs = Engine(), Endless()
    answering(engine, "run_code", {"run_id": "run_1"})
    nothing = cast("Any", None)
    face = tasks.TaskFace(Callers(engine.invoke), lambda: cast("Any", runs), nothing, None, nothing, nothing)
    context = cast("Any", SimpleNamespace(request=None))
    with anyio.move_on_after(0.05):
        await face.start(context, "run_code", CODE)
    assert runs.cancelled == ["run_1"]


@pytest.mark.parametrize(
    "stranger",
    [
        replace(LOCAL, name="admin"),
        replace(LOCAL, profile="agents", allowed=Profile(("list_skills",))),
        replace(LOCAL, scopes=frozenset({Scope.DISCOVER})),
    ],
    ids=["another principal", "a profile without runs", "a scope without runs"],
)
async def test_a_task_is_that_of_its_principal_alone(runtime: Runtime, stranger: Principal) -> None:
    async with knowing(runtime) as owner, knowing(runtime, stranger) as other:
        task = await started(owner, "import time\ndef main(args):\n    time.sleep(60)\n    return {}")
        for method in ("tasks/get", "tasks/cancel"):
            with pytest.raises(MCPError, match="no run"):
                await ask(other, method, task["taskId"])
        assert (await ask(owner, "tasks/get", task["taskId"]))["status"] == "working"
        await ask(owner, "tasks/cancel", task["taskId"])
