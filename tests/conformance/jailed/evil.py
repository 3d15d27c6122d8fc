"""Schemas that cost what their writers chose, each with a value that makes it so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Evil:
    """``published`` says that publishing takes it: its cost is in the value, or it has hardly any."""

    schema: dict[str, Any]
    value: dict[str, Any]
    published: bool = True


def _doubling(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    steps = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**steps, f"d{levels}": {"type": "object"}}}


def _nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def _of_a(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


_LONG = "a" * 31_000 + "!"
_TWICE = {"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}
_MANY = {"anyOf": [{"const": str(n)} for n in range(400)]}

EVIL: dict[str, Evil] = {
    "a nested repetition": Evil(_of_a({"pattern": "^(a+)+$"}), {"a": _LONG}),
    "a choice of repetitions": Evil(_of_a({"pattern": "^(a|aa|a*)*$"}), {"a": _LONG}),
    "a lookahead over repetitions": Evil(_of_a({"pattern": "^(?=(a|aa)+$)(a*)*\\1$"}), {"a": _LONG}),
    "a back reference": Evil(_of_a({"pattern": "^(a*)*(a*)*\\1\\2b$"}), {"a": _LONG}),
    "a pattern of a million": Evil(_of_a({"pattern": "((a{100}){100}){100}"}), {"a": _LONG}, published=False),
    "a pattern for names": Evil({"type": "object", "patternProperties": {"^(a+)+$": {}}}, {_LONG: 1}),
    "many patterns": Evil(
        {"type": "object", "patternProperties": {f"(\\w{{90}}){{9}}{n}": {} for n in range(400)}},
        {_LONG: 1},
        published=False,
    ),
    "references that double": Evil(_doubling(26), {}, published=False),
    "choices that double": Evil(_doubling(26, "anyOf"), {}, published=False),
    "one of two, doubled": Evil(_doubling(26, "oneOf"), {}, published=False),
    "references that double below the bound": Evil(_doubling(11), {}),
    "references that multiply with the depth": Evil({"type": "object", **_TWICE}, _nested(40)),
    "dynamic references that multiply": Evil(
        {
            "$dynamicAnchor": "n",
            "type": "object",
            "properties": {"a": {"allOf": [{"$dynamicRef": "#n"}, {"$dynamicRef": "#n"}]}},
        },
        _nested(40),
    ),
    "a schema that is itself": Evil({"type": "object", "$ref": "#"}, {"a": 1}),
    "two that are each other": Evil(
        {"type": "object", "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"a": 1},
    ),
    "unique arrays": Evil(_of_a({"uniqueItems": True}), {"a": [[n] for n in range(20_000)]}),
    "unique objects": Evil(_of_a({"uniqueItems": True}), {"a": [{"x": [n, {}]} for n in range(10_000)]}),
    "a huge enum": Evil(
        _of_a({"items": {"enum": [f"v{n}" for n in range(15_000)]}}), {"a": [f"w{n}" for n in range(5_000)]}
    ),
    "a large const": Evil(_of_a({"items": {"const": [[n] for n in range(5_000)]}}), {"a": [[[0]] * 5_000] * 40}),
    "many choices for many items": Evil(_of_a({"items": _MANY}), {"a": ["x"] * 20_000}),
    "contains, for many items": Evil(_of_a({"contains": _MANY, "minContains": 19_999}), {"a": ["x"] * 20_000}),
    "unevaluated properties": Evil(
        {
            "type": "object",
            "allOf": [{"anyOf": [{"patternProperties": {f"^{n}": {}}}]} for n in range(90)],
            "unevaluatedProperties": False,
        },
        {f"{n}x": n for n in range(5_000)},
    ),
    "dependent schemas": Evil(
        {"type": "object", "dependentSchemas": {f"k{n}": {"minProperties": 9_999} for n in range(900)}},
        {f"k{n}": n for n in range(5_000)},
    ),
    "a number of many digits": Evil(_of_a({"multipleOf": 3}), {"a": 10**4_000}),
    "a step of hardly anything": Evil(_of_a({"multipleOf": 1e-308}), {"a": 10**300}),
    "formats": Evil(_of_a({"items": {"format": "idn-email"}}), {"a": [_LONG] * 5}),
    "a deep value": Evil({"type": "object", "additionalProperties": {"$ref": "#"}}, _nested(250)),
}
