"""One request: its path, query and body, read within bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from skillyard.domain.errors import InvalidInput, shape, shown
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.faces.e2b.errors import EXHAUSTED, RpcRefusal
from skillyard.faces.http import request
from skillyard.faces.http.errors import BadRequest

MOST_FIELDS = 100


@dataclass(frozen=True, slots=True)
class Intake:
    """The bounds of JSON bodies, in bytes of one and of all, and of open streams of one owner."""

    most: int
    budget: request.ByteBudget
    streams: int
    open: Counter[str] = field(default_factory=Counter)


class Call:
    """One request. ``owner`` names whose part of the budget its body takes."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, intake: Intake) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self._intake = intake
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    def header(self, name: str) -> str:
        """Returns a header; empty without one."""
        return self.headers.get(name.encode(), b"").decode("latin-1").strip()

    def query(self) -> dict[str, str]:
        """Returns the query; of equal names the last counts. Raises BadRequest."""
        text = self.scope["query_string"].decode("latin-1")
        try:
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
        except ValueError:  # UnicodeDecodeError is one
            raise BadRequest(f"the query must be UTF-8 with at most {MOST_FIELDS} parameters") from None

    async def raw(self, owner: str, most: int | None = None) -> bytes:
        """Returns the whole body. Raises PayloadTooLarge, SlowBody, CallerGone, Unavailable."""
        with request.Lease(self._intake.budget, owner) as lease:
            return await request.read(self.scope, self.receive, most or self._intake.most, lease)

    @contextmanager
    def staying(self, owner: str) -> Iterator[None]:
        """Counts the request for the block as one that may stay open for hours. Raises RpcRefusal for one too many.

        Each holds a connection, and the server has a bounded number for everybody.
        """
        opened, most = self._intake.open, self._intake.streams
        if opened[owner] >= most:
            rule = f"one principal has at most {most} of them open; disconnect from some, or wait for their end"
            raise RpcRefusal(EXHAUSTED, f"streams: {rule}")
        opened[owner] += 1
        try:
            yield
        finally:
            opened[owner] -= 1
            if not opened[owner]:
                del opened[owner]

    async def json(self, owner: str) -> dict[str, Any]:
        """Returns the object of the body; an empty one stands for an empty object. Raises InvalidInput."""
        return parsed(await self.raw(owner))


def parsed(data: bytes) -> dict[str, Any]:
    """Returns the object of a message. Raises InvalidInput."""
    if not data.strip():
        return {}
    try:
        value = parse_json(data)
    except BadJson as bad:
        raise InvalidInput("body", f"must be a JSON object: {bad}") from None
    if not isinstance(value, dict):
        raise InvalidInput("body", "must be a JSON object", shape(value))
    return value


def text_of(body: Mapping[str, Any], name: str, usual: str = "") -> str:
    """Returns a text of a message. Raises InvalidInput for another value, and for text that is not Unicode."""
    value = body.get(name)
    if value is None:
        return usual
    if not isinstance(value, str) or "\0" in value:
        raise InvalidInput(name, "must be text without NUL", shape(value))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(name, "must be Unicode text", shape(value)) from None
    return value


def texts_of(body: Mapping[str, Any], name: str) -> dict[str, str]:
    """Returns an object whose values are texts. Raises InvalidInput."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(name, "must be an object of texts", shape(value))
    return {key: text_of(value, key) for key in value}


def flag_of(body: Mapping[str, Any], name: str, usual: bool = False) -> bool:
    """Returns a truth value of a message. Raises InvalidInput."""
    value = body.get(name)
    if value is None:
        return usual
    if not isinstance(value, bool):
        raise InvalidInput(name, "must be true or false", shape(value))
    return value


def number_of(body: Mapping[str, Any], name: str, usual: float) -> float:
    """Returns a number of a message. Raises InvalidInput."""
    value = body.get(name)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(name, "must be a number", shape(value))
    return value


def count_in(query: Mapping[str, str], name: str, usual: int, most: int) -> int:
    """Returns a number of the query from 1 to ``most``. Raises InvalidInput."""
    text = query.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise InvalidInput(name, f"must be a number from 1 to {most}", shown(text))
    return int(text)
