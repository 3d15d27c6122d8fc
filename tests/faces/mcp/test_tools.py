"""Tools over MCP: which there are, how they are called, and what comes back."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceTemplateReference

from skillyard.config.faces.mcp import PROTOCOL_TOOLS, McpSettings
from skillyard.domain.errors import Busy, InvalidInput
from skillyard.domain.principal import LOCAL, Principal, Profile, Scope
from skillyard.faces.mcp import tools
from tests.faces.mcp.support import CODE, COMPLETED, FAILED, PNG, Told, answering, server
from tests.faces.support import Engine, Hanging, within

pytestmark = pytest.mark.anyio
REVISIONS = ("auto", "legacy")


async def names(settings: McpSettings, principal: Principal = LOCAL) -> list[str]:
    async with Client(server(Engine(), settings, principal)) as client:
        return [tool.name for tool in (await client.list_tools()).tools]


def with_profile(*tools: str) -> Principal:
    return replace(LOCAL, profile="agents", allowed=Profile(tools))


async def test_the_protocol_is_offered_without_a_profile() -> None:
    assert sorted(await names(McpSettings())) == sorted(PROTOCOL_TOOLS)


async def test_settings_choose_for_callers_without_a_profile() -> None:
    assert await names(McpSettings(tools=("run_code", "skills.task*"))) == [
        "run_code",
        "skills_task_status",
        "skills_task_watch",
        "skills_task_logs",
        "skills_task_cancel",
        "skills_tasks",
    ]


async def test_a_profile_chooses_among_the_protocol_and_skills() -> None:
    profile = with_profile("run_code", "skills.run_cmd", "secrets.*", "rpc.discover")
    assert await names(McpSettings(tool_names="dots"), profile) == ["run_code", "skills.run_cmd"]


async def test_a_profile_that_settings_lack_is_offered_nothing() -> None:
    assert await names(McpSettings(), replace(LOCAL, profile="gone")) == []


async def test_a_tool_that_the_scopes_refuse_is_not_offered() -> None:
    reader = Principal("reader", frozenset({Scope.DISCOVER}))
    assert await names(McpSettings(), reader) == [
        "list_skills",
        "describe_skill",
        "read_skill_file",
        "load_skills_protocol_guide",
    ]


@pytest.mark.parametrize("called", ["skills.load", "skills_load"])
async def test_a_name_may_have_dots_or_underscores(called: str) -> None:
    engine = Engine()
    about = {"skill_name": "a", "version": "1", "version_hash": "h", "path": "SKILL.md"}
    answering(engine, "skills.load", {**about, "content": "x", "encoding": "utf-8", "bytes": 1, "sha256": "s"})
    async with Client(server(engine, principal=with_profile("skills.*"))) as client:
        await client.call_tool(called, {"skill_name": "a"})
    assert engine.calls == [("local", "skills.load", {"skill_name": "a"})]


async def test_tools_tell_their_schemas_and_effects() -> None:
    async with Client(server(Engine(), McpSettings(tools=("*",)))) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    for tool in tools.values():
        Draft202012Validator.check_schema(tool.input_schema)
        assert tool.input_schema["type"] == "object"
        assert tool.description
        if tool.output_schema is not None:
            Draft202012Validator.check_schema(tool.output_schema)
    hints = {name: tool.annotations for name, tool in tools.items() if tool.annotations}
    assert [hints["run_code"].read_only_hint, hints["run_code"].open_world_hint] == [False, True]
    assert [hints["list_skills"].read_only_hint, hints["list_skills"].destructive_hint] == [True, False]
    assert [hints[name].read_only_hint for name in ("skills_task_cancel", "create_blob", "blobs_delete")] == [False] * 3


@pytest.mark.parametrize("mode", REVISIONS)
async def test_a_run_comes_as_structure_and_as_text(mode: Any) -> None:
    engine = Engine()
    answering(engine, "run_code", COMPLETED)
    async with Client(server(engine), mode=mode) as client:
        result = await client.call_tool("run_code", {**CODE, "args": {"n": 1}})
    assert (result.is_error, result.structured_content) == (False, COMPLETED)
    assert result.content[0].type == "text"
    assert '"sum":6' in result.content[0].text
    assert engine.calls[0][2] == {**CODE, "args": {"n": 1}, "detail": "brief"}


@pytest.mark.parametrize("mode", REVISIONS)
async def test_a_run_that_failed_is_an_error_with_its_run_object(mode: Any) -> None:
    engine = Engine()
    answering(engine, "run_code", FAILED)
    async with Client(server(engine), mode=mode) as client:
        result = await client.call_tool("run_code", CODE)
    assert (result.is_error, result.structured_content) == (True, FAILED)


async def test_what_is_wrong_with_a_call_is_told() -> None:
    engine = Engine()

    async def refuse(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        raise InvalidInput("args.n", "must be an integer", "'x'")

    engine.handlers["run_code"] = refuse
    async with Client(server(engine)) as client:
        result = await client.call_tool("run_code", CODE)
    assert result.is_error
    assert result.content[0].type == "text"
    assert result.content[0].text == "InvalidParams: args.n: must be an integer (got 'x')"
    assert result.structured_content["error"]["data"]["field"] == "args.n"


async def test_a_busy_server_says_when_to_come_again() -> None:
    engine = Engine()

    async def refuse(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        raise Busy("too many runs", retry_after_ms=250)

    engine.handlers["run_code"] = refuse
    async with Client(server(engine)) as client:
        result = await client.call_tool("run_code", CODE)
    assert result.content[0].type == "text"
    assert result.content[0].text == "Busy: too many runs (try again after 250 ms)"


async def test_a_tool_that_is_not_offered_is_not_called() -> None:
    engine = Engine()
    async with Client(server(engine)) as client:
        with pytest.raises(MCPError, match="did you mean 'run_code'"):
            await client.call_tool("run_cod", CODE)
        with pytest.raises(MCPError, match=r"Unknown tool: 'secrets\.set'"):
            await client.call_tool("secrets.set", {"name": "x", "value": "y"})
    assert engine.calls == []


def test_a_name_of_megabytes_is_not_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of 32 MiB held up everybody for a minute."""
    compared: list[str] = []

    def near(word: str, _known: list[str], n: int) -> list[str]:
        compared.append(word)
        return [] if n else compared

    monkeypatch.setattr(tools, "get_close_matches", near)
    assert "'run_codx" in str(tools.unknown("run_codx" * (1 << 20), ["run_code"]))
    assert [len(word) for word in compared] == [64]


async def test_an_internal_fault_shows_an_incident_alone() -> None:
    engine = Engine()

    async def fail(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("the password is 'hunter2'")

    engine.handlers["run_code"] = fail
    async with Client(server(engine)) as client:
        result = await client.call_tool("run_code", CODE)
    assert result.is_error
    assert "incident" in str(result.content)
    assert "hunter2" not in str(result)


def file(path: str, mime: str, size: int = 14) -> dict[str, Any]:
    return {"path": path, "blob_id": f"blob:{path}", "mime": mime, "size": size}


async def test_images_are_shown_and_other_files_linked() -> None:
    engine = Engine()
    files = [file("plot.png", "image/png"), file("page.png", "image/png"), file("data.csv", "text/csv")]
    answering(engine, "run_code", {**COMPLETED, "files": files})

    async def read(_principal: Principal, params: dict[str, Any]) -> dict[str, Any]:
        data = PNG if params["blob_id"] == "blob:plot.png" else b"<script>alert(1)</script>"
        text = base64.b64encode(data).decode()
        return {"preview": text, "encoding": "base64", "truncated": False}

    engine.handlers["read_blob"] = read
    async with Client(server(engine)) as client:
        content = (await client.call_tool("run_code", CODE)).content
    images = [each for each in content if each.type == "image"]
    assert [(each.mime_type, base64.b64decode(each.data)) for each in images] == [("image/png", PNG)]
    links = [(each.uri, each.mime_type) for each in content if each.type == "resource_link"]
    assert links[0] == ("blob://plot.png", "image/png")
    assert len(links) == 3


async def test_a_call_that_is_cancelled_has_ended() -> None:
    engine, hanging = Engine(), Hanging()
    engine.handlers["run_code"] = hanging
    async with Client(server(engine)) as client:
        call = asyncio.create_task(client.call_tool("run_code", CODE))
        await within(hanging.started.wait())
        call.cancel()
        await within(hanging.cancelled.wait())


async def test_progress_tells_of_the_run_and_its_last_line() -> None:
    engine, told, heard = Engine(), Told("one\ntwo \x1b[31mred\n"), list[str]()
    seen = asyncio.Event()

    async def run(principal: Principal, params: dict[str, Any]) -> dict[str, Any]:
        told.announce("run_other", "somebody", params["labels"])
        told.announce("run_1", principal.name, params["labels"])
        await within(seen.wait())
        return COMPLETED

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")
        if "two" in heard[-1]:
            seen.set()

    engine.handlers["run_code"] = run
    async with Client(server(engine, told=told), mode="legacy") as client:
        await client.call_tool("run_code", CODE, progress_callback=hear)
    assert heard[:3] == ["waiting for a sandbox", "run_1 is running", "two \ufffd[31mred"]
    assert (told.asked, told.listeners) == (["run_1"], [])


async def test_nothing_is_followed_unasked() -> None:
    engine, told = Engine(), Told()
    answering(engine, "run_code", COMPLETED)
    async with Client(server(engine, told=told)) as client:
        await client.call_tool("run_code", CODE)
    assert "labels" not in engine.calls[0][2]


@pytest.mark.parametrize("mode", REVISIONS)
async def test_a_fault_is_told_by_its_incident_alone(mode: Any) -> None:
    engine = Engine()

    async def broken(_principal: Principal, _params: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("/srv/data/skillyard.db is locked")

    for method in ("list_skills", "runs.list", "read_blob"):
        engine.handlers[method] = broken
    runs = ResourceTemplateReference(type="ref/resource", uri="run://{run_id}/log")
    async with Client(server(engine), mode=mode) as client:
        for call in (
            lambda: client.list_resources(),
            lambda: client.list_prompts(),
            lambda: client.complete(runs, {"name": "run_id", "value": ""}),
            lambda: client.read_resource("blob://1"),
        ):
            with pytest.raises(MCPError, match=r"internal error \(incident [0-9a-f]{16}\)") as told:
                await call()
            assert "/srv" not in str(told.value.error)


async def test_a_refusal_beside_tools_is_told_as_it_is() -> None:
    runs = ResourceTemplateReference(type="ref/resource", uri="run://{run_id}/log")
    async with Client(server(Engine(), principal=Principal("nobody", frozenset())), mode="legacy") as client:
        with pytest.raises(MCPError) as refused:
            await client.complete(runs, {"name": "run_id", "value": ""})
    assert refused.value.error.data["type"] == "Forbidden"
