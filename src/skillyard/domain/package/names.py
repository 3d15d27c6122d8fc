"""Which packages an operator means by patterns of names: ``numpy``, ``scikit-*``, ``*``, ``!torch``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from skillyard.domain.errors import InvalidInput, shown

_SIGNS = re.compile(r"[-_.]+")
_PATTERN = re.compile(r"!?[a-z0-9*](?:[a-z0-9*-]*[a-z0-9*])?")
_LONGEST = 214


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
    """Whether some ``!`` pattern of :func:`parse_patterns` denies the package."""
    plain = normalized(name)
    return any(fnmatchcase(plain, pattern[1:]) for pattern in patterns if pattern.startswith("!"))


def admits(patterns: Iterable[str], name: str) -> bool:
    """Whether some pattern (of :func:`parse_patterns`) names the package and no ``!`` one denies it."""
    plain, named = normalized(name), False
    for pattern in patterns:
        if fnmatchcase(plain, pattern.removeprefix("!")):
            if pattern.startswith("!"):
                return False
            named = True
    return named
