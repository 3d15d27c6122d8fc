"""Tools of MCP servers behind the gateway, over MCP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from skillyard.config.faces.mcp import McpSettings
from skillyard.domain.principal import LOCAL, Principal, Profile
from tests.faces.mcp.support import FAILED, answering, server
from tests.faces.support import Engine

pytestmark = pytest.mark.anyio
SETTINGS = McpSettings.model_validate({"tools": ["run_code"], "servers": {"git": {"command": ["git-server"]}}})
ROW: dict[str, Any] = {
    "name": "git__status",
    "server": "git",
    "tool": "status",
    "description": "Shows it.",
    "input_schema": {"type": "object"},
    "output_schema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}
CALLED = {"run_id": "run_1", "status": "completed", "summary": "ok", "is_error": False}
TEXT = {"type": "text", "text": "clean"}


class Gateway(Engine):
    """An engine with one tool, which answers ``answer``."""

    def __init__(self, answer: dict[str, Any], *rows: dict[str, Any]) -> None:
        super().__init__()
        self.asked: list[dict[str, Any]] = []
        answering(self, "tools.list", {"tools": list(rows or (ROW,))})

        async def call(_principal: Principal, params: dict[str, Any]) -> dict[str, Any]:
            self.asked.append(params)
            return answer

        self.handlers["tools.call"] = call


async def names(engine: Engine, principal: Principal = LOCAL, settings: McpSettings = SETTINGS) -> list[str]:
    async with Client(server(engine, settings, principal)) as client:
        return [tool.name for tool in (await client.list_tools()).tools]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_approved_tool_is_offered_as_it_was_approved_and_called(mode: str) -> None:
    engine = Gateway({**CALLED, "content": [TEXT], "structured": {"files": 0}})
    async with Client(server(engine, SETTINGS), mode=mode) as client:
        tool = (await client.list_tools()).tools[-1]
        assert (tool.name, tool.description, tool.input_schema) == ("git__status", "Shows it.", {"type": "object"})
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        result = await client.call_tool("git__status", {"path": "."})
    assert engine.asked == [{"server": "git", "tool": "status", "arguments": {"path": "."}}]
    assert result.structured_content == {"files": 0}
    assert result.content[0].text == "clean"  # type: ignore[union-attr]
    assert not result.is_error


async def test_a_failed_call_is_an_error_with_its_run() -> None:
    async with Client(server(Gateway(FAILED), SETTINGS)) as client:
        result = await client.call_tool("git__status", {})
    assert result.is_error
    assert result.structured_content == FAILED


async def test_no_tool_takes_the_name_of_ours() -> None:
    engine = Gateway(CALLED, ROW, {**ROW, "name": "run_code"}, {**ROW, "name": "git__bad", "input_schema": {"type": 3}})
    listed = await names(engine)
    assert listed.count("run_code") == 1
    assert "git__status" in listed


async def test_a_profile_needs_the_methods_of_the_gateway() -> None:
    bare = replace(LOCAL, profile="agents", allowed=Profile(("run_code", "git__*")))
    assert await names(Gateway(CALLED), bare) == ["run_code"]
    both = replace(LOCAL, profile="agents", allowed=Profile(("run_code", "tools.list", "tools.call", "git__*")))
    assert await names(Gateway(CALLED), both) == ["run_code", "git__status"]
    async with Client(server(Gateway(CALLED), SETTINGS, bare)) as client:
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("git__status", {})


async def test_without_servers_in_the_settings_nothing_is_asked() -> None:
    assert await names(Engine(), settings=McpSettings(tools=("run_code",))) == ["run_code"]
