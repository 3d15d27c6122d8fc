"""``skillyard mcp`` beside a server: passes messages between stdio and its ``/mcp``.

Messages pass as they are, so that a client has all that the server offers, in its own revision of the protocol.
"""

from __future__ import annotations

import logging
from typing import Any

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.server.stdio import stdio_server
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import PROTOCOL_VERSION_META_KEY, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillyard.client.discovery import Server

_ANSWER_S = 24 * 3600.0
"""Runs have bounds of their own; the server sends signs of life meanwhile."""
_CONNECT_S = 5.0
_HANDSHAKE_S = 30.0
MOST_EVENT = 64 * 1024 * 1024
_TASKS = "tasks/"


async def bridge(server: Server) -> None:
    """Serves until the client closes standard input.

    Calls that a killed server left open get an error. Its runs at the server end with a client that
    is killed.
    """
    logging.getLogger("mcp").setLevel(logging.ERROR)
    token = {"authorization": f"Bearer {server.token}"} if server.token else {}
    timeout = httpx2.Timeout(_ANSWER_S, connect=_CONNECT_S)
    async with (
        httpx2.AsyncClient(headers=token, timeout=timeout, trust_env=False) as http,
        stdio_server() as (from_client, to_client),
        streamable_http_client(f"{server.url}/mcp", http_client=http, max_sse_event_size=MOST_EVENT) as streams,
        to_client,
        anyio.create_task_group() as pumps,
    ):
        from_server, to_server = streams
        headers = _Headers()

        async def down() -> None:
            async for message in from_server:
                if isinstance(message, SessionMessage):
                    headers.note(message.message)
                    await to_client.send(message)

        pumps.start_soon(down)
        async for message in from_client:
            if isinstance(message, SessionMessage):
                # What follows a handshake names the session that its answer tells.
                with anyio.move_on_after(_HANDSHAKE_S):
                    await headers.settled.wait()
                await to_server.send(SessionMessage(message.message, metadata=headers.of(message.message)))
            else:
                await to_client.send(_unread(message))
        pumps.cancel_scope.cancel()


class _Headers:
    """The headers that HTTP wants beside a message. ``revision`` is that of a session which began with a handshake."""

    def __init__(self) -> None:
        self._initialize: Any = None
        self._revision: str | None = None
        self.settled = anyio.Event()
        self.settled.set()

    def note(self, message: Any) -> None:
        """Learns the revision from the answer to the handshake."""
        if not isinstance(message, JSONRPCResponse | JSONRPCError) or message.id != self._initialize:
            return
        if isinstance(message, JSONRPCResponse) and self._initialize is not None:
            self._revision = str(message.result.get("protocolVersion", "")) or None
        self._initialize = None
        self.settled.set()

    def of(self, message: Any) -> ClientMessageMetadata | None:
        if not isinstance(message, JSONRPCRequest | JSONRPCNotification):
            return self._made({})
        params = message.params or {}
        if isinstance(message, JSONRPCRequest) and message.method == "initialize":
            self._initialize, self.settled = message.id, anyio.Event()
            return None
        named = (params.get("_meta") or {}).get(PROTOCOL_VERSION_META_KEY)
        if named not in MODERN_PROTOCOL_VERSIONS and named is not None:
            return ClientMessageMetadata(headers={MCP_PROTOCOL_VERSION_HEADER: str(named)})
        headers = {MCP_METHOD_HEADER: message.method}
        key = "taskId" if message.method.startswith(_TASKS) else NAME_BEARING_METHODS.get(message.method)
        if key is not None and isinstance(params.get(key), str):
            headers[MCP_NAME_HEADER] = encode_header_value(params[key])
        return self._made(headers, named)

    def _made(self, headers: dict[str, str], named: str | None = None) -> ClientMessageMetadata:
        revision = named or self._revision
        version = {} if revision is None else {MCP_PROTOCOL_VERSION_HEADER: revision}
        return ClientMessageMetadata(headers={**version, **headers})


def _unread(error: Exception) -> SessionMessage:
    from mcp_types import PARSE_ERROR, ErrorData

    told = ErrorData(code=PARSE_ERROR, message=f"not a JSON-RPC message: {type(error).__name__}")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=None, error=told))
