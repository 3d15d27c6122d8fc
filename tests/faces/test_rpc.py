"""JSON-RPC 2.0 as the dispatcher speaks it. requirements.toml says which rule each test holds."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Coroutine
from typing import Any

import pytest

from skillyard.domain.errors import (
    BlobNotFound,
    Busy,
    Forbidden,
    NotExecutable,
    ProtectionMissing,
    SandboxFault,
    SkillNotFound,
    StoreFault,
    UnsupportedLanguage,
)
from skillyard.domain.principal import Principal
from skillyard.engine.table import METHODS
from skillyard.faces.rpc.dispatcher import Answer, Dispatcher
from skillyard.faces.rpc.wire import CallerGone
from tests.faces.support import ROOT, Engine

pytestmark = pytest.mark.anyio


class Patient:
    """A caller that waits."""

    gone = False

    def hold(self, _count: int) -> None: ...

    async def wait(self, call: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        return await call


class Left(Patient):
    """A caller that has gone."""

    gone = True

    def hold(self, _count: int) -> None: ...

    async def wait(self, call: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        call.close()
        raise CallerGone


class Rpc:
    def __init__(self) -> None:
        self.engine = Engine()
        self.metered: list[tuple[str, str]] = []
        self._dispatcher = Dispatcher(METHODS, self.engine.invoke, lambda m, o, _: self.metered.append((m, o)))

    async def answer(self, body: Any, caller: Patient | None = None, principal: Principal = ROOT) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._dispatcher.answer(raw, principal, caller or Patient())

    async def ask(self, body: Any) -> Any:
        answer = await self.answer(body)
        return None if answer.content is None else json.loads(answer.content)

    async def code(self, body: Any) -> int:
        reply = await self.ask(body)
        assert set(reply) == {"jsonrpc", "id", "error"}
        assert isinstance(reply["error"]["message"], str)
        assert "type" in reply["error"]["data"]
        return int(reply["error"]["code"])

    def raising(self, error: Exception) -> None:
        async def fail(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
            raise error

        self.engine.handlers["list_skills"] = fail


@pytest.fixture
def rpc() -> Rpc:
    return Rpc()


def request(method: str = "list_skills", params: Any = None, id: Any = 1, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {} if params is None else params, **more}


# Envelope


@pytest.mark.parametrize("id", ["a", "", "é", 0, -1, 7, 2**70, 10**400, None])
async def test_the_answer_carries_the_id(rpc: Rpc, id: Any) -> None:
    reply = await rpc.ask(request(id=id))
    assert reply == {"jsonrpc": "2.0", "id": id, "result": {"echo": {}}}
    assert type(reply["id"]) is type(id)


@pytest.mark.parametrize(
    "id", ["1.5", "1.0", "-0.0", "1e2", "1E+2", "0.10", "3.141592653589793238462643383279", "1e-400"]
)
async def test_a_number_with_a_fraction_or_an_exponent_comes_back_as_it_was_written(rpc: Rpc, id: str) -> None:
    call = f'{{"jsonrpc":"2.0","method":"list_skills","params":{{"x":1.50}},"id":{id}}}'
    answer = await rpc.answer(call.encode())
    assert answer.well_formed
    assert answer.content == f'{{"jsonrpc":"2.0","id":{id},"result":{{"echo":{{"x":1.5}}}}}}'.encode()
    wrong = await rpc.answer(call.replace("list_skills", "nothing").encode())
    assert f'"id":{id},"error"'.encode() in (wrong.content or b"")
    envelope = await rpc.answer(call.replace('"2.0"', '"1.0"').encode())
    assert f'"id":{id},"error"'.encode() in (envelope.content or b"")
    batch = await rpc.answer(f'[{call},{{"jsonrpc":"2.0","method":"list_skills","id":2}}]'.encode())
    assert (batch.content or b"").startswith(f'[{{"jsonrpc":"2.0","id":{id},"result"'.encode())


@pytest.mark.parametrize("id", [True, False, [], {}])
async def test_other_ids_are_refused(rpc: Rpc, id: Any) -> None:
    reply = await rpc.ask(request(id=id))
    assert (reply["id"], reply["error"]["code"]) == (None, -32600)
    assert rpc.engine.calls == []


@pytest.mark.parametrize("value", [1, "x", None, True, 1.5])
async def test_what_is_no_object_is_no_request(rpc: Rpc, value: Any) -> None:
    answer = await rpc.answer(value)
    assert not answer.well_formed
    assert await rpc.code(value) == -32600


@pytest.mark.parametrize("version", ["1.0", "2", 2, 2.0, None, ["2.0"]])
async def test_jsonrpc_is_2_0(rpc: Rpc, version: Any) -> None:
    assert await rpc.code(request() | {"jsonrpc": version}) == -32600


async def test_jsonrpc_is_required(rpc: Rpc) -> None:
    assert await rpc.code({"id": 1, "method": "list_skills"}) == -32600


@pytest.mark.parametrize("method", [1, None, [], {}, True])
async def test_method_is_a_string(rpc: Rpc, method: Any) -> None:
    reply = await rpc.ask(request() | {"method": method})
    assert (reply["id"], reply["error"]["code"]) == (1, -32600)


async def test_method_is_required(rpc: Rpc) -> None:
    assert await rpc.code({"jsonrpc": "2.0", "id": 1}) == -32600


@pytest.mark.parametrize("params", ["x", 1, True, None, 1.5])
async def test_params_is_structured(rpc: Rpc, params: Any) -> None:
    assert await rpc.code(request() | {"params": params}) == -32600


async def test_missing_params_are_empty(rpc: Rpc) -> None:
    reply = await rpc.ask({"jsonrpc": "2.0", "id": 1, "method": "list_skills"})
    assert reply["result"] == {"echo": {}}


@pytest.mark.parametrize("params", [[], [1], ["a", {}]])
async def test_positional_params_are_refused(rpc: Rpc, params: Any) -> None:
    assert await rpc.code(request(params=params)) == -32602
    assert rpc.engine.calls == []


async def test_an_unknown_member_is_refused_by_name(rpc: Rpc) -> None:
    reply = await rpc.ask(request(param={}))
    assert reply["error"]["code"] == -32600
    assert "param" in reply["error"]["message"]


async def test_bad_json_is_a_parse_error(rpc: Rpc) -> None:
    answer = await rpc.answer(b"{")
    assert not answer.well_formed
    reply = await rpc.ask(b"{")
    assert (reply["id"], reply["error"]["code"]) == (None, -32700)


async def test_an_envelope_error_keeps_a_good_id(rpc: Rpc) -> None:
    assert (await rpc.ask(request(id="x") | {"jsonrpc": "3"}))["id"] == "x"


# Methods and errors


@pytest.mark.parametrize("method", ["", "nope", "rpc.nothing", "List_skills", "__init__", "\0"])
async def test_an_unknown_method(rpc: Rpc, method: str) -> None:
    assert await rpc.code(request(method)) == -32601
    assert rpc.metered == [("unknown", "MethodNotFound")]


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (SkillNotFound("name", "no such skill"), -32602, "SkillNotFound"),
        (BlobNotFound("blob_id", "no such blob"), -32602, "BlobNotFound"),
        (NotExecutable("name", "is text"), -32602, "NotExecutable"),
        (UnsupportedLanguage("language", "must be 'python'"), -32602, "UnsupportedLanguage"),
        (Forbidden("not allowed"), -32003, "Forbidden"),
        (Busy("too many", retry_after_ms=250), -32005, "Busy"),
        (ProtectionMissing("no landlock", protections=["landlock"]), -32004, "ProtectionMissing"),
    ],
)
async def test_errors_have_their_codes(rpc: Rpc, error: Exception, code: int, kind: str) -> None:
    rpc.raising(error)
    reply = await rpc.ask(request())
    assert (reply["error"]["code"], reply["error"]["data"]["type"]) == (code, kind)
    assert rpc.metered == [("list_skills", kind)]


async def test_busy_says_when_to_come_again(rpc: Rpc) -> None:
    rpc.raising(Busy("too many", retry_after_ms=250))
    assert (await rpc.ask(request()))["error"]["data"]["retry_after_ms"] == 250


@pytest.mark.parametrize("error", [RuntimeError("db at /x"), SandboxFault("db at /x"), StoreFault("db at /x")])
async def test_an_internal_fault_shows_an_incident_only(
    rpc: Rpc, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    rpc.raising(error)
    failure = (await rpc.ask(request()))["error"]
    assert failure["code"] == -32603
    assert "db at" not in json.dumps(failure)
    assert set(failure["data"]) == {"type", "incident"}
    assert [r.__dict__["incident"] for r in caplog.records] == [failure["data"]["incident"]]


async def test_a_result_that_is_no_json_is_an_internal_fault(rpc: Rpc) -> None:
    async def nan(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        return {"x": math.nan}

    rpc.engine.handlers["list_skills"] = nan
    assert await rpc.code(request()) == -32603


async def test_a_failed_run_is_a_result(rpc: Rpc) -> None:
    async def failed(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        return {"status": "failed", "error": {"type": "ValueError", "message": "x"}}

    rpc.engine.handlers["run_code"] = failed
    reply = await rpc.ask(request("run_code", {"language": "python", "code": "x"}))
    assert set(reply) == {"jsonrpc", "id", "result"}
    assert reply["result"]["status"] == "failed"


# Notifications


def notification(method: str = "list_skills", params: Any = None) -> dict[str, Any]:
    value = request(method, params)
    del value["id"]
    return value


async def test_a_notification_gets_no_answer(rpc: Rpc) -> None:
    answer = await rpc.answer(notification())
    assert (answer.content, answer.well_formed) == (None, True)
    assert [name for _, name, _ in rpc.engine.calls] == ["list_skills"]


@pytest.mark.parametrize("method", ["nope", "list_skills"])
async def test_a_failing_notification_gets_no_answer(rpc: Rpc, method: str, caplog: pytest.LogCaptureFixture) -> None:
    rpc.raising(Forbidden("no"))
    assert await rpc.ask(notification(method)) is None
    assert [r.getMessage() for r in caplog.records] == ["notification refused"]


async def test_a_fault_within_a_notification_is_logged(rpc: Rpc, caplog: pytest.LogCaptureFixture) -> None:
    rpc.raising(RuntimeError("boom"))
    assert await rpc.ask(notification()) is None
    assert [r.getMessage() for r in caplog.records] == ["internal fault"]


@pytest.mark.parametrize("method", ["execute_skill", "run_code"])
async def test_a_run_as_notification_is_refused_and_logged(
    rpc: Rpc, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await rpc.ask(notification(method)) is None
    assert rpc.engine.calls == []
    assert [(r.levelno, r.__dict__["method"]) for r in caplog.records] == [(logging.WARNING, method)]


# Batches


async def test_a_batch_is_answered_in_order(rpc: Rpc) -> None:
    replies = await rpc.ask([request(id=n, params={"limit": n}) for n in range(16)])
    assert [r["id"] for r in replies] == list(range(16))
    assert [r["result"]["echo"]["limit"] for r in replies] == list(range(16))


async def test_a_batch_is_worked_off_one_after_the_other(rpc: Rpc) -> None:
    at_once = most = 0

    async def watch(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return {}

    rpc.engine.handlers["list_skills"] = watch
    await rpc.ask([request(id=n) for n in range(5)])
    assert most == 1


async def test_an_empty_batch_is_one_error(rpc: Rpc) -> None:
    assert not (await rpc.answer([])).well_formed
    reply = await rpc.ask([])
    assert (reply["id"], reply["error"]["code"]) == (None, -32600)


async def test_a_batch_over_the_limit_is_one_error_and_executes_nothing(rpc: Rpc) -> None:
    reply = await rpc.ask([request(id=n) for n in range(17)])
    assert (reply["id"], reply["error"]["code"]) == (None, -32600)
    assert rpc.engine.calls == []


async def test_entries_of_a_batch_fail_alone(rpc: Rpc) -> None:
    answer = await rpc.answer([1, request(id="a"), request("nope", id=2), [], {"id": 5}])
    replies = json.loads(answer.content or b"")
    assert answer.well_formed
    assert [r["id"] for r in replies] == [None, "a", 2, None, 5]
    assert [r.get("error", {}).get("code") for r in replies] == [-32600, None, -32601, -32600, -32600]


async def test_notifications_in_a_batch_have_no_entry(rpc: Rpc) -> None:
    replies = await rpc.ask([notification(), request(id=3), notification("run_code")])
    assert [r["id"] for r in replies] == [3]


async def test_a_batch_of_notifications_gets_no_answer(rpc: Rpc) -> None:
    assert await rpc.ask([notification(), notification()]) is None


async def test_a_batch_that_answers_too_much_is_cut(rpc: Rpc) -> None:
    async def big(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        return {"x": "y" * (12 * 1024 * 1024)}

    rpc.engine.handlers["read_blob"] = big
    replies = await rpc.ask([request("read_blob", id=n) for n in range(5)])
    assert [r.get("error", {}).get("code") for r in replies] == [None, None, None, -32005, -32005]
    assert len(rpc.engine.calls) == 3


# Callers that go away


async def test_a_run_whose_caller_left_has_no_answer(rpc: Rpc) -> None:
    with pytest.raises(CallerGone):
        await rpc.answer(request("run_code"), Left())
    assert rpc.metered == [("run_code", "CallerGone")]
    assert rpc.engine.calls == []


async def test_a_detached_run_goes_on_without_its_caller(rpc: Rpc) -> None:
    batch = [request("run_code", {"detach": d}, id=n) for n, d in enumerate([False, True, False])]
    await rpc.answer(batch, Left())
    assert [params["detach"] for _, _, params in rpc.engine.calls] == [True]
