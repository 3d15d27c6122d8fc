"""Semantic versions (semver 2.0.0): parse, order, ranges, and which one is the latest.

Versions travel as text; :class:`Version` is for comparing. Two versions that differ only in build metadata have
the same precedence (semver §10).
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

from skillyard.domain.errors import InvalidInput, shown
from skillyard.values import dataclass

MAX_LENGTH = 128
"""Characters of a version: more says nothing, and a longer number would be refused by ``int``."""

_NUMBER = r"(?:0|[1-9][0-9]*)"
_PRE = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    rf"(?:-({_PRE}(?:\.{_PRE})*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_BOUND = re.compile(rf"(>=|<=|==|!=|>|<)\s*({_NUMBER})(?:\.({_NUMBER}))?(?:\.({_NUMBER}))?(?:-({_PRE}(?:\.{_PRE})*))?")
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}

Precedence = tuple[int, int, int, bool, tuple[tuple[int, int, str], ...]]


@dataclass(frozen=True, slots=True)
class Version:
    """A version; ``pre`` and ``build`` have no signs and are empty when absent."""

    major: int
    minor: int
    patch: int
    pre: str = ""
    build: str = ""

    @classmethod
    @functools.lru_cache(maxsize=4096)  # a search for fitting versions reads the same ones hundreds of times
    def parse(cls, text: str, field: str = "version") -> Version:
        """Raises InvalidInput naming ``field``."""
        match = _VERSION.fullmatch(text) if len(text) <= MAX_LENGTH else None
        if match is None:
            raise InvalidInput(field, "must be a semantic version such as '1.4.0' or '2.0.0-rc.1'", shown(text))
        major, minor, patch, pre, build = match.groups()
        return cls(int(major), int(minor), int(patch), pre or "", build or "")

    @property
    def precedence(self) -> Precedence:
        """Returns the key that orders versions (semver §11): a release is above its pre-releases."""
        return (self.major, self.minor, self.patch, not self.pre, _identifiers(self.pre))

    @property
    def release(self) -> tuple[int, int, int]:
        return (self.major, self.minor, self.patch)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        return text + (f"-{self.pre}" if self.pre else "") + (f"+{self.build}" if self.build else "")


def _identifiers(pre: str) -> tuple[tuple[int, int, str], ...]:
    parts = pre.split(".") if pre else []
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


def is_version(text: str) -> bool:
    return len(text) <= MAX_LENGTH and _VERSION.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Bound:
    """One condition on a version, such as ``<2``."""

    sign: str
    version: Version

    def admits(self, version: Version) -> bool:
        """Returns whether the bound holds; ``<2`` leaves out the pre-releases of 2.0.0 too."""
        if self.sign == "<" and not self.version.pre and version.release == self.version.release:
            return False
        return _HOLDS[self.sign](version.precedence, self.version.precedence)

    def __str__(self) -> str:
        return f"{self.sign}{self.version}"


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds that all hold: ``>=1.2,<2``. No bounds admit every version."""

    bounds: tuple[Bound, ...] = ()

    @classmethod
    def parse(cls, text: str, field: str = "range") -> Range:
        """Raises InvalidInput naming ``field``. Missing parts of a version are zero: ``>=1.2`` is ``>=1.2.0``."""
        pieces = text.split(",") if text.strip() else []
        return cls(tuple(_bound(piece.strip(), field) for piece in pieces))

    def admits(self, version: str) -> bool:
        """Returns whether all bounds hold; False for text that is not a version."""
        if not is_version(version):
            return False
        parsed = Version.parse(version)
        return all(bound.admits(parsed) for bound in self.bounds)

    def choose(self, versions: Iterable[str]) -> str | None:
        """Returns the newest version within; a pre-release if a bound names one or none else is in."""
        fitting = [version for version in versions if self.admits(version)]
        if any(bound.version.pre for bound in self.bounds):
            return next(iter(newest_first(fitting)), None)
        return latest(fitting)

    def __str__(self) -> str:
        return ",".join(map(str, self.bounds))


def _bound(text: str, field: str) -> Bound:
    match = _BOUND.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise InvalidInput(field, "must be bounds such as '>=1.2,<2' (signs >= <= > < == !=)", shown(text))
    sign, major, minor, patch, pre = match.groups()
    return Bound(sign, Version(int(major), int(minor or 0), int(patch or 0), pre or ""))


def newest_first(versions: Iterable[str]) -> list[str]:
    """Returns the versions by precedence, then by text."""
    return sorted(versions, key=lambda text: (Version.parse(text).precedence, text), reverse=True)


def latest(versions: Iterable[str]) -> str | None:
    """Returns the highest version; a pre-release when there is no other (skills-protocol §8)."""
    ordered = newest_first(versions)
    return next((text for text in ordered if not Version.parse(text).pre), next(iter(ordered), None))
