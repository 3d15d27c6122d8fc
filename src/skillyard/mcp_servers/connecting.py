"""Connects to MCP servers: the port :mod:`skillyard.ports.tools` over the SDK."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from skillyard._version import __version__
from skillyard.domain.errors import InvalidInput, OutputDropped, SandboxGone, SkillyardError, ToolServerFault
from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.tool import MOST_TOOLS, Tool, ToolResult, tool_of
from skillyard.mcp_servers.framing import Frames
from skillyard.ports.tools import DEFAULT_BOUNDS, LinkBounds, Piped, Remote

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from pydantic import TypeAdapter

_MOST_PAGES = 32
_MOST_SAID = 300
_TEXT = 1000
"""Characters of a message of a server's own that an error repeats."""


class SdkToolServers:
    """Connects to MCP servers with the official SDK."""

    def of_process(
        self, process: Piped, bounds: LinkBounds = DEFAULT_BOUNDS
    ) -> AbstractAsyncContextManager[Connection]:
        return self._of_process(process, bounds)

    def remote(self, remote: Remote, bounds: LinkBounds = DEFAULT_BOUNDS) -> AbstractAsyncContextManager[Connection]:
        return self._remote(remote, bounds)

    @asynccontextmanager
    async def _of_process(self, process: Piped, bounds: LinkBounds) -> AsyncIterator[Connection]:
        await asyncio.to_thread(import_module, "mcp.client.client")  # takes a second
        connection = Connection(bounds)
        async with _connected(connection, _lines(process, connection, bounds)):
            yield connection

    @asynccontextmanager
    async def _remote(self, remote: Remote, bounds: LinkBounds) -> AsyncIterator[Connection]:
        http = await asyncio.to_thread(import_module, "mcp.client.streamable_http")
        bounded = await asyncio.to_thread(import_module, "skillyard.mcp_servers.http_bounds")
        connection = Connection(bounds)
        context = ssl.create_default_context() if remote.trust is None else None
        if context is None:
            context = ssl.create_default_context(cafile=str(remote.trust))
        async with bounded.client(remote, context, bounds) as client:
            transport = http.streamable_http_client(
                remote.url, http_client=client, max_sse_event_size=bounds.message_bytes
            )
            async with _connected(connection, transport):
                yield connection


@asynccontextmanager
async def _connected(connection: Connection, transport: Any) -> AsyncIterator[None]:
    """Opens the session of a connection. Raises ToolServerFault when that fails."""
    from mcp.client.client import Client
    from mcp_types import Implementation

    client = Client(
        transport,
        client_info=Implementation(name="skillyard", version=__version__),
        message_handler=connection.hear,
        read_timeout_seconds=connection.bounds.patience_s,
        cache=None,
    )
    began = False
    try:
        async with asyncio.timeout(None) as bound:
            bound.reschedule(asyncio.get_running_loop().time() + connection.bounds.patience_s)
            async with client:
                bound.reschedule(None)
                connection.session = client.session
                began = True
                yield
    except TimeoutError:
        raise ToolServerFault(f"it did not begin within {connection.bounds.patience_s:g} s") from None
    except ToolServerFault:
        raise
    except Exception as error:
        if began and isinstance(error, SkillyardError):
            raise
        raise ToolServerFault(connection.why or f"the connection failed: {_said(error)}") from error
    finally:
        connection.broken.set()


class Connection:
    """A :class:`skillyard.ports.tools.ToolServer`."""

    def __init__(self, bounds: LinkBounds) -> None:
        self.bounds = bounds
        self.broken = asyncio.Event()
        self.changed = asyncio.Event()
        self.why = ""
        self.session: ClientSession | None = None

    def fail(self, why: str) -> None:
        """Notes that the connection is of no use any more; the first reason counts."""
        self.why = self.why or why
        self.broken.set()

    async def hear(self, message: Any) -> None:
        """Hears what the server says beside its answers."""
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.changed.set()

    async def tools(self) -> Sequence[Tool]:
        from mcp.shared.exceptions import MCPError
        from mcp_types import ListToolsRequest, PaginatedRequestParams

        self.changed.clear()
        found: dict[str, Tool] = {}
        cursor, told = None, 0
        for _ in range(_MOST_PAGES):
            try:
                page = await self._ask(ListToolsRequest(params=PaginatedRequestParams(cursor=cursor)))
            except MCPError as error:
                raise ToolServerFault(f"it does not list its tools: {_said(error)}") from None
            rows = page.get("tools")
            for row in rows if isinstance(rows, list) else ():
                told += 1
                try:
                    tool = tool_of(row)
                except InvalidInput:
                    continue
                if tool.name in found:
                    raise ToolServerFault(f"it has two tools of the name {tool.name!r}")
                found[tool.name] = tool
            if told > MOST_TOOLS:
                raise ToolServerFault(f"it has more than {MOST_TOOLS} tools")
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                return list(found.values())
        raise ToolServerFault("the list of its tools comes to no end")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        from mcp.shared.exceptions import MCPError
        from mcp_types import CallToolRequest, CallToolRequestParams

        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=dict(arguments)))
        try:
            return _result(await self._ask(request, patient=True))
        except MCPError as error:
            return ToolResult(({"type": "text", "text": error.error.message[:_TEXT]},), is_error=True)

    async def ping(self) -> None:
        from mcp.shared.exceptions import MCPError
        from mcp_types import PingRequest

        try:
            await self._ask(PingRequest())
        except MCPError:  # an answer, too: the method is gone since 2026-07-28
            return

    async def _ask(self, request: Any, *, patient: bool = False) -> dict[str, Any]:
        """Returns the answer. Raises MCPError for an error that the server tells, ToolServerFault for others.

        A ``patient`` one waits until its caller is cancelled.
        """
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        if self.broken.is_set() or self.session is None:
            raise ToolServerFault(self.why or "the connection is closed")
        seconds = _FOREVER_S if patient else self.bounds.patience_s
        try:
            told: dict[str, Any] = await self.session.send_request(
                request, _anything(), request_read_timeout_seconds=seconds
            )
            return told
        except ValidationError:
            raise ToolServerFault("its answer is not what MCP allows") from None
        except MCPError as error:
            if self.broken.is_set() or error.error.code in _OURS:
                raise ToolServerFault(self.why or _said(error)) from None
            raise


@cache
def _anything() -> TypeAdapter[Any]:
    """Takes any object. It is made once, which takes a millisecond."""
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, Any])


_FOREVER_S = 7 * 24 * 3600.0
_OURS = frozenset({-32000, -32001})
"""Codes that the SDK makes itself when a connection closes and when an answer does not come."""


@asynccontextmanager
async def _lines(process: Piped, connection: Connection, bounds: LinkBounds) -> AsyncIterator[Any]:
    """Yields the streams of a program, as the SDK takes them."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter
    from pydantic import ValidationError

    to_session, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_session = anyio.create_memory_object_stream[Any](0)

    async def read() -> None:
        frames = Frames(bounds)
        async with to_session:
            try:
                async for data in process.output(Stream.STDOUT):
                    for message in frames.feed(data):
                        parsed = jsonrpc_message_adapter.validate_python(message, by_name=False)
                        await to_session.send(SessionMessage(parsed))
                connection.fail("its program ended or closed its standard output")
            except ToolServerFault as fault:
                connection.fail(fault.message)
            except ValidationError:
                connection.fail("it sent a line on standard output that is not a message of JSON-RPC")
            except OutputDropped:
                connection.fail("it sent messages faster than they can be read")
            except SkillyardError as error:
                connection.fail(error.message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                connection.fail("the connection is closed")

    async def write() -> None:
        async with from_session:
            async for message in from_session:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await process.send(line.encode() + b"\n")
                except SandboxGone:
                    connection.fail("its program reads no standard input any more")
                    to_session.close()
                    return

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        try:
            yield from_server, to_server
        finally:
            group.cancel_scope.cancel()
            for each in (to_session, from_server, to_server, from_session):
                each.close()


def _result(told: Mapping[str, Any]) -> ToolResult:
    """Returns the answer that a server gives, with the kinds of content that are passed on.

    Links and other kinds become text: they mean something to the server's own client alone.
    """
    if told.get("resultType", "complete") != "complete":
        raise ToolServerFault("the tool asks for further input, which is not given here")
    rows = told.get("content")
    parts = tuple(_part(row) for row in rows if isinstance(row, Mapping)) if isinstance(rows, list) else ()
    return ToolResult(parts, told.get("structuredContent"), told.get("isError") is True)


def _part(row: Mapping[str, Any]) -> dict[str, Any]:
    kind, text = row.get("type"), row.get("text")
    if kind == "text" and isinstance(text, str):
        return {"type": "text", "text": text}
    data, mime = row.get("data"), row.get("mimeType")
    if kind in ("image", "audio") and isinstance(data, str) and isinstance(mime, str):
        try:
            base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            return {"type": "text", "text": f"(an {kind} that is not base64)"}
        return {"type": kind, "data": data, "mimeType": mime[:100]}
    resource = row.get("resource")
    if kind == "resource" and isinstance(resource, Mapping) and isinstance(resource.get("text"), str):
        return {"type": "text", "text": str(resource["text"])}
    if kind == "resource_link":
        return {"type": "text", "text": f"(a link to {str(row.get('uri'))[:_TEXT]})"}
    return {"type": "text", "text": f"(content of the kind {str(kind)[:40]!r}, which is not passed on)"}


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split())[:_MOST_SAID] or type(error).__name__
