"""Serves the tasks extension (SEP-2663) with detached runs, which outlive the server.

A client that names the extension in a call gets the run as a task, unless it ends at once. A run that fails is a task
that completed with an error; ``failed`` is for a run that was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    Notification,
    RequestParams,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillyard.domain.errors import RunNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.record import Outcome, RunRecord
from skillyard.engine.runs.record import in_detail, run_object
from skillyard.engine.table import METHODS
from skillyard.faces.mcp.caller import Callers, Context, until_gone
from skillyard.faces.mcp.following import Records
from skillyard.values import dataclass

EXTENSION = "io.modelcontextprotocol/tasks"
TASKS = frozenset({"execute_skill", "run_code"})
AT_ONCE_MS = 1000
"""A run that ends so soon is answered itself."""
POLL_MS = 1000
CHANGED = "notifications/tasks"
MOST_WATCHED = 64
"""Tasks of one subscription. Further ones are not agreed to."""

Answer = Callable[[Context, Mapping[str, Any]], Awaitable[CallToolResult]]
"""Makes the result of a run object."""
Listen = Callable[[Context, SubscriptionsListenRequestParams], Awaitable[SubscriptionsListenResult]]
"""Serves a subscription to everything but tasks."""


class TaskParams(RequestParams):
    task_id: str


class Runs(Protocol):
    async def owned(self, principal: Principal, run_id: str) -> RunRecord: ...

    async def wait(self, principal: Principal, run_id: str, wait_ms: int) -> RunRecord: ...

    async def cancel(self, principal: Principal, run_id: str, reason: str | None) -> bool: ...


def is_wanted(context: Context, method: str, params: Mapping[str, Any]) -> bool:
    """Returns whether the client knows tasks, and the parameters let the run detach."""
    fit = method in TASKS and not {"detach", "session_id", "tools"} & params.keys()
    return fit and _knows(context)


def _knows(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    named = (capabilities.extensions if capabilities else None) or {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in named


@dataclass(frozen=True, slots=True)
class TaskFace:
    """Starts and shows tasks. ``ttl_s`` is how long a record is kept; None is for ever.

    ``calls_tools`` says whether the skill of a call calls tools of MCP servers, which no detached run can."""

    callers: Callers
    runs: Callable[[], Runs]
    answer: Answer
    ttl_s: float | None
    calls_tools: Callable[[Principal, Mapping[str, Any]], Awaitable[bool]]
    records: Callable[[], Records]

    async def wants(self, context: Context, method: str, params: Mapping[str, Any]) -> bool:
        """Returns whether the call may become a task."""
        return is_wanted(context, method, params) and not (
            method == "execute_skill" and await self.calls_tools(self.callers.principal_of(context), params)
        )

    async def start(self, context: Context, method: str, params: Mapping[str, Any]) -> CallToolResult | dict[str, Any]:
        """Returns the task, or the result of a run that ended at once. Raises what the method raises."""
        principal = self.callers.principal_of(context)
        run = await self.callers.call(context, method, {**params, "detach": True})
        ended = False
        try:
            record = await until_gone(context, self.runs().wait(principal, run["run_id"], AT_ONCE_MS))
            ended = True
        finally:
            if not ended:  # nobody knows the task: it is not worked for
                with anyio.CancelScope(shield=True):
                    await self.runs().cancel(principal, run["run_id"], "the client went away")
        if not record.status.live:
            return await self.answer(context, self._run(record))
        return {"resultType": "task", **self._task(record)}

    async def get(self, context: Context, params: TaskParams) -> dict[str, Any]:
        _check_header(context, params.task_id)
        return {"resultType": "complete", **await self._whole(context, params.task_id)}

    async def _whole(self, context: Context, task_id: str) -> dict[str, Any]:
        """Returns a task with its result. Raises MCPError."""
        record = await self._owned(context, task_id)
        told = self._task(record)
        if told["status"] == "completed":
            result = await self.answer(context, self._run(record))
            told["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        elif told["status"] == "failed":
            told["error"] = {"code": INTERNAL_ERROR, "message": record.summary or "the run was lost"}
        return told

    async def cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Ends the run; it has ended when this returns."""
        _check_header(context, params.task_id)
        await self._owned(context, params.task_id)
        principal = self.callers.principal_of(context)
        await self.runs().cancel(principal, params.task_id, "the client cancelled the task")
        return {"resultType": "complete"}

    async def update(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Takes answers to questions. A run asks none, so that all of them are stale, which the extension allows."""
        _check_header(context, params.task_id)
        await self._owned(context, params.task_id)
        return {"resultType": "complete"}

    async def listen(
        self, context: Context, params: SubscriptionsListenRequestParams, others: Listen
    ) -> SubscriptionsListenResult:
        """Serves a subscription: ``others`` tells of everything else, and this of the tasks that the client names.

        Tasks that are not the client's are not agreed to. Raises MCPError.
        """
        named = (params.notifications.model_extra or {}).get("taskIds")
        if named is None:
            return await others(context, params)
        _require_extension(context)
        if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
            raise MCPError(INVALID_PARAMS, "taskIds must be a list of task ids")
        agreed = []
        for task_id in dict.fromkeys(named[:MOST_WATCHED]):
            with suppress(MCPError):
                await self._owned(context, task_id)
                agreed.append(task_id)
        watched = _Watched(context, agreed)
        records = self.records()
        records.listen(watched.notice)
        telling = asyncio.create_task(watched.tell(self._whole))
        try:
            return await others(replace(context, session=cast("Any", watched)), params)
        finally:
            records.ignore(watched.notice)
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _owned(self, context: Context, run_id: str) -> RunRecord:
        _require_extension(context)
        principal = self.callers.principal_of(context)
        principal.require_profile()
        try:
            record = await self.runs().owned(principal, run_id)
            if record.principal != principal.name or not any(_may_call(principal, name) for name in TASKS):
                raise RunNotFound("run_id", f"no run '{run_id}'", run_id=run_id)
        except RunNotFound as error:
            raise MCPError(INVALID_PARAMS, error.message) from None
        return record

    def _run(self, record: RunRecord) -> dict[str, Any]:
        return in_detail(run_object(record), "brief")

    def _task(self, record: RunRecord) -> dict[str, Any]:
        changed = record.ended_at or record.started_at or record.created_at
        return {
            "taskId": record.run_id,
            "status": _status(record),
            **({"statusMessage": record.summary} if record.summary else {}),
            "createdAt": _moment(record.created_at),
            "lastUpdatedAt": _moment(changed),
            "ttlMs": None if self.ttl_s is None else int(self.ttl_s * 1000),
            "pollIntervalMs": POLL_MS,
        }


class _Watched:
    """The tasks of one subscription, and its client's end.

    The client is told each task as it is now, and again when its state changes. A client that does not read is told
    the latest states later.
    """

    def __init__(self, context: Context, agreed: list[str]) -> None:
        self._context = context
        self._agreed = agreed
        self._acknowledged = asyncio.Event()
        self._news = asyncio.Event()
        self._waiting = dict.fromkeys(agreed)
        self._told: dict[str, tuple[str, str]] = {}
        if agreed:
            self._news.set()

    async def send_notification(self, notification: Any, related_request_id: Any = None) -> None:
        """Passes on what is told of other things. The acknowledgement says which tasks were agreed to."""
        if isinstance(notification, SubscriptionsAcknowledgedNotification):
            agreed = notification.params.notifications.model_copy(update={"taskIds": self._agreed})
            params = notification.params.model_copy(update={"notifications": agreed})
            notification = notification.model_copy(update={"params": params})
        await self._context.session.send_notification(notification, related_request_id)
        self._acknowledged.set()

    def notice(self, record: RunRecord) -> None:
        if record.run_id in self._agreed:
            self._waiting[record.run_id] = None
            self._news.set()

    async def tell(self, look: Callable[[Context, str], Awaitable[dict[str, Any]]]) -> None:
        """Tells of changes until it is cancelled. ``look`` returns a task with its result, or raises MCPError."""
        await self._acknowledged.wait()
        while await self._news.wait():
            self._news.clear()
            for task_id in list(self._waiting):
                del self._waiting[task_id]
                with suppress(MCPError):  # it has expired
                    await self._send(await look(self._context, task_id))

    async def _send(self, task: dict[str, Any]) -> None:
        state = task["status"], task["lastUpdatedAt"]
        if self._told.get(task["taskId"]) != state:
            self._told[task["taskId"]] = state
            meta = {"_meta": {SUBSCRIPTION_ID_META_KEY: self._context.request_id}}
            news: Any = Notification[dict[str, Any], str](method=CHANGED, params={**task, **meta})
            await self._context.session.send_notification(news, self._context.request_id)


def _require_extension(context: Context) -> None:
    """Raises MCPError for a client that does not know tasks."""
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
    if not _knows(context):
        wanted: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"the client must declare {EXTENSION}", wanted)


def _may_call(principal: Principal, name: str) -> bool:
    """Returns whether profile and scopes let the principal call a method."""
    method = METHODS[name]
    granted = not principal.scopes.isdisjoint({method.scope, *method.also, Scope.ADMIN})
    return granted and principal.may_call(name)


def _check_header(context: Context, run_id: str) -> None:
    """Raises MCPError for a request over HTTP whose header names another task than its body."""
    if context.request is not None and decode_header_value(context.request.headers.get(MCP_NAME_HEADER)) != run_id:
        raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} does not name the task of the body")


def _status(record: RunRecord) -> str:
    if record.status.live:
        return "working"
    return {Outcome.CANCELLED: "cancelled", Outcome.LOST: "failed"}.get(record.outcome or Outcome.EXIT, "completed")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
