"""What an init may say to its keeper, checked word by word.

Between the two stands a sentry, which foreign code may have got hold of: nothing that comes from there is believed to
have a form. What is said is about the sandbox that says it, and about no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TEXT_KEPT = 400
_MOST = 1 << 62

_FORMS: tuple[Mapping[str, type], ...] = (
    {"ready": bool},
    {"broken": str},
    {"idle_worker_gone": int},
    {"not_lent": str},
    {"failed": str, "why": str},
    {"ended": str, "status": int, "cpu": float, "rss": int},
    {"weighed": int},
)
"""The first field of each tells it from the others."""


def read(raw: bytes) -> dict[str, Any]:
    """The message and nothing beside it. Raises ValueError for anything that is none."""
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("no JSON") from None
    if not isinstance(said, dict):
        raise ValueError("no object")
    form = next((form for form in _FORMS if next(iter(form)) in said), None)
    if form is None:
        raise ValueError("no message that is known")
    return {name: _value(said.get(name), kind) for name, kind in form.items()}


def plain(text: str) -> str:
    """The end of it, on one line and printable: operators and records show it."""
    letters = "".join(letter if letter.isprintable() else " " for letter in text[-4 * TEXT_KEPT :])
    return " ".join(letters.split())[-TEXT_KEPT:]


def _value(value: object, kind: type) -> object:
    if kind is str and isinstance(value, str):
        return plain(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is not bool and isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST:
        return kind(value)
    raise ValueError("a field of another form")
