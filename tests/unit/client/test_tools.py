"""Methods as tools of a model: each call gets an answer that the model can read, whatever it wrote."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.client import Client, Tool, errors
from skillyard.client.methods.tools import ToolMethods
from tests.unit.client.yardserver import TOKEN, Refusal, YardServer, completed, failed, serving

pytestmark = pytest.mark.anyio

CODE = {"name": "code", "required": True, "schema": {"type": "string"}}
LABELS = {"name": "labels", "required": False, "schema": {"type": "object"}}
DESCRIBED = {
    "methods": [
        {"name": "run_code", "summary": "Run Python.", "params": [CODE, LABELS]},
        {"name": "skills.list", "summary": "Skills.", "params": []},
    ]
}
RUN_CODE = Tool("run_code", "run_code", "", {})


@pytest.fixture
def yard() -> Iterator[YardServer]:
    with serving() as server:
        server.methods["rpc.discover"] = lambda params: DESCRIBED
        yield server


@pytest.fixture
async def client(yard: YardServer) -> AsyncIterator[Client]:
    async with Client(yard.url, TOKEN) as client:
        yield client


async def test_tools_are_those_that_the_token_may_call_in_the_order_asked_for(client: Client) -> None:
    listed, run = await client.tools(["skills.list", "execute_skill", "run_code"])
    assert (listed.name, listed.method, listed.description) == ("skills_list", "skills.list", "Skills.")
    assert run.parameters == {
        "type": "object",
        "properties": {"code": {"type": "string"}},
        "required": ["code"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("described", [{}, {"methods": 1}, {"methods": [1]}, {"methods": [{"name": "x"}]}])
async def test_a_description_of_another_form_is_refused(client: Client, yard: YardServer, described: Any) -> None:
    yard.methods["rpc.discover"] = lambda params: described
    with pytest.raises(errors.BadReply):
        await client.tools()


async def test_a_run_is_asked_for_in_brief_unless_the_model_wants_more(client: Client, yard: YardServer) -> None:
    yard.methods["run_code"] = lambda params: completed(params)
    brief = await client.call_tool(RUN_CODE, {"code": "1"})
    full = await client.call_tool(RUN_CODE, '{"code": "1", "detail": "full"}')
    assert [json.loads(each.text)["output"]["detail"] for each in (brief, full)] == ["brief", "full"]
    assert not brief.failed


async def test_failed_runs_and_refused_calls_are_answers(client: Client, yard: YardServer) -> None:
    yard.methods["run_code"] = lambda params: failed("ValueError", "no such column")
    assert (await client.call_tool(RUN_CODE, {})).failed

    def refuse(params: Any) -> Any:
        raise Refusal(-32602, "code: must be text", type="InvalidParams", field="code")

    yard.methods["run_code"] = refuse
    refused = await client.call_tool(RUN_CODE, {})
    assert refused.failed
    assert json.loads(refused.text)["error"] == {
        "type": "InvalidParams",
        "message": "code: must be text",
        "data": {"field": "code"},
    }


@pytest.mark.parametrize("written", ["{", "[1]", "null", '"x"', '{"x": NaN}', "[" * 100_000, '{"x": "\\ud800"}'])
async def test_arguments_that_cannot_be_sent_are_told_to_the_model(client: Client, written: str) -> None:
    answer = await client.call_tool(RUN_CODE, written)
    assert answer.failed
    assert json.loads(answer.text)["error"]["type"] == "InvalidParams"


async def test_a_server_that_is_away_raises(yard: YardServer) -> None:
    async with Client(yard.url, TOKEN, retries=0) as client:
        yard.shutdown()
        yard.server_close()
        with pytest.raises(errors.ConnectionFailed):
            await client.call_tool(RUN_CODE, {})


class Echo(ToolMethods):
    async def call(self, method: str, params: Any = None) -> dict[str, Any]:
        return {"params": params}


@given(st.text(max_size=200))
async def test_no_text_of_a_model_raises(written: str) -> None:
    answer = await Echo().call_tool(RUN_CODE, written)
    assert isinstance(json.loads(answer.text), dict)
