"""JSON-RPC 2.0 on the client's side: make a request, understand the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from skillyard.client.errors import (
    BadReply,
    ConnectionFailed,
    ConnectionLost,
    RpcError,
    Unreachable,
    rpc_error,
)
from skillyard.client.method_table import REPEATABLE, RUNS

LONGEST_RUN_S = 3600.0
RUN_MARGIN_S = 30.0
"""Time of a server beside the run itself: admission, mounts, records."""
WAITS = {"runs.wait": 30_000, "runs.logs": 0, "runs.events": 0, "skills.task_logs": 0}
"""Methods that wait for a run, with their default ``wait_ms``."""
WATCHES = {"skills.task_watch": 600.0, "skills.task_status": 30.0}
"""Methods that wait for ``timeout_sec``, with its default."""
TASKS = frozenset({"skills.run_cmd_async", "skills.run_service"})
"""Methods that start a run which outlives them, and answer at once."""
BUILDS = frozenset({"environments.build", "environments.wheels"})
BUILD_S = 900.0
"""Time for the build of an environment, which a run's own timeout does not count."""


def retried(method: str, params: Mapping[str, Any]) -> tuple[type[ConnectionFailed], ...]:
    """After which failures the call is sent again. A lost connection cancels a run that is not detached, so such a one
    with a key is sent again only where nothing was sent at all."""
    if method in REPEATABLE:
        return (Unreachable, ConnectionLost)
    if method not in RUNS or not params.get("idempotency_key"):
        return ()
    return (Unreachable, ConnectionLost) if params.get("detach") or method in TASKS else (Unreachable,)


def patience(method: str, params: Mapping[str, Any], timeout: float) -> float:
    """Returns the seconds to wait for an answer.

    For a run they are its own timeout or the longest one, the build of its environment, and a margin; for a call that
    waits for a run, the time that it asks for is added.
    """
    if method in WAITS:
        asked = params.get("wait_ms", WAITS[method])
        return timeout + (asked / 1000 if isinstance(asked, (int, float)) else 0)
    if method in WATCHES:
        asked = params.get("timeout_sec", WATCHES[method])
        return timeout + (asked if isinstance(asked, (int, float)) else 0)
    if method in TASKS:
        return timeout
    if method in BUILDS:
        return max(timeout, BUILD_S + RUN_MARGIN_S)
    if method not in RUNS:
        return timeout
    limits = params.get("limits")
    nested = limits.get("timeout_ms") if isinstance(limits, Mapping) else None
    asked = params.get("timeout_ms", nested)
    seconds = asked / 1000 if isinstance(asked, (int, float)) else LONGEST_RUN_S
    return max(timeout, seconds + BUILD_S + RUN_MARGIN_S)


def encode(method: str, params: Mapping[str, Any], request_id: int) -> bytes:
    """Raises TypeError or ValueError for what JSON cannot carry, NaN included."""
    envelope = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    return json.dumps(envelope, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def decode(status: int, body: bytes, request_id: int) -> dict[str, Any]:
    """The result object. Raises the RpcError that came instead, or BadReply."""
    envelope = _json_object(status, body)
    if "error" in envelope:
        raise error_from(envelope["error"])
    if status != 200 or envelope.get("jsonrpc") != "2.0" or envelope.get("id") != request_id:
        raise BadReply(f"HTTP {status} without a JSON-RPC answer to our request: no skillyard server there?")
    result = envelope.get("result")
    if not isinstance(result, dict):
        raise BadReply("the server's result is not a JSON object")
    return result


def refuse(status: int, body: bytes) -> NoReturn:
    """Raises the JSON-RPC error of an HTTP answer other than success, else one by its status."""
    try:
        envelope = _json_object(status, body)
    except BadReply:
        envelope = {}
    if "error" in envelope:
        raise error_from(envelope["error"])
    raise _by_status(status)


def error_from(error: object) -> RpcError:
    """An exception for a JSON-RPC error object. Raises BadReply for a malformed one."""
    if not isinstance(error, Mapping) or not isinstance(error.get("code"), int):
        raise BadReply("the server sent a malformed error object")
    data = error.get("data")
    return rpc_error(error["code"], str(error.get("message", "")), data if isinstance(data, Mapping) else None)


def _json_object(status: int, body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    if status in _STATUS:
        raise _by_status(status)
    raise BadReply(f"HTTP {status} with a body that is not a JSON object: no skillyard server there?")


_STATUS: dict[int, tuple[int, str, str]] = {
    401: (-32001, "Unauthenticated", "the server does not accept this token"),
    403: (-32003, "Forbidden", "the server refuses this to the token"),
    404: (-32602, "BlobNotFound", "no such blob"),
    413: (-32602, "QuotaExceeded", "larger than the server takes"),
    415: (-32600, "InvalidRequest", "the server does not take this content type"),
    416: (-32602, "InvalidParams", "the range lies outside the blob"),
    429: (-32005, "Busy", "too many requests"),
    503: (-32005, "Busy", "the server is not ready"),
}


def _by_status(status: int) -> RpcError | BadReply:
    if status not in _STATUS:
        return BadReply(f"HTTP {status}: no skillyard server there?")
    code, kind, message = _STATUS[status]
    return rpc_error(code, message, {"type": kind})
