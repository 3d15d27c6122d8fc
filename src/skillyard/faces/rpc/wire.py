"""Strict JSON text to values and back, and the JSON-RPC 2.0 envelope (its §4 and §5).

RFC 8259 leaves open what I-JSON (RFC 7493) and we refuse: duplicate names, text that is not UTF-8, lone
surrogates, numbers beyond a double, ``NaN`` and ``Infinity``, and structures made to exhaust the reader.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable
from math import isfinite
from typing import Any

from skillyard.domain.errors import InvalidRequest, ParseError, SkillyardError, shape
from skillyard.values import dataclass

logger = logging.getLogger("skillyard.rpc")

INTERNAL = -32603


class CallerGone(Exception):
    """Nobody waits for the answer any more."""


def error_object(exc: Exception) -> dict[str, Any]:
    """Returns the ``error`` member for ``exc``: ``code``, ``message``, ``data`` with at least ``type``.

    An internal fault is logged under an incident id, and the caller learns that id alone
    (skills-protocol §6: no internals leaked).
    """
    if isinstance(exc, SkillyardError) and exc.code != INTERNAL:
        return {"code": exc.code, "message": exc.message, "data": exc.data}
    incident = secrets.token_hex(8)
    logger.error("internal fault", extra={"incident": incident}, exc_info=exc)
    data = {"type": "InternalError", "incident": incident}
    return {"code": INTERNAL, "message": f"internal error (incident {incident})", "data": data}


MAX_DEPTH = 100
"""Arrays and objects within each other."""

MAX_VALUES = 1_000_000
"""Values in one text. An empty list takes 3 bytes of JSON and 64 of memory."""

_SHORTEST_VALUE = 2
"""Bytes of JSON that one more value takes at least: a digit and a comma."""

VALUE_BYTES = 64
"""Memory that a value takes: an empty list and the place that holds it."""

_LIGHT = 4096
"""Bytes of a text whose values are not worth counting."""

_FEW = 1024
"""Values that need not be told from what looks like them within strings."""


def loads(body: bytes) -> Any:
    """Returns the value of a JSON text. Raises ParseError, whose message never repeats content."""
    text = _text(body)
    _refuse_too_many_values(body)
    try:
        value = _decoder.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as exc:
        raise ParseError(f"not JSON: {exc.msg} at line {exc.lineno} column {exc.colno}") from None
    except ValueError:
        raise ParseError("not JSON that we take: an integer has too many digits") from None
    _refuse_too_deep(body, value)
    _refuse_lone_surrogates(body, value)
    _keep_ids(text, value)
    return value


def dumps(value: Any) -> bytes:
    """Returns compact UTF-8. Raises ValueError for NaN and Infinity; a lone surrogate becomes ``?``."""
    return _encoder.encode(value).encode("utf-8", "replace")


class Written(float):
    """A JSON number with its own digits, so that it is echoed unchanged."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Written:
        made = super().__new__(cls, text)
        made.text = text
        return made


def _keep_ids(text: str, value: Any) -> None:
    """Makes an ``id`` with a fraction or an exponent a :class:`Written`. They are rare, so the text is read again."""
    requests = value if type(value) is list else [value]
    marked = [i for i, request in enumerate(requests) if type(request) is dict and type(request.get("id")) is float]
    if not marked:
        return
    ids = _writing.decode(text)
    for i in marked:
        requests[i]["id"] = (ids if type(value) is list else [ids])[i]


def _text(body: bytes) -> str:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise ParseError(f"not UTF-8: byte {exc.start} is invalid") from None
    if text.startswith("\ufeff"):
        raise ParseError("not JSON: starts with a byte order mark")
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ParseError("not JSON that we take: an object has the same name twice")
    return members


def _finite(number: str) -> float:
    value = float(number)
    if not isfinite(value):
        raise ParseError("not JSON that we take: a number is beyond a double's range")
    return value


def _constant(_name: str) -> Any:
    raise ParseError("not JSON: NaN and Infinity are not JSON numbers")


def weight(body: bytes) -> int:
    """Returns about how many bytes of memory the values of a JSON text take.

    :func:`loads` makes no more values than are counted here.
    """
    return 0 if len(body) <= _LIGHT else min(_values(body), MAX_VALUES) * VALUE_BYTES


def _refuse_too_many_values(body: bytes) -> None:
    if len(body) > MAX_VALUES * _SHORTEST_VALUE and _values(body) > MAX_VALUES:
        raise ParseError(f"not JSON that we take: more than {MAX_VALUES} values; send bulk data as a blob")


def _values(body: bytes) -> int:
    """Counts separators outside strings; of very many strings only the half."""
    if _separators(body) <= _FEW:
        return _separators(body)
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    strings = bare.count(b'"') // 2
    if strings > MAX_VALUES:
        return strings
    return _separators(b"".join(bare.split(b'"')[::2]))


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _refuse_too_deep(body: bytes, value: Any) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent) if type(child) in (dict, list)]
        if not level:
            return
    raise _too_deep()


def _children(value: Any) -> Iterable[Any]:
    if type(value) is dict:
        return value.values()
    return value if type(value) is list else ()


def _refuse_lone_surrogates(body: bytes, value: Any) -> None:
    if b"\\ud" not in body and b"\\uD" not in body:
        return
    try:
        _encoder.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        raise ParseError("not JSON that we take: an escape stands for half a character") from None


def _too_deep() -> ParseError:
    return ParseError(f"not JSON that we take: more than {MAX_DEPTH} levels deep")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_constant)
_writing = json.JSONDecoder(object_pairs_hook=lambda pairs: dict(pairs).get("id"), parse_float=Written)
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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
