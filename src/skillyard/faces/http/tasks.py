"""``GET /tasks/<id>/events``: a task's states and output as server-sent events.

An event's id says how far its reader is in both. A reader that comes back with ``Last-Event-ID`` goes on there, also at
another server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from skillyard.domain.errors import TaskNotFound, shown
from skillyard.domain.principal import Principal
from skillyard.domain.principal import Scope as Right
from skillyard.engine.commands.tasks import TAIL_BYTES, TaskService
from skillyard.faces.http.errors import BadRequest, MethodNotAllowed
from skillyard.faces.http.guard import principal_of
from skillyard.faces.http.lifecycle import Lifecycle, Phase
from skillyard.faces.http.replies import end, piece, start
from skillyard.faces.http.request import HttpCaller
from skillyard.faces.rpc.wire import dumps

TOOL = "skills.task_watch"
"""The tool that a profile names to allow this."""
HEARTBEAT_S, LEAST_HEARTBEAT_S, MOST_HEARTBEAT_S = 20, 5, 60
_WAIT_MS = 30_000
_PAGE_BYTES = 64 * 1024
_TASK_ID = re.compile(r"run_[A-Za-z0-9]{1,64}")
_PLACE = re.compile(r"([0-9]{1,15})\.([0-9]{1,15})")
_ALIVE = b": alive\n\n"


class TaskEvents:
    """Serves the stream of one task to each caller."""

    def __init__(self, tasks: Callable[[], TaskService], lifecycle: Lifecycle) -> None:
        self._tasks = tasks
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            raise MethodNotAllowed("GET")
        principal = principal_of(scope)
        principal.require_tool(TOOL)
        principal.require(Right.RUN_CODE)
        query = QueryParams(scope["query_string"])
        asked = {"task_id": _task_id(scope["path_params"]["task_id"]), **_agent(query)}
        place = _place(Headers(scope=scope).get("last-event-id") or query.get("last_event_id"))
        beat_s = _heartbeat(query.get("heartbeat_sec"))
        await self._tasks().owned(principal, asked["task_id"], asked.get("agent"))
        with self._lifecycle.working():
            async with HttpCaller(receive, self._lifecycle) as caller:
                await start(send, 200, {"content-type": "text/event-stream; charset=utf-8"})
                stream = _Stream(self._tasks(), principal, asked, place, send)
                await caller.wait(stream.run(beat_s, self._is_over))
            await end(send)

    def _is_over(self) -> bool:
        return self._lifecycle.phase is Phase.DRAINING


class _Stream:
    """One stream on its way. ``place`` is the last event's number, and the offset of the output, that were sent."""

    def __init__(
        self, tasks: TaskService, principal: Principal, asked: Mapping[str, Any], place: tuple[int, int], send: Send
    ) -> None:
        self._tasks = tasks
        self._principal = principal
        self._asked = asked
        self._after, self._offset = place
        self._log_problem = ""
        self._send = send

    async def run(self, beat_s: float, over: Callable[[], bool]) -> dict[str, Any]:
        """Sends until the task has ended, or ``over``. Both are waited for at once, and nothing is polled."""
        waits = {"events": self._wait_for("events"), "output": self._wait_for("output")}
        try:
            while waits and not over():
                done, _ = await asyncio.wait(waits.values(), timeout=beat_s, return_when=asyncio.FIRST_COMPLETED)
                sent = False
                for name in [name for name, wait in waits.items() if wait in done]:
                    page = waits.pop(name).result()
                    sent |= await self._tell(name, page)
                    if not page["complete"]:
                        waits[name] = self._wait_for(name)
                if not sent:
                    await piece(self._send, _ALIVE)
            if not waits:
                record = await self._tasks.owned(self._principal, self._asked["task_id"], self._asked.get("agent"))
                await self._event("end", await self._tasks.told(record, TAIL_BYTES))
        finally:
            for wait in waits.values():
                wait.cancel()
            await asyncio.gather(*waits.values(), return_exceptions=True)
        return {}

    def _wait_for(self, name: str) -> asyncio.Task[dict[str, Any]]:
        if name == "events":
            page = {"after": self._after, "limit": 100, "wait_ms": _WAIT_MS}
            return asyncio.create_task(self._tasks.events(self._principal, {**self._asked, **page}))
        page = {"offset": self._offset, "max_bytes": _PAGE_BYTES, "wait_ms": _WAIT_MS}
        return asyncio.create_task(self._tasks.logs(self._principal, {**self._asked, **page}))

    async def _tell(self, name: str, page: Mapping[str, Any]) -> bool:
        """Sends a page's news; returns whether there were any."""
        if name == "events":
            for event in page["events"]:
                self._after = event["seq"]
                await self._event("state", event)
            return bool(page["events"])
        self._offset = page["next_offset"]
        changed = bool(page["log_problem"] != self._log_problem)
        if changed:
            self._log_problem = page["log_problem"]
            await self._event("log", {"problem": self._log_problem})
        if not page["chunks"] and not page["dropped"]:
            return changed
        told = ("chunks", "offset", "next_offset", "dropped")
        await self._event("output", {key: page[key] for key in told})
        return True

    async def _event(self, name: str, data: Mapping[str, Any]) -> None:
        head = f"event: {name}\nid: {self._after}.{self._offset}\ndata: ".encode()
        await piece(self._send, head + dumps(data) + b"\n\n")


def _task_id(text: str) -> str:
    if not _TASK_ID.fullmatch(text):
        raise TaskNotFound("task_id", f"no task {shown(text)}")
    return text


def _agent(query: QueryParams) -> dict[str, str]:
    return {"agent": query["agent"]} if "agent" in query else {}


def _place(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    found = _PLACE.fullmatch(text)
    if found is None:
        raise BadRequest("Last-Event-ID: must be the id of an event of this stream")
    return int(found[1]), int(found[2])


def _heartbeat(text: str | None) -> int:
    if text is None:
        return HEARTBEAT_S
    if not (text.isascii() and text.isdigit() and LEAST_HEARTBEAT_S <= int(text[:9]) <= MOST_HEARTBEAT_S):
        raise BadRequest(f"heartbeat_sec: must be {LEAST_HEARTBEAT_S} to {MOST_HEARTBEAT_S}")
    return int(text)
