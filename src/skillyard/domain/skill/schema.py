"""A skill's schema: the bounds on its size, and the result of a check.

Its writer chooses its cost, and others pay it. The bounds are checked when a bundle is read and again before the schema
is applied: nothing above them is ever applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from skillyard.values import dataclass

MOST_ERRORS = 5
Path = tuple[str | int, ...]
MAX_DEPTH = 32
MAX_SUBSCHEMAS = 5000
MAX_PATTERNS = 100
MAX_PATTERN = 1000
MAX_AT_ONCE = 10_000
"""Subschemas that one value is held against, references followed."""
VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords below which plain values stand."""
NAMED = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas", "definitions"})
"""Keywords below which subschemas stand by name."""
_SAME_VALUE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})
"""Keywords whose subschemas are held against the very value that the schema itself is."""


@dataclass(frozen=True, slots=True)
class SchemaVerdict:
    """The result of one check. ``errors`` are the first few: the place in the value (keys and indexes), and the
    message. ``unfit`` is the reason for which the schema could not be applied. Both hold foreign text, whole: secrets
    have to be taken out before it is cut."""

    errors: tuple[tuple[tuple[str | int, ...], str], ...] = ()
    unfit: str = ""


@dataclass(frozen=True, slots=True)
class Breach:
    """A bound that a schema passes; ``rule`` is the finding's, ``path`` leads to the place."""

    rule: str
    message: str
    path: Path = ()


def breaches(schema: Mapping[str, Any]) -> Iterator[Breach]:
    """Yields each bound that the schema passes; one that is nested too deep gives that alone."""
    if depth(schema, MAX_DEPTH) > MAX_DEPTH:
        yield Breach("schema-depth", f"must not be nested deeper than {MAX_DEPTH} levels; describe less of the depth")
        return
    found = list(subschemas(schema))
    if len(found) > MAX_SUBSCHEMAS:
        told = f"has {len(found)} subschemas, more than {MAX_SUBSCHEMAS}; describe less of the value"
        yield Breach("schema-large", told)
        return
    patterns = {pattern: (*path, *at) for path, node in found for at, pattern in patterns_of(node)}
    if len(patterns) > MAX_PATTERNS:
        yield Breach("schema-large", f"has {len(patterns)} patterns, more than {MAX_PATTERNS}; check less by pattern")
    for pattern, path in patterns.items():
        if len(pattern) > MAX_PATTERN:
            told = f"a pattern has {len(pattern)} characters, more than {MAX_PATTERN}; shorten it"
            yield Breach("schema-pattern", told, path)
    most = _most_at_once(schema, [node for _, node in found])
    if most > MAX_AT_ONCE:
        told = f"holds one value against more than {MAX_AT_ONCE} subschemas through its references"
        yield Breach("schema-expansion", f"{told}; refer to each definition once")


def subschemas(node: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yields every schema within a schema with its path, itself first; skips plain values."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from subschemas(item, (*path, index))
    if not isinstance(node, Mapping):
        return
    yield path, node
    for key, value in node.items():
        if key in NAMED and isinstance(value, Mapping):
            for name, item in value.items():
                yield from subschemas(item, (*path, key, name))
        elif key not in VALUES:
            yield from subschemas(value, (*path, key))


def patterns_of(node: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yields the regular expressions of one schema with their paths in it."""
    if isinstance(node.get("pattern"), str):
        yield ("pattern",), node["pattern"]
    if isinstance(node.get("patternProperties"), Mapping):
        yield from ((("patternProperties", pattern), pattern) for pattern in node["patternProperties"])


def depth(value: Any, most: int) -> int:
    """Returns the levels of nesting, counted no further than one above ``most``."""
    level: list[Any] = [value]
    found = 0
    while level and found <= most:
        found += 1
        level = [item for node in level for item in _items(node)]
    return found


def _items(node: Any) -> list[Any]:
    if isinstance(node, Mapping):
        return list(node.values())
    return list(node) if isinstance(node, list) else []


def _most_at_once(root: Mapping[str, Any], nodes: list[Mapping[str, Any]]) -> int:
    """Returns the most subschemas that one value meets. A reference back to a schema that is being counted is not
    followed.

    Each schema's sum is made once, from those of what it leads to, on a stack of our own: chains may be long.
    """
    anchors = {name: node for node in nodes for key in ("$anchor", "$dynamicAnchor") if _text(name := node.get(key))}
    sums: dict[int, int] = {}
    most = 0
    for start in nodes:
        stack: list[tuple[Mapping[str, Any], bool]] = [(start, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                sums[id(node)] = 1 + sum(sums.get(id(on), 1) for on in _leads_to(root, node, anchors))
                most = max(most, sums[id(node)])
                if most > MAX_AT_ONCE:
                    return most
            elif id(node) not in sums:
                sums[id(node)] = 1  # while it is counted
                stack.append((node, True))
                stack += [(on, False) for on in _leads_to(root, node, anchors) if id(on) not in sums]
    return most


def _leads_to(root: Any, node: Mapping[str, Any], anchors: Mapping[Any, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the further subschemas that a value of ``node`` is held against."""
    found: list[Any] = []
    for key in _SAME_VALUE & node.keys():
        value = node[key]
        if key == "dependentSchemas" and isinstance(value, Mapping):
            found += value.values()
        else:
            found += value if isinstance(value, list) else [value]
    for key in ("$ref", "$dynamicRef"):
        target = node.get(key)
        if isinstance(target, str) and target.startswith("#"):
            found.append(_target(root, target[1:], anchors))
    return [on for on in found if isinstance(on, Mapping)]


def _target(root: Any, pointer: str, anchors: Mapping[Any, Mapping[str, Any]]) -> Any:
    if pointer and not pointer.startswith("/"):
        return anchors.get(pointer)
    at = root
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, Mapping):
            at = at.get(part)
        elif isinstance(at, list) and part.isdecimal() and len(part) < 6 and int(part) < len(at):
            at = at[int(part)]
        else:
            return None
    return at


def _text(value: Any) -> bool:
    return isinstance(value, str)
