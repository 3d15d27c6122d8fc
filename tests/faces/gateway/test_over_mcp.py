"""The whole way: a client of MCP, skillyard, and a server of MCP in a sandbox."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from mcp.client import Client

from skillyard.faces.news import News
from tests.faces.gateway.conftest import SERVER, Yard, yard_of
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


async def test_clients_hear_of_approvals_of_tools(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    news = News()
    async with yard_of(tmp_path / "data", news.observe, mcp={"servers": {"toy": SERVER}}) as yard:
        await yard.call("tools.refresh", server="toy")
        server, parts = face_of(yard.runtime, news=news)
        async with Client(server) as client:
            assert "toy__echo" in {tool.name for tool in (await client.list_tools()).tools}
            with anyio.fail_after(30):
                async with client.listen(tools_list_changed=True) as changes:
                    await yard.call("tools.revoke", server="toy", tool="echo")
                    async for _ in changes:
                        break
            assert "toy__echo" not in {tool.name for tool in (await client.list_tools()).tools}
        parts.changes.close()
