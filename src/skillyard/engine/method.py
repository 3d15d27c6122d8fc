"""One row of the method table, which every face reads and which knows no face."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from skillyard.domain.errors import InvalidInput, SkillyardError, shape
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.schema import Check, Schema, compile_schema, unknown_name

S = TypeVar("S")
Handler = Callable[[S, Principal, Mapping[str, Any]], Awaitable[dict[str, Any]]]
Surface = Literal["protocol", "operator"]


class NoService:
    """Stands for the service of a method that needs none."""


@dataclass(frozen=True, slots=True)
class Method(Generic[S]):
    """A method as a row of the table.

    ``handler`` gets the ``service`` of its class, the principal, and checked parameters with the defaults filled in.
    ``params`` is a closed object schema (see :mod:`skillyard.engine.schema`), ``result`` an open one that tests hold
    real answers to; ``example`` has parameters that work. ``scope`` or any of ``also`` lets a token call it. ``errors``
    are the protocol-level errors besides InvalidInput that a caller must expect. ``runs`` marks the methods that start
    a run, which ends when its caller goes away; ``builds`` those that start a build of packages; ``waits`` those that
    may wait long and end when their caller goes away; ``repeatable`` those that may be sent twice: a client sends them
    again after it lost the connection.
    """

    name: str
    params: Schema
    result: Schema
    scope: Scope
    errors: tuple[type[SkillyardError], ...]
    surface: Surface
    doc: str
    handler: Handler[S]
    service: type[S]
    example: Mapping[str, Any] = field(default_factory=dict)
    runs: bool = False
    builds: bool = False
    waits: bool = False
    repeatable: bool = False
    also: frozenset[Scope] = frozenset()
    _check: Check = field(init=False, repr=False)
    _defaults: Mapping[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        properties = self.params["properties"]
        defaults = {name: rules["default"] for name, rules in properties.items() if "default" in rules}
        object.__setattr__(self, "_check", compile_schema(self.params))
        object.__setattr__(self, "_defaults", defaults)

    async def call(
        self, service: S, principal: Principal, params: Mapping[str, Any], *, strict: bool = True
    ) -> dict[str, Any]:
        """Checks the parameters and calls the handler. Raises InvalidInput and what :attr:`errors` lists."""
        with telling_no_secret(self.name):
            return await self.handler(service, principal, self.bind(params, strict=strict))

    def bind(self, params: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
        """The parameters with defaults, checked. With ``strict`` off, unknown names are dropped.

        Raises InvalidInput.
        """
        if not isinstance(params, Mapping):
            raise InvalidInput("params", "must be an object", shape(params))
        if not strict:
            known = self.params["properties"]
            params = {name: value for name, value in params.items() if name in known}
        params = without_nulls(self.params, params)
        self._check("", params)
        return {**self._defaults, **params}

    def unknown(self, name: str) -> InvalidInput:
        """The error for a parameter that this method does not have."""
        return unknown_name("", name, self.params["properties"])


def without_nulls(schema: Schema, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the object without optional members that are null, which means left out. The same goes for members whose
    own members are named. Null stays where it is a value of its own."""
    properties, required = schema["properties"], schema.get("required", ())
    kept = {}
    for name, item in value.items():
        rules = properties.get(name, {})
        if item is None and name in properties and name not in required and "null" not in rules.get("type", ()):
            continue
        nested = "properties" in rules and isinstance(item, Mapping)
        kept[name] = without_nulls(rules, item) if nested else item
    return kept


@contextmanager
def telling_no_secret(method: str) -> Iterator[None]:
    """Drops values from the errors of methods that take secrets. One may stand in the wrong parameter."""
    try:
        yield
    except InvalidInput as error:
        if method.startswith("secrets."):
            error.forget_value()
        raise


def obj(properties: Mapping[str, Schema], *required: str) -> Schema:
    """A closed object schema."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def answer(properties: Mapping[str, Schema], optional: str = "") -> Schema:
    """Returns an open object schema: more members may come, these stay. All are there but the ``optional`` ones, whose
    names are spaced."""
    required = [name for name in properties if name not in optional.split()]
    return {"type": "object", "properties": dict(properties), "required": required}


def described(schema: Schema, text: str, **more: Any) -> Schema:
    """``schema`` with a description for people and models, and further rules or a default."""
    return {**schema, "description": text, **more}


def list_of(items: Schema, text: str, **more: Any) -> Schema:
    return {"type": "array", "items": items, "description": text, **more}


STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
BLOB_ID: Schema = {"type": "string", "pattern": r"^blob:[A-Za-z0-9._-]{1,128}$"}
RUN_ID: Schema = {"type": "string", "pattern": r"^run_[A-Za-z0-9]{1,64}$"}
SKILL_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[^\x00-\x1f\ud800-\udfff]*$"}
VERSION: Schema = {
    "type": "string",
    "pattern": r"^[\x21-\x7e]{1,128}$",
    "description": "a version; the latest when omitted",
}
AGENT: Schema = {
    "type": "string",
    "maxLength": 64,
    "description": "the agent that the call is for, where the token allows it; the token's own when omitted",
}
CURSOR: Schema = {
    "type": ["string", "null"],
    "maxLength": 1024,
    "description": "next_cursor of the page before",
    "default": None,
}


@contextmanager
def continuing(cursor: str | None) -> Iterator[None]:
    """Replaces a store's refusal of ``after`` by a refusal of the cursor that named it."""
    try:
        yield
    except InvalidInput as error:
        if cursor is None or error.field != "after":
            raise
        raise InvalidInput("cursor", "must be a next_cursor of this method", shape(cursor)) from None


def whose(principal: Principal, params: Mapping[str, Any]) -> str | None:
    """Returns the owner whose objects a list shows; None for all. Raises Forbidden for ``all`` without ADMIN."""
    if not params["all"]:
        return principal.name
    principal.require(Scope.ADMIN)
    return None
