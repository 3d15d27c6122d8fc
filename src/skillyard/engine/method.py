"""One row of the method table, which knows no face, and the check of its parameters.

Schemas are of a subset of JSON Schema: ``type`` (one name or a list), ``enum``, ``minimum``, ``maximum``,
``minLength``, ``maxLength``, ``pattern``, ``items``, ``maxItems``, ``properties``, ``required``,
``additionalProperties`` (true, false, or a schema where there are no ``properties``). ``description``, ``default`` and
``title`` are carried and not checked. A schema with anything else is refused when it is compiled, so that no rule of
the method table is without effect.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Generic, Literal, TypeVar

from skillyard.domain.errors import InvalidInput, SkillyardError, shape, shown
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.text import clean
from skillyard.values import dataclass

Schema = Mapping[str, Any]
Check = Callable[[str, Any], None]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict, Mapping),
    "array": (list, tuple),
    "null": (type(None),),
}
_ARTICLES = {"integer": "an integer", "object": "an object", "array": "an array", "null": "null"}
_CARRIED = {"description", "default", "title"}


def compile_schema(schema: Schema) -> Check:
    """A check of ``(path, value)``. It raises InvalidInput with the field, the rule and the shape."""
    checks = [build(schema) for key, build in _RULES.items() if key in schema]
    if isinstance(schema.get("additionalProperties"), Mapping):
        checks.append(_values(schema))
    unknown = set(schema) - set(_RULES) - _CARRIED - {"required", "additionalProperties"}
    if unknown:
        raise ValueError(f"not in the schema subset: {', '.join(sorted(unknown))}")
    if len(checks) == 1:
        return checks[0]

    def check_all(path: str, value: Any) -> None:
        for check in checks:
            check(path, value)

    return check_all


def join(path: str, name: str | int) -> str:
    """Joins the path of a value.

    ``limits`` and ``timeout_ms`` make ``limits.timeout_ms``; ``input_blobs`` and 2 make ``input_blobs[2]``.
    """
    if isinstance(name, int):
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


_HIDDEN = re.compile(r"(?:args|code|content|value)\b|$")
"""Parameters that may hold a secret; the empty name is a whole request."""


def _got(path: str, value: Any) -> str:
    return shape(value) if _HIDDEN.match(path) else shown(value)


def _type(schema: Schema) -> Check:
    names = [schema["type"]] if isinstance(schema["type"], str) else list(schema["type"])
    accepted = tuple(t for name in names for t in _TYPES[name])
    bool_is_fine = "boolean" in names
    rule = "must be " + " or ".join(_ARTICLES.get(name, f"a {name}") for name in names)

    def check(path: str, value: Any) -> None:
        if not isinstance(value, accepted) or (value.__class__ is bool and not bool_is_fine):
            raise InvalidInput(path or "params", rule, _got(path, value))

    return check


def _enum(schema: Schema) -> Check:
    values: Sequence[Any] = tuple(schema["enum"])
    rule = "must be one of " + ", ".join(f"'{value}'" for value in values)

    def check(path: str, value: Any) -> None:
        if value not in values:
            raise InvalidInput(path, rule, _got(path, value))

    return check


def _minimum(schema: Schema) -> Check:
    low = schema["minimum"]

    def check(path: str, value: Any) -> None:
        if value is not None and not value >= low:
            raise InvalidInput(path, f"must be at least {low}", _got(path, value), minimum=low)

    return check


def _maximum(schema: Schema) -> Check:
    high = schema["maximum"]

    def check(path: str, value: Any) -> None:
        if value is not None and not value <= high:
            raise InvalidInput(path, f"must be at most {high}", _got(path, value), maximum=high)

    return check


def _min_length(schema: Schema) -> Check:
    low = schema["minLength"]
    rule = "must not be empty" if low == 1 else f"must have at least {low} characters"

    def check(path: str, value: Any) -> None:
        if isinstance(value, str) and len(value) < low:
            raise InvalidInput(path, rule, _got(path, value))

    return check


def _max_length(schema: Schema) -> Check:
    high = schema["maxLength"]

    def check(path: str, value: Any) -> None:
        if isinstance(value, str) and len(value) > high:
            raise InvalidInput(path, f"must have at most {high} characters", shape(value), maximum=high)

    return check


def _pattern(schema: Schema) -> Check:
    text = schema["pattern"]
    match = re.compile(text).fullmatch

    def check(path: str, value: Any) -> None:
        if isinstance(value, str) and match(value) is None:
            raise InvalidInput(path, f"must match {text}", _got(path, value))

    return check


def _max_items(schema: Schema) -> Check:
    high = schema["maxItems"]

    def check(path: str, value: Any) -> None:
        if len(value) > high:
            raise InvalidInput(path, f"must have at most {high} entries", _got(path, value), maximum=high)

    return check


def _items(schema: Schema) -> Check:
    each = compile_schema(schema["items"])

    def check(path: str, value: Any) -> None:
        for index, item in enumerate(value):
            each(f"{path}[{index}]", item)

    return check


def _values(schema: Schema) -> Check:
    if "properties" in schema:
        raise ValueError("not in the schema subset: additionalProperties as a schema beside properties")
    each = compile_schema(schema["additionalProperties"])

    def check(path: str, value: Any) -> None:
        for name in value:
            each(join(path, name) if isinstance(name, str) else path, value[name])

    return check


def _properties(schema: Schema) -> Check:
    fields = {name: compile_schema(rules) for name, rules in schema["properties"].items()}
    required = tuple(schema.get("required", ()))
    closed = schema.get("additionalProperties", True) is False

    def check(path: str, value: Any) -> None:
        for name in value:
            field = fields.get(name)
            if field is not None:
                field(join(path, name) if path else name, value[name])
            elif closed:
                raise unknown_name(path, name, fields)
        for name in required:
            if name not in value:
                raise InvalidInput(join(path, name), "is required")

    return check


def unknown_name(path: str, name: object, known: Mapping[str, Any]) -> InvalidInput:
    """The error for a name that nobody knows, with the nearest known one when there is one."""
    from difflib import get_close_matches

    text = (clean(name[:64]) or "''") if isinstance(name, str) else shape(name)
    near = get_close_matches(text, known, n=1)
    hint = f"; did you mean '{near[0]}'" if near else ""
    names = ", ".join(sorted(known)) or "none"
    error = InvalidInput(join(path, text), f"unknown parameter{hint}; known are {names}")
    error.within = path or "params"
    return error


# In the order in which they are checked: later ones rely on the type.
_RULES: dict[str, Callable[[Schema], Check]] = {
    "type": _type,
    "enum": _enum,
    "minimum": _minimum,
    "maximum": _maximum,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "maxItems": _max_items,
    "items": _items,
    "properties": _properties,
}


S = TypeVar("S")
Handler = Callable[[S, Principal, Mapping[str, Any]], Awaitable[dict[str, Any]]]
Surface = Literal["protocol", "operator"]


class NoService:
    """Stands for the service of a method that needs none."""


@dataclass(frozen=True, slots=True)
class Method(Generic[S]):
    """A method as a row of the table.

    ``handler`` gets the ``service`` of its class, the principal, and checked parameters with the defaults filled in.
    ``params`` is a closed object schema, ``result`` an open one that tests hold real answers to; ``example`` has
    parameters that work. ``scope`` or any of ``also`` lets a token call it. ``errors`` are the protocol-level errors
    besides InvalidInput that a caller must expect. ``runs`` marks the methods that start a run, which ends when its
    caller goes away; ``builds`` those that start a build of packages; ``waits`` those that may wait long and end when
    their caller goes away; ``repeatable`` those that may be sent twice: a client sends them again after it lost the
    connection.
    """

    name: str
    params: Schema
    result: Schema
    scope: Scope
    doc: str
    handler: Handler[S]
    service: type[S]
    errors: tuple[type[SkillyardError], ...] = ()
    surface: Surface = "operator"
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
        try:
            return await self.handler(service, principal, self.bind(params, strict=strict))
        except InvalidInput as error:
            tell_no_secret(self.name, error)
            raise

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


def tell_no_secret(method: str, error: InvalidInput) -> None:
    """Drops the value from an error of a method that takes secrets. One may stand in the wrong parameter."""
    if method.startswith("secrets."):
        error.forget_value()


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
