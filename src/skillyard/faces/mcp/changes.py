"""Tells clients that lists of tools, prompts and resources changed, when the catalogue did."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ToolsListChanged,
)
from mcp_types import NotificationParams, SubscriptionsListenRequestParams, SubscriptionsListenResult

from skillyard.domain.principal import Principal
from skillyard.engine.shares import Budget
from skillyard.faces.mcp.caller import Context

logger = logging.getLogger("skillyard.mcp")

LISTEN = "subscriptions/listen"
_SEND_S = 1.0


class Changes:
    """Compares the catalogue's ``revision`` after each message, and when :meth:`look` is called.

    At most ``most`` clients are told, ``each`` of one principal.
    """

    def __init__(
        self,
        revision: Callable[[], Awaitable[str]],
        principal_of: Callable[[Context], Principal],
        most: int,
        each: int,
    ) -> None:
        self._revision = revision
        self._principal_of = principal_of
        self._known: str | None = None
        self._most = most
        self._sessions: dict[str, tuple[str, ServerSession]] = {}
        """The sessions of clients of earlier revisions by their ids, with their principals; the oldest first."""
        self._telling: set[asyncio.Task[None]] = set()
        self._bus = InMemorySubscriptionBus()
        busy = "this principal, or all, listen as often as they may (mcp.sessions_each, mcp.sessions)"
        self._streams = Budget(most, each, busy)
        self._listening = ListenHandler(self._bus, max_subscriptions=most)

    async def listen(self, context: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """Serves a client since 2026-07-28, which asks for the news that it wants. Raises Busy for one too many."""
        with self._streams.holding(self._principal_of(context).name):
            return await self._listening(context, params)

    async def initialized(self, context: Context, _params: NotificationParams) -> None:
        """Keeps the session of a client of an earlier revision, which is told unasked.

        Where there are too many, the principal with most of them loses its oldest.
        """
        key = "" if context.request is None else context.request.headers.get("mcp-session-id", "")
        self._sessions[key] = self._principal_of(context).name, context.session
        if len(self._sessions) > self._most:
            [(most, _)] = Counter(name for name, _ in self._sessions.values()).most_common(1)
            del self._sessions[next(key for key, (name, _) in self._sessions.items() if name == most)]

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answers a message, as the SDK's middleware, and looks whether it changed the catalogue."""
        result = await call_next(ctx)
        if ctx.method != LISTEN:
            await self.look()
        return result

    async def look(self) -> None:
        """Tells everybody, if the catalogue is another one than at the last look."""
        now = await self._revision()
        before, self._known = self._known, now
        if before is None or before == now:
            return
        for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged()):
            await self._bus.publish(event)
        if self._sessions:
            self._start(self._tell([session for _, session in self._sessions.values()]))

    async def _tell(self, sessions: list[ServerSession]) -> None:
        """Sends to each session; one that does not read is left behind."""
        for session in sessions:
            with anyio.move_on_after(_SEND_S):
                await session.send_tool_list_changed()
                await session.send_prompt_list_changed()
                await session.send_resource_list_changed()

    def soon(self) -> None:
        """Has :meth:`look` called, from code that may not wait."""
        self._start(self.look())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._telling.add(task)
        task.add_done_callback(self._told)

    def _told(self, task: asyncio.Task[None]) -> None:
        self._telling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("changes were not told: %s", error)

    def close(self) -> None:
        """Ends the streams of clients that listen, and what is being told."""
        self._listening.close()
        for task in self._telling:
            task.cancel()
