"""Parameters for the method table, made from its schemas: good ones, and everything else that JSON can say."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from typing import Any

from hypothesis import strategies as st

from skillyard.engine.method import Method, Schema

CANARY = "canary-7Hq"
"""Stands in values; a refusal of a parameter that may hold a secret never repeats it."""

HIDDEN = frozenset({"args", "code", "command", "content", "env", "value"})
"""Parameters that may hold a secret."""

PATHS = (
    "..", ".", "/", "//", "../../etc/passwd", "/etc/passwd", "..\\..\\x", "code/../../x", "code/%2e%2e/x", "a\0b",
    "..;/x", "\u2025/x", "\uff0e\uff0e/x", "code\u2215main.txt", "C:\\x", "~/x", "file:///etc/passwd", "\\\\host\\x",
    "\ufeffx", "e\u0301", "\u202ex", "%00", "$(id)", "`id`", "'; DROP TABLE runs; --", "-rf", "", " ", "\n", "\u2028",
    "NUL", "blob:..", "blob:.", "blob:a/b", "run_../x", "blob:" + "a" * 129, "run_" + "a" * 65, "x" * 5000,
)  # fmt: skip

NUMBERS = (0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**40, 10**400, -(10**4000),
           0.5, -0.0, 1e308, -1e308, 5e-324, 1e16)  # fmt: skip

KEYS = st.sampled_from(PATHS) | st.text(max_size=50)
TEXTS = KEYS | st.just(CANARY)
SCALARS = st.none() | st.booleans() | st.integers() | st.sampled_from(NUMBERS) | TEXTS
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


def params_of(method: Method[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly the method's own names, with values good and bad, and now and then a name that it does not have."""
    properties: Mapping[str, Schema] = method.params["properties"]
    required = method.params["required"]
    mixed = {name: _good(rules) | _good(rules) | ANYTHING for name, rules in properties.items()}
    own = st.fixed_dictionaries(
        {name: mixed[name] for name in required},
        optional={name: value for name, value in mixed.items() if name not in required},
    )
    odd = st.dictionaries(st.sampled_from(sorted(properties) or ["x"]) | KEYS, ANYTHING, max_size=3)
    return own | own | own | odd


def _good(rules: Schema) -> st.SearchStrategy[Any]:
    if "enum" in rules:
        return st.sampled_from(rules["enum"])
    kinds = rules["type"] if isinstance(rules["type"], list) else [rules["type"]]
    return st.one_of(*(_of_kind(kind, rules) for kind in kinds))


def _of_kind(kind: str, rules: Schema) -> st.SearchStrategy[Any]:
    match kind:
        case "string" if "pattern" in rules:
            return st.from_regex(rules["pattern"], fullmatch=True).map(lambda text: text[:60]) | TEXTS
        case "string":
            return TEXTS
        case "integer" | "number":
            low, high = rules.get("minimum", -10), rules.get("maximum", 10**6)
            return st.integers(ceil(low), floor(high)) | st.sampled_from((low, high))
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(_good(rules["items"]), max_size=4)
        case _ if "properties" in rules:
            return st.fixed_dictionaries({}, optional={n: _good(r) for n, r in rules["properties"].items()})
        case _:
            return st.dictionaries(KEYS, ANYTHING, max_size=3)
