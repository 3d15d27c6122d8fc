"""In-memory twins of the store of tools and of connections to MCP servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from skillyard.domain.errors import ToolServerFault
from skillyard.domain.tool import Tool, ToolResult, ToolRow
from skillyard.ports.tools import DEFAULT_BOUNDS, LinkBounds, Piped, Remote


class MemoryTools:
    """A :class:`skillyard.ports.tools.ToolStore`."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], ToolRow] = {}

    async def note(self, server: str, tools: Sequence[Tool], at: float) -> None:
        known = {key: row for key, row in self._rows.items() if key[0] == server}
        forget = bool(tools) or any(row.approved for row in known.values())
        for key, row in known.items():
            if row.approved is not None:
                self._rows[key] = replace(row, seen=None)
            elif forget:
                del self._rows[key]
        for tool in tools:
            row = self._rows.get((server, tool.name)) or ToolRow(server, tool.name, tool, None, at)
            self._rows[server, tool.name] = replace(row, seen=tool, seen_at=at)

    async def approve(self, server: str, name: str, digest: str, by: str, at: float) -> bool:
        row = self._rows.get((server, name))
        if row is None or row.seen is None or row.seen.digest != digest:
            return False
        self._rows[server, name] = replace(row, approved=row.seen, approved_at=at, approved_by=by)
        return True

    async def revoke(self, server: str, name: str) -> bool:
        row = self._rows.get((server, name))
        if row is None or row.approved is None:
            return False
        seen = row.seen or row.approved
        self._rows[server, name] = replace(row, seen=seen, approved=None, approved_at=None, approved_by="")
        return True

    async def rows(self, server: str | None = None) -> Sequence[ToolRow]:
        return [row for key, row in sorted(self._rows.items()) if server in (None, key[0])]


Answer = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]


class TwinToolServer:
    """A connection whose server is a function. ``tools_now`` are its tools; :meth:`fail` breaks it."""

    def __init__(self, tools: Sequence[Tool], answer: Answer) -> None:
        self.tools_now = tools
        self.answer = answer
        self.broken = asyncio.Event()
        self.changed = asyncio.Event()
        self.why = ""
        self.pings = 0
        self.deaf = False
        """Whether it does not answer a ping."""

    def fail(self, why: str) -> None:
        self.why = self.why or why
        self.broken.set()

    async def tools(self) -> Sequence[Tool]:
        self.changed.clear()
        return self.tools_now

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if self.broken.is_set():
            raise ToolServerFault(self.why)
        return await self.answer(name, arguments)

    async def ping(self) -> None:
        self.pings += 1
        if self.deaf:
            await asyncio.Event().wait()


class TwinToolServers:
    """A :class:`skillyard.ports.tools.ToolServers`. ``make`` gives the server of each connection, or raises."""

    def __init__(self, make: Callable[[], TwinToolServer]) -> None:
        self.make = make
        self.made: list[TwinToolServer] = []
        self.left = 0
        """Connections that were closed."""

    def of_process(
        self,
        process: Piped,
        bounds: LinkBounds = DEFAULT_BOUNDS,  # noqa: ARG002 - a twin keeps none
    ) -> AbstractAsyncContextManager[TwinToolServer]:
        return self._linked(process)

    def remote(
        self,
        remote: Remote,
        bounds: LinkBounds = DEFAULT_BOUNDS,  # noqa: ARG002 - a twin keeps none
    ) -> AbstractAsyncContextManager[TwinToolServer]:
        return self._linked(remote)

    @asynccontextmanager
    async def _linked(self, _: object) -> AsyncIterator[TwinToolServer]:
        server = self.make()
        self.made.append(server)
        try:
            yield server
        finally:
            self.left += 1
