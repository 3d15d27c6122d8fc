"""Checks a skill's ``[inputs]`` and ``[outputs]``: JSON Schemas 2020-12 of objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from skillyard.domain.skill.report import Path
from skillyard.domain.skill.schema import MAX_PATTERN, breaches, patterns_of, subschemas
from skillyard.values import dataclass

MAX_BYTES = 256 * 1024
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
_ASSERTIONS = frozenset(
    {
        *("$ref", "$dynamicRef", "type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"),
        *("properties", "patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties"),
        *("items", "prefixItems", "contains", "unevaluatedItems", "uniqueItems", "minItems", "maxItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "minProperties", "maxProperties", "required", "dependentRequired"),
    }
)
_KEYWORDS = _ANNOTATIONS | _ASSERTIONS
"""Every keyword of the dialect."""


class NotJson(ValueError):
    """A schema file is not a JSON object; ``line`` counts from 1, 0 when it is not known."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Complaint:
    """A fault of a schema; ``path`` leads to it. ``served`` says that a skill in a directory is served all the same,
    and fails when it runs."""

    level: str
    rule: str
    message: str
    path: Path = ()
    served: bool = False

    def is_fine(self, *, lenient: bool) -> bool:
        """Returns whether the schema is kept."""
        return self.level == "warning" or (lenient and self.served)


def read_json(raw: bytes) -> Mapping[str, Any]:
    """Raises NotJson."""
    if len(raw) > MAX_BYTES:
        raise NotJson(f"must have at most {MAX_BYTES} bytes")
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise NotJson("must be UTF-8", raw.count(b"\n", 0, error.start) + 1) from None
    except json.JSONDecodeError as error:
        raise NotJson(f"is not JSON: {error.msg}", error.lineno) from None
    except (RecursionError, ValueError) as error:
        raise NotJson(f"is not JSON that can be read: {error}") from None
    if not _is_unicode(value):
        raise NotJson("must not escape surrogates, which are not characters")
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
    """Yields the faults of a schema."""
    for found in breaches(schema):
        yield Complaint("error", found.rule, found.message, found.path, served=found.rule != "schema-depth")
        if found.rule in ("schema-depth", "schema-large"):
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
    for keyword in sorted(set(schema) - _KEYWORDS):
        message = f"'{keyword[:64]}' is no keyword and has no effect; fields go under 'properties'"
        yield Complaint("warning", "schema-keyword", message, (keyword,))
    yield from _deep_complaints(schema)


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kind = schema.get("type", "object")
    return (kind,) if isinstance(kind, str) else tuple(kind)


def _metaschema_complaint(schema: Mapping[str, Any]) -> Complaint | None:
    """Returns the fault by the metaschema, kept for small schemas: versions often share one."""
    text = json.dumps(schema)
    return _remembered_complaint(text) if len(text) <= REMEMBERED_CHARACTERS else _complaint_of_metaschema(schema)


@lru_cache(maxsize=1024)
def _remembered_complaint(text: str) -> Complaint | None:
    return _complaint_of_metaschema(json.loads(text))


def _complaint_of_metaschema(schema: Mapping[str, Any]) -> Complaint | None:
    from skillyard.jailed import dialect

    found = dialect.problem(schema)
    if found is None:
        return None
    path, message = found
    return Complaint("error", "schema", f"is not JSON Schema 2020-12: {_shown(path)}: {message[:200]}", path)


def _shown(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:64]}" for part in ("$", *path))[1:]


def _deep_complaints(schema: Mapping[str, Any]) -> Iterator[Complaint]:
    from skillyard.jailed import dialect

    for path, node in subschemas(schema):
        for key in _REFERENCES:
            target = node.get(key)
            if isinstance(target, str) and not target.startswith("#"):
                message = f"{key} must stay within the schema ('#…'): nothing is fetched"
                yield Complaint("error", "schema-reference", message, (*path, key))
        for at, pattern in patterns_of(node):
            if len(pattern) <= MAX_PATTERN and not dialect.is_pattern(pattern):
                message = f"the pattern of {len(pattern)} characters is not a regular expression, or too large a one"
                yield Complaint("error", "schema-pattern", message, (*path, *at), served=True)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)


def json_lines(text: str) -> dict[Path, int]:
    """Returns the line, from 1, of every value in valid JSON; a member has the line of its name."""
    lines: dict[Path, int] = {}
    path: list[str | int] = []
    line, counted = 1, 0
    key = ""
    for token in _TOKEN.finditer(text):
        line += text.count("\n", counted, token.start())
        counted = token.start()
        match token[0]:
            case "{" | "[":
                lines.setdefault(tuple(path), line)
                path.append(0 if token[0] == "[" else "")
            case "}" | "]" if path:
                path.pop()
            case "," if path and isinstance(last := path[-1], int):
                path[-1] = last + 1
            case ":" if path:
                path[-1] = _text(key)
                lines[tuple(path)] = line
            case _:
                key = token[0]
                if not path or isinstance(path[-1], int):
                    lines.setdefault(tuple(path), line)
    return lines


def _text(token: str) -> str:
    try:
        return str(json.loads(token))
    except ValueError:
        return token
