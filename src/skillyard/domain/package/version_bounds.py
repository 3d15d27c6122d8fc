"""Numeric version bounds: the part of PEP 440's specifiers that ``requires-python`` and ordinary requirements use."""

from __future__ import annotations

import re

_BOUND = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*([0-9]{1,9}(?:\.[0-9]{1,9}){0,7})(\.\*)?")


def within(version: str, bounds: str) -> bool | None:
    """Whether ``version`` (its release numbers) fits ``bounds`` such as ``>=3.9,<4``; an empty one admits all.
    None when a bound is not understood."""
    answers = [_holds(_release(version), text.strip()) for text in bounds.split(",") if text.strip()]
    return None if None in answers else all(answers)


def _holds(have: tuple[int, ...], text: str) -> bool | None:
    match = _BOUND.fullmatch(text)
    if match is None:
        return None
    sign, numbers, wildcard = match.groups()
    want = _release(numbers)
    if wildcard:
        same = _padded(have)[: len(want)] == want
        return {"==": same, "!=": not same}.get(sign)
    if sign == "~=":
        return _compatible(have, want)
    left, right = _padded(have), _padded(want)
    ordered = {"==": left == right, "!=": left != right, "<=": left <= right}
    return (ordered | {">=": left >= right, "<": left < right, ">": left > right})[sign]


def _compatible(have: tuple[int, ...], want: tuple[int, ...]) -> bool | None:
    """``~= 3.9.2`` is ``>= 3.9.2, == 3.9.*``; one number alone means nothing (PEP 440)."""
    if len(want) < 2:
        return None
    return _padded(have) >= _padded(want) and _padded(have)[: len(want) - 1] == want[:-1]


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,7}", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _padded(release: tuple[int, ...]) -> tuple[int, ...]:
    return release + (0,) * (8 - len(release))
