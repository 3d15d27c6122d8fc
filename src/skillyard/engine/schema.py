"""Parameter checks over a subset of JSON Schema, compiled once into closures.

The subset: ``type`` (one name or a list), ``enum``, ``minimum``, ``maximum``, ``minLength``, ``maxLength``,
``pattern``, ``items``, ``maxItems``, ``properties``, ``required``, ``additionalProperties`` (true, false, or a schema
where there are no ``properties``).
``description``, ``default`` and ``title`` are carried and not checked. A schema with anything else is refused when it
is compiled, so that no rule of the method table is without effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skillyard.domain.errors import InvalidInput, shape, shown
from skillyard.engine.text import clean

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
                field(join(path, name), value[name])
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
