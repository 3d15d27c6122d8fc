"""Serves the tasks extension (SEP-2663) with detached runs, which outlive the server.

A client that names the extension in a call gets the run as a task, unless it ends at once. A run that fails is a task
that completed with an error; ``failed`` is for a run that was lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillyard.domain.errors import RunNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.record import Outcome, RunRecord
from skillyard.engine.runs.record import in_detail, run_object
from skillyard.engine.table import METHODS
from skillyard.faces.mcp.caller import Callers, Context, until_gone
from skillyard.values import dataclass

EXTENSION = "io.modelcontextprotocol/tasks"
TASKS = frozenset({"execute_skill", "run_code"})
AT_ONCE_MS = 1000
"""A run that ends so soon is answered itself."""
POLL_MS = 1000

Answer = Callable[[Context, Mapping[str, Any]], Awaitable[CallToolResult]]
"""Makes the result of a run object."""


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
        record = await self._owned(context, params.task_id)
        told = {"resultType": "complete", **self._task(record)}
        if told["status"] == "completed":
            result = await self.answer(context, self._run(record))
            told["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        elif told["status"] == "failed":
            told["error"] = {"code": INTERNAL_ERROR, "message": record.summary or "the run was lost"}
        return told

    async def cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Ends the run; it has ended when this returns."""
        await self._owned(context, params.task_id)
        principal = self.callers.principal_of(context)
        await self.runs().cancel(principal, params.task_id, "the client cancelled the task")
        return {"resultType": "complete"}

    async def update(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Takes answers to questions. A run asks none, so that all of them are stale, which the extension allows."""
        await self._owned(context, params.task_id)
        return {"resultType": "complete"}

    async def _owned(self, context: Context, run_id: str) -> RunRecord:
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
        if not _knows(context):
            wanted: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"the client must declare {EXTENSION}", wanted)
        _check_header(context, run_id)
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
