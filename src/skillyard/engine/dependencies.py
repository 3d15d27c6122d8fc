"""Whether the packages that somebody asks for are in an environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from skillyard.domain.package_names import normalized

_NEED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[\s*\])?\s*(.*)", re.DOTALL)
_BOUND = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*([0-9][0-9.]*)(\.\*)?")


def missing(needs: Iterable[str], installed: Mapping[str, str]) -> list[str]:
    """The requirements that ``installed`` (normalized name → version) does not meet, as they were written.

    Understood are a name and numeric bounds (``numpy>=1.26,<3``); anything else, extras too, counts as missing.
    """
    return [need for need in needs if not _met(need, installed)]


def _met(need: str, installed: Mapping[str, str]) -> bool:
    match = _NEED.fullmatch(need.strip())
    version = installed.get(normalized(match[1])) if match else None
    if match is None or version is None:
        return False
    bounds = [piece.strip() for piece in match[2].strip("() ").split(",") if piece.strip()]
    return all(_within(version, bound) for bound in bounds)


def _within(version: str, bound: str) -> bool:
    match = _BOUND.fullmatch(bound)
    if match is None:
        return False
    sign, text, wildcard = match.groups()
    have, want = _release(version), _release(text)
    if wildcard:
        same = have[: len(want)] == want
        return {"==": same, "!=": not same}.get(sign, False)
    if sign == "~=":
        return len(want) > 1 and _padded(have) >= _padded(want) and have[: len(want) - 1] == want[:-1]
    left, right = _padded(have), _padded(want)
    ordered = {"==": left == right, "!=": left != right, "<=": left <= right}
    return (ordered | {">=": left >= right, "<": left < right, ">": left > right})[sign]


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _padded(release: tuple[int, ...]) -> tuple[int, ...]:
    return release + (0,) * (8 - len(release))
