"""Whether the packages that somebody asks for are in an environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from skillyard.domain.package.names import normalized, within

_NEED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[\s*\])?\s*(.*)", re.DOTALL)


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
    return within(version, match[2].strip("() ")) is True
