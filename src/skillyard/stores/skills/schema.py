"""Whether a skill's ``[inputs]`` or ``[outputs]`` is a JSON Schema 2020-12 that can be applied to an object."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from skillyard.domain.manifest_report import Path

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
REMEMBERED_CHARACTERS = 4096

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES = ("$ref", "$dynamicRef")
_ANNOTATIONS = frozenset(
    {
        *("$schema", "$id", "$anchor", "$dynamicAnchor", "$vocabulary", "$comment", "$defs", "definitions"),
        *("title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples", "format"),
        *("then", "else", "minContains", "maxContains", "contentEncoding", "contentMediaType", "contentSchema"),
    }
)
"""Keywords that assert nothing by themselves."""
_VALUES = frozenset({"const", "enum", "default", "examples"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas", "definitions"})


class NotJson(ValueError):
    """The bytes of a schema file are no JSON object; ``line`` counts from 1, 0 when it is not known."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with a schema; ``path`` leads to it."""

    level: str
    rule: str
    message: str
    path: Path = ()


def read_json(raw: bytes) -> Mapping[str, Any]:
    """Raises NotJson."""
    if len(raw) > MAX_BYTES:
        raise NotJson(f"must have at most {MAX_BYTES} bytes")
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise NotJson("must be UTF-8", raw.count(b"\n", 0, error.start) + 1) from None
    except json.JSONDecodeError as error:
        raise NotJson(f"is no JSON: {error.msg}", error.lineno) from None
    except (RecursionError, ValueError) as error:
        raise NotJson(f"is no JSON that can be read: {error}") from None
    if not _is_unicode(value):
        raise NotJson("must not escape surrogates, which are no characters")
    if not isinstance(value, dict):
        raise NotJson("must hold a JSON object")
    return value


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def complaints(schema: Mapping[str, Any]) -> Iterator[Complaint]:
    if _depth(schema) > MAX_DEPTH:
        yield Complaint("error", "schema-depth", f"must not be nested deeper than {MAX_DEPTH} levels")
        return
    if schema.get("$schema", DIALECT) not in (DIALECT, DIALECT + "#"):
        message = f"must be JSON Schema 2020-12 ($schema {DIALECT})"
        yield Complaint("error", "schema-dialect", message, ("$schema",))
        return
    against = _metaschema_complaint(schema)
    if against:
        yield against
        return
    if "object" not in _types(schema):
        message = "must describe an object: \"type\" has to be 'object'"
        yield Complaint("error", "schema-type", message, ("type",))
    for keyword in sorted(set(schema) - _keywords()):
        message = f"'{keyword[:64]}' is no keyword and has no effect; fields go under 'properties'"
        yield Complaint("warning", "schema-keyword", message, (keyword,))
    yield from _deep_complaints(schema)


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kind = schema.get("type", "object")
    return (kind,) if isinstance(kind, str) else tuple(kind)


def _metaschema_complaint(schema: Mapping[str, Any]) -> Complaint | None:
    """Versions of a skill have the same schema more often than not, and this is half the price of reading a bundle."""
    text = json.dumps(schema)
    return _remembered_complaint(text) if len(text) <= REMEMBERED_CHARACTERS else _complaint_of_metaschema(schema)


@lru_cache(maxsize=1024)
def _remembered_complaint(text: str) -> Complaint | None:
    return _complaint_of_metaschema(json.loads(text))


def _complaint_of_metaschema(schema: Mapping[str, Any]) -> Complaint | None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema))
    if error is None:
        return None
    message = f"is no JSON Schema 2020-12: {error.json_path}: {error.message[:200]}"
    return Complaint("error", "schema", message, tuple(error.absolute_path))


@lru_cache
def _keywords() -> frozenset[str]:
    """Every keyword of the dialect."""
    from jsonschema import Draft202012Validator

    return _ANNOTATIONS | frozenset(Draft202012Validator.VALIDATORS)


def _deep_complaints(schema: Mapping[str, Any]) -> Iterator[Complaint]:
    for path, node in _subschemas(schema, ()):
        for key in _REFERENCES:
            target = node.get(key)
            if isinstance(target, str) and not target.startswith("#"):
                message = f"{key} must stay within the schema ('#…'): nothing is fetched"
                yield Complaint("error", "schema-reference", message, (*path, key))
        for at, pattern in _patterns(node):
            if not _compiles(pattern):
                message = f"the pattern of {len(pattern)} characters is no regular expression"
                yield Complaint("error", "schema-pattern", message, (*path, *at))


def _subschemas(node: Any, path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every schema within a schema with its path, itself first; not what stands where plain values do."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _subschemas(item, (*path, index))
    if not isinstance(node, Mapping):
        return
    yield path, node
    for key, value in node.items():
        if key in _NAMED and isinstance(value, Mapping):
            for name, item in value.items():
                yield from _subschemas(item, (*path, key, name))
        elif key not in _VALUES:
            yield from _subschemas(value, (*path, key))


def _patterns(node: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if isinstance(node.get("pattern"), str):
        yield ("pattern",), node["pattern"]
    if isinstance(node.get("patternProperties"), Mapping):
        yield from ((("patternProperties", pattern), pattern) for pattern in node["patternProperties"])


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _depth(value: Any) -> int:
    """Levels of nesting, counted no further than the limit."""
    level: list[Any] = [value]
    depth = 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [item for node in level for item in _children(node)]
    return depth


def _children(node: Any) -> list[Any]:
    if isinstance(node, Mapping):
        return list(node.values())
    return list(node) if isinstance(node, list) else []
