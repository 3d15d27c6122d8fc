"""The definitions of MCP servers' tools, and connections to the servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.tool import Tool, ToolResult, ToolRow
from skillyard.values import dataclass


class ToolStore(Protocol):
    """The latest definition of each tool, and the approved one."""

    async def note(self, server: str, tools: Sequence[Tool], at: float) -> None:
        """Replaces the latest definitions of a server. Tools that it has no more stay when they were approved.

        Where nothing else would stay, the others do: a server that was known once is never taken for a new one.
        """
        ...

    async def approve(self, server: str, name: str, digest: str, by: str, at: float) -> bool:
        """Approves the latest definition of a tool. False, with nothing changed, when it has another digest."""
        ...

    async def revoke(self, server: str, name: str) -> bool:
        """Takes an approval back; returns whether there was one. The tool stays known."""
        ...

    async def rows(self, server: str | None = None) -> Sequence[ToolRow]:
        """Returns all that is known, by server and name."""
        ...


@dataclass(frozen=True, slots=True)
class LinkBounds:
    """The bounds of a server. ``message_bytes`` bound one message, ``flood`` the messages beyond answers in a row."""

    message_bytes: int = 4 << 20
    flood: int = 2000
    patience_s: float = 30.0
    """How long it may take to begin, and to list its tools."""


DEFAULT_BOUNDS = LinkBounds()


@dataclass(frozen=True, slots=True)
class Remote:
    """A server behind HTTP, which is reached through ``proxy`` alone. ``trust`` has the certificates to trust."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    proxy: str = field(repr=False)
    trust: Path | None = None


class ToolServer(Protocol):
    """A connection to an MCP server.

    All that comes of it is hostile. Any of its methods raises ToolServerFault when it broke a rule of the protocol or a
    bound, or is gone.
    """

    @property
    def broken(self) -> asyncio.Event:
        """Is set when the connection is of no use any more."""
        ...

    @property
    def changed(self) -> asyncio.Event:
        """Is set when the server says that its tools have changed."""
        ...

    @property
    def why(self) -> str:
        """Returns why it is broken; empty where it is not known."""
        ...

    def fail(self, why: str) -> None:
        """Makes it broken, so that its calls end; the first reason counts."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """Returns its tools, without those that cannot be offered."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Returns the answer of a tool. Cancelling it tells the server so."""
        ...

    async def ping(self) -> None:
        """Returns when the server answers anything."""
        ...


class Piped(Protocol):
    """A program as a connection speaks with it. Its methods are those of :class:`skillyard.ports.sandbox.Process`."""

    def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]: ...

    async def send(self, data: bytes) -> None: ...


class ToolServers(Protocol):
    """Connects to MCP servers. A connection lasts as long as its context, in the task that entered it."""

    def of_process(
        self, process: Piped, bounds: LinkBounds = DEFAULT_BOUNDS
    ) -> AbstractAsyncContextManager[ToolServer]:
        """Speaks with a program on its standard input and output. Raises ToolServerFault."""
        ...

    def remote(self, remote: Remote, bounds: LinkBounds = DEFAULT_BOUNDS) -> AbstractAsyncContextManager[ToolServer]:
        """Speaks Streamable HTTP. Raises ToolServerFault."""
        ...
