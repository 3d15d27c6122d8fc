"""The methods ``tools.*``, of MCP servers, for Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skillyard.client.methods.calling import Calls, Json, Waits, blocking, given


class GatewayMethods(Calls):
    """Methods about the tools of MCP servers that the settings name."""

    async def list_server_tools(self, server: str | None = None) -> Json:
        """Returns the ``tools`` that may be called: ``server``, ``tool``, ``description`` and ``input_schema``."""
        return await self.call("tools.list", given(**locals()))

    async def call_server_tool(
        self, server: str, tool: str, arguments: Mapping[str, Any] | None = None, *, timeout_ms: int | None = None
    ) -> Json:
        """Returns the run of a call, with its ``content`` and ``structured``, data of others."""
        return await self.call("tools.call", given(**locals()))

    async def server_tool_rows(self, server: str | None = None) -> Json:
        """Returns all ``tools`` with their ``state``: approved, new, changed or gone."""
        return await self.call("tools.rows", given(**locals()))

    async def refresh_server_tools(self, server: str) -> Json:
        """Starts a server anew and returns its ``tools``."""
        return await self.call("tools.refresh", given(**locals()))

    async def approve_server_tools(
        self, server: str, tools: Sequence[str] = (), *, digests: Mapping[str, str] | None = None
    ) -> Json:
        """Approves tools as described now, all that are held back when no name is given."""
        return await self.call("tools.approve", given(**locals()))

    async def revoke_server_tool(self, server: str, tool: str) -> Json:
        """Takes an approval back; ``revoked`` says whether there was one."""
        return await self.call("tools.revoke", given(**locals()))

    async def tool_servers(self) -> Json:
        """Returns the ``servers`` of the settings, and their processes."""
        return await self.call("tools.servers")

    async def stop_tool_server(self, server: str) -> Json:
        """Ends the processes of a server; ``stopped`` counts them."""
        return await self.call("tools.stop", given(**locals()))


class SyncGatewayMethods(Waits):
    """:class:`GatewayMethods` without ``await``."""

    list_server_tools = blocking(GatewayMethods.list_server_tools)
    call_server_tool = blocking(GatewayMethods.call_server_tool)
    server_tool_rows = blocking(GatewayMethods.server_tool_rows)
    refresh_server_tools = blocking(GatewayMethods.refresh_server_tools)
    approve_server_tools = blocking(GatewayMethods.approve_server_tools)
    revoke_server_tool = blocking(GatewayMethods.revoke_server_tool)
    tool_servers = blocking(GatewayMethods.tool_servers)
    stop_tool_server = blocking(GatewayMethods.stop_tool_server)
