"""Offers the tools of MCP servers behind the gateway (`docs/mcp-gateway.md`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mcp_types import AudioContent, CallToolResult, ContentBlock, ImageContent, ListToolsResult, TextContent, Tool
from mcp_types.methods import serialize_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from skillyard.domain.errors import Forbidden
from skillyard.domain.tool import SEPARATOR
from skillyard.engine.table import METHODS
from skillyard.faces.mcp import results
from skillyard.faces.mcp.caller import Callers, Context
from skillyard.values import dataclass

_LIST, _CALL = "tools.list", "tools.call"


@dataclass(frozen=True, slots=True)
class ServerFace:
    """Lists and calls tools of MCP servers. ``any`` says whether the settings name a server."""

    callers: Callers
    any: bool

    async def tools(self, context: Context, taken: Iterable[str] = ()) -> list[Tool]:
        """Returns the approved tools that the caller may call, but those of ``taken`` names."""
        names = set(taken)
        rows = [row for row in await self._rows(context) if row["name"] not in names]
        found = [_tool(row, context.protocol_version) for row in rows]
        return [tool for tool in found if tool is not None]

    async def find(self, context: Context, name: str) -> Mapping[str, Any] | None:
        """Returns the tool of a full name, None where the caller is not offered one."""
        if SEPARATOR not in name:
            return None
        return next((row for row in await self._rows(context) if row["name"] == name), None)

    async def call(self, context: Context, row: Mapping[str, Any], arguments: Mapping[str, Any]) -> CallToolResult:
        """Returns what a tool answered; a call without an answer is an error with its run."""
        params = {"server": row["server"], "tool": row["tool"], "arguments": dict(arguments)}
        value = await self.callers.call(context, _CALL, params)
        if "content" not in value:
            return results.failed(value)
        structured = value.get("structured")
        if not isinstance(structured, dict) and context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            structured = None  # earlier revisions have objects alone
        content = [_part(part) for part in value["content"]]
        return CallToolResult(content=content, structured_content=structured, is_error=value["status"] != "completed")

    async def _rows(self, context: Context) -> list[Mapping[str, Any]]:
        principal = self.callers.principal_of(context)
        if not self.any or not all(principal.may_call(name) for name in (_LIST, _CALL)):
            return []
        try:
            principal.require(METHODS[_CALL].scope, METHODS[_CALL].also)
        except Forbidden:
            return []
        rows: list[Mapping[str, Any]] = (await self.callers.call(context, _LIST, {}))["tools"]
        return rows


def _tool(row: Mapping[str, Any], revision: str) -> Tool | None:
    """Returns a tool as it was approved; None for a definition that this revision does not have.

    One that the SDK refuses would take the whole list with it.
    """
    told = {
        "name": row["name"],
        "description": row["description"],
        "inputSchema": row["input_schema"],
        "outputSchema": row.get("output_schema"),
        "annotations": row.get("annotations"),
    }
    try:
        tool = Tool.model_validate({name: value for name, value in told.items() if value is not None}, by_name=False)
        alone = ListToolsResult(tools=[tool]).model_dump(by_alias=True, mode="json", exclude_none=True)
        serialize_server_result("tools/list", revision, alone)
        return tool
    except ValidationError:
        return None


def _part(part: Mapping[str, Any]) -> ContentBlock:
    if part["type"] == "image":
        return ImageContent(type="image", data=part["data"], mime_type=part["mimeType"])
    if part["type"] == "audio":
        return AudioContent(type="audio", data=part["data"], mime_type=part["mimeType"])
    return TextContent(type="text", text=part["text"])
