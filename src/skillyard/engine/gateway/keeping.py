"""Keeps one MCP server between calls: its start, health, restarts and end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any

from skillyard.config.gateway.servers import McpServer
from skillyard.domain.errors import Busy, SkillyardError, ToolServerFault
from skillyard.domain.tool import Tool, ToolResult
from skillyard.engine.gateway.starting import Owner, Standing, Starter
from skillyard.engine.observer import Fault, Observer
from skillyard.engine.shares import Budget
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Clock

PREFIX = "mcp_"
"""Prefix of the keys of the servers' sandboxes."""
PING_S = 5.0
"""How long a server that did not answer a call may take for a ping, before it is ended."""
_LONGEST_S = 60.0

Noted = Callable[[str, Sequence[Tool]], Awaitable[None]]


class Kept:
    """An MCP server of one owner. It starts with its first call, and again after it ended.

    After a second start in a row that led to no answer it waits, twice as long each time, before it is tried again.
    """

    def __init__(
        self,
        name: str,
        section: McpServer,
        owner: Owner,
        starter: Starter,
        places: Budget,
        tasks: Tasks,
        clock: Clock,
        emit: Observer,
        noted: Noted,
    ) -> None:
        """``places`` bound connections, ``noted`` learns of tools that were listed."""
        self.name = name
        self.owner = owner
        self.section = section
        self.key = ""
        """The key of its sandbox; empty while there is none."""
        each = section.calls_each if section.shared else section.calls
        busy = f"the MCP server '{name}' has as many calls at work as it takes, or as one principal may have there"
        self._room = Budget(section.calls, each, busy)
        self.starts = 0
        self.used_at = clock.monotonic()
        self.why = ""
        """Why its last process ended."""
        self._starter = starter
        self._places = places
        self._tasks = tasks
        self._clock = clock
        self._emit = emit
        self._noted = noted
        self._failures = 0
        self._not_before = 0.0
        self._life: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Standing] | None = None
        self._stop = asyncio.Event()
        self._tools: Mapping[str, Tool] = {}

    @property
    def calls(self) -> int:
        """Returns the number of calls at work."""
        return self._room.held

    @property
    def state(self) -> str:
        """Returns ``ready``, ``starting``, ``waiting`` for its next try, or ``stopped``."""
        if self._life is not None and not self._life.done():
            return "ready" if self._ready is not None and self._ready.done() else "starting"
        return "waiting" if self._clock.monotonic() < self._not_before else "stopped"

    async def standing(self) -> Standing:
        """Returns the server, started where it is not at work.

        Raises Busy while it waits for its next try and where it has no place, ToolServerFault and what sandboxes raise
        when it cannot be started.
        """
        if self._life is not None and self._is_dying():
            await asyncio.shield(asyncio.gather(self._life, return_exceptions=True))
        self.used_at = self._clock.monotonic()
        if self._life is None or self._life.done():
            if (rest := self._not_before - self.used_at) > 0:
                why = f"the MCP server '{self.name}' failed {self._failures} times in a row: {self.why}"
                raise Busy(why, retry_after_ms=round(rest * 1000) + 1)
            self._begin()
        assert self._ready is not None
        return await asyncio.shield(self._ready)

    def _is_dying(self) -> bool:
        """Returns whether its connection is over, and its sandbox perhaps not."""
        ready = self._ready
        if self._stop.is_set() or ready is None or not ready.done():
            return self._stop.is_set()
        return ready.exception() is None and ready.result().link.broken.is_set()

    def _begin(self) -> None:
        self._ready = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self.key = PREFIX + token_hex(8)
        self._life = self._tasks.spawn(self._live(self._ready, self._stop, self.key), f"MCP server {self.name}")

    async def tools(self) -> Mapping[str, Tool]:
        """Returns its tools by name, listed again after it said that they have changed."""
        standing = await self.standing()
        if standing.link.changed.is_set():
            await self._list(standing)
        return self._tools

    async def call(self, tool: Tool, arguments: Mapping[str, Any], timeout_s: float, principal: str) -> ToolResult:
        """Returns the answer of a tool to a principal. Its server must describe it now as ``tool`` does.

        Raises TimeoutError, Busy for too many calls at once, ToolServerFault.
        """
        standing = await self.standing()
        try:
            with self._room.holding(principal):
                async with asyncio.timeout(timeout_s):
                    now = (await self.tools()).get(tool.name)
                    if now is None or now.digest != tool.digest:
                        raise Changed(tool.name)
                    result = await standing.link.call(tool.name, arguments)
            self._failures = 0
            return result
        except TimeoutError:
            self._tasks.spawn(self._check(standing), f"health of {self.name}")
            raise
        finally:
            self.used_at = self._clock.monotonic()

    async def _check(self, standing: Standing) -> None:
        """Ends a server that does not even answer a ping."""
        try:
            async with asyncio.timeout(PING_S):
                await standing.link.ping()
        except (TimeoutError, SkillyardError):
            await self.end("it answers neither a call nor a ping", failed=True)

    def is_idle(self) -> bool:
        """Returns whether nobody has called it for the time after which it ends."""
        return not self.calls and self._clock.monotonic() - self.used_at >= self.section.idle_s

    @property
    def is_over(self) -> bool:
        """Returns whether there is neither a process nor a reason to remember it."""
        return (self._life is None or self._life.done()) and self._clock.monotonic() >= self._not_before + _LONGEST_S

    async def end(self, why: str, *, failed: bool = False) -> None:
        """Ends its process, and returns when nothing of it is left. Idempotent."""
        if self._life is None or self._life.done():
            return
        self.why = why
        if failed:
            self._fail()
        self._stop.set()
        if self._ready is not None and not self._ready.done():
            self._life.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.gather(self._life, return_exceptions=True))

    async def _live(self, ready: asyncio.Future[Standing], stop: asyncio.Event, key: str) -> None:
        """Keeps one process until it ends or is to end."""
        why = "it was ended"
        try:
            with self._places.holding(self.owner.name):
                async with self._starter.open(self.name, self.section, self.owner, key) as standing:
                    self.starts += 1
                    await self._list(standing)
                    ready.set_result(standing)
                    await self._until_over(standing, stop)
                    if standing.link.broken.is_set():
                        raise ToolServerFault(standing.link.why or "the connection is closed")
        except asyncio.CancelledError:
            why = self.why or "the server stops"
            if not ready.done():
                ready.set_exception(ToolServerFault(why))
            raise
        except Busy as busy:
            why = busy.message
            _refuse(ready, busy)
        except Exception as error:  # noqa: BLE001 - a connection of others; told to everyone that waits
            why = error.message if isinstance(error, SkillyardError) else "the connection failed"
            self.why = why
            self._fail()
            self._emit(Fault("mcp", error, key))
            _refuse(ready, error if isinstance(error, SkillyardError) else ToolServerFault(why))
        finally:
            self.why = why if not stop.is_set() else self.why
            if self.key == key:
                self.key = ""

    async def _until_over(self, standing: Standing, stop: asyncio.Event) -> None:
        network = standing.network
        waiting: list[asyncio.Task[Any]] = [
            self._tasks.spawn(stop.wait(), f"end of {self.name}"),
            self._tasks.spawn(standing.link.broken.wait(), f"loss of {self.name}"),
        ]
        cut = None if network is None else self._tasks.spawn(network.lost(), f"network of {self.name}")
        waiting += [] if cut is None else [cut]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if cut is not None and cut.done():  # it answers pings, and would reach nothing for ever
                standing.link.fail(f"its way out is lost ({cut.result()})")
        finally:
            for each in waiting:
                each.cancel()

    async def _list(self, standing: Standing) -> None:
        try:
            async with asyncio.timeout(self.section.start_s):
                tools = await standing.link.tools()
        except TimeoutError:
            raise ToolServerFault("it does not list its tools") from None
        self._tools = {tool.name: tool for tool in tools}
        if self.section.shared:  # what the process of one principal says must not hold back the tools of others
            await self._noted(self.name, tools)

    def _fail(self) -> None:
        self._failures += 1
        if self._failures > 1:
            self._not_before = self._clock.monotonic() + min(_LONGEST_S, 2.0 ** (self._failures - 2))


class Changed(Exception):
    """The server describes a tool in other words than the approved ones, or lost it."""


def _refuse(ready: asyncio.Future[Standing], error: SkillyardError) -> None:
    if not ready.done():
        ready.set_exception(error)
        ready.exception()  # nobody may be waiting
