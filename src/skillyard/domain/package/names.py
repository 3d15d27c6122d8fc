"""Names and versions of packages: an operator's patterns, and numeric bounds.

Patterns are ``numpy``, ``scikit-*``, ``*`` and ``!torch``. Bounds are the part of PEP 440 that ``requires-python`` and
ordinary requirements use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from skillyard.domain.errors import InvalidInput, shown

_SIGNS = re.compile(r"[-_.]+")
_PATTERN = re.compile(r"!?[a-z0-9*](?:[a-z0-9*-]*[a-z0-9*])?")
_LONGEST = 214
_BOUND = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*([0-9]{1,9}(?:\.[0-9]{1,9}){0,7})(\.\*)?")


def normalized(name: str) -> str:
    """As distributions are compared (PEP 503): ``Ruamel.Yaml`` is ``ruamel-yaml``."""
    return _SIGNS.sub("-", name).lower()


def parse_patterns(texts: Iterable[object], field: str) -> tuple[str, ...]:
    """In their normalized form; ``*`` stands for any characters. Raises InvalidInput naming the one that is wrong."""
    found = []
    for index, text in enumerate(texts):
        plain = normalized(text) if isinstance(text, str) and len(text) <= _LONGEST else ""
        if _PATTERN.fullmatch(plain) is None:
            rule = "must be a package's name, which may hold '*', with '!' before it to deny"
            raise InvalidInput(f"{field}[{index}]", rule, shown(text))
        found.append(plain)
    return tuple(found)


def denies(patterns: Iterable[str], name: str) -> bool:
    """Returns whether some ``!`` pattern of :func:`parse_patterns` denies the package."""
    plain = normalized(name)
    return any(fnmatchcase(plain, pattern[1:]) for pattern in patterns if pattern.startswith("!"))


def admits(patterns: Iterable[str], name: str) -> bool:
    """Returns whether the patterns admit the package.

    Some pattern (of :func:`parse_patterns`) names it then, and no ``!`` one denies it.
    """
    plain, named = normalized(name), False
    for pattern in patterns:
        if fnmatchcase(plain, pattern.removeprefix("!")):
            if pattern.startswith("!"):
                return False
            named = True
    return named


def within(version: str, bounds: str) -> bool | None:
    """Returns whether ``version`` fits ``bounds`` such as ``>=3.9,<4``.

    Its release numbers count. Empty bounds admit all. Returns None when a bound is not understood.
    """
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
