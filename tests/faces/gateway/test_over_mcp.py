"""The whole way: a client of MCP, skillyard, and a server of MCP in a sandbox."""

from __future__ import annotations

import pytest
from mcp.client import Client

from tests.faces.gateway.conftest import Yard
from tests.faces.mcp.support import face_of

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]


async def test_a_client_calls_a_jailed_tool(yard: Yard) -> None:
    server, _ = face_of(yard.runtime)
    async with Client(server) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["toy__echo"].description == "Sends the text back."
        assert (await client.call_tool("toy__echo", {"text": "ü"})).content[0].text == "ü"  # type: ignore[union-attr]
        assert (await client.call_tool("toy__add", {"numbers": [1, 2]})).structured_content == {"total": 3}
        assert (await client.call_tool("toy__crash", {})).is_error
        await client.call_tool("toy__change", {})
        assert (await client.call_tool("toy__echo", {"text": "x"})).is_error
