"""The JSON-RPC 2.0 envelope (its §4 and §5), as skills-protocol §2 narrows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skillyard.domain.errors import shape
from skillyard.faces.rpc.errors import InvalidRequest
from skillyard.faces.rpc.wire import Written, dumps

RequestId = str | int | Written | None

MEMBERS = frozenset({"jsonrpc", "method", "params", "id"})


@dataclass(frozen=True, slots=True)
class Request:
    """``notification`` when the envelope has no ``id`` member; an ``id`` of null is a request."""

    method: str
    params: dict[str, Any] | list[Any]
    id: RequestId = None
    notification: bool = False


def read_request(value: Any) -> Request:
    """Raises InvalidRequest, carrying the id where the envelope has a good one."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"a request is an object (got {shape(value)})")
    id = _id(value)
    if value.get("jsonrpc") != "2.0":
        raise InvalidRequest('jsonrpc: must be "2.0"', id=id)
    method = value.get("method")
    if not isinstance(method, str):
        raise InvalidRequest(f"method: must be a string (got {_shape_of(value, 'method')})", id=id)
    params = value.get("params", {})
    if not isinstance(params, (dict, list)):
        raise InvalidRequest(f"params: must be an object (got {shape(params)})", id=id)
    _refuse_unknown_members(value, id)
    return Request(method, params, id, "id" not in value)


def result(id: RequestId, value: dict[str, Any]) -> bytes:
    """Encodes a result. Raises ValueError for a value that JSON does not have."""
    return _reply(id, "result", value)


def failure(id: RequestId, error: dict[str, Any]) -> bytes:
    return _reply(id, "error", error)


def _reply(id: RequestId, member: str, value: dict[str, Any]) -> bytes:
    if type(id) is not Written:
        return dumps({"jsonrpc": "2.0", "id": id, member: value})
    rest = dumps({member: value})
    return b'{"jsonrpc":"2.0","id":' + id.text.encode() + b"," + rest[1:]


def _id(value: dict[str, Any]) -> RequestId:
    id = value.get("id")
    if id is None or isinstance(id, str) or type(id) in (int, Written):
        return id
    raise InvalidRequest(f"id: must be a string, a number or null (got {shape(id)})")


def _refuse_unknown_members(value: dict[str, Any], id: RequestId) -> None:
    if unknown := value.keys() - MEMBERS:
        names = ", ".join(sorted(name[:64] for name in unknown)[:8])
        raise InvalidRequest(f"unknown member of a request: {names}", id=id)


def _shape_of(value: dict[str, Any], member: str) -> str:
    return shape(value[member]) if member in value else "nothing"
