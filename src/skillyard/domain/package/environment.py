"""Packages that runs need: what is asked for, what it was resolved to, what was built."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from skillyard.domain.package.lock_text import Pin, lock_text

DEFAULT_ENVIRONMENT = "base"
"""The environment of runs that name none."""
SHOWN = 16
"""Digits of an environment's digest that people are shown, and may say."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """PEP 508 requirements, sorted and each once; make it with :meth:`of`. ``digest`` names the set.

    ``held`` are packages that must be exactly these wherever the requirements come to need them, sorted by name.
    """

    requirements: tuple[str, ...]
    held: tuple[Pin, ...] = ()

    @classmethod
    def of(cls, requirements: Iterable[str]) -> Wanted:
        return cls(tuple(sorted({" ".join(text.split()) for text in requirements})))

    def __bool__(self) -> bool:
        return bool(self.requirements)

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal. Whole: who chooses both of two sets can find two that agree in 64 bits of it."""
        held = f"\n\n{lock_text(self.held)}" if self.held else ""
        return hashlib.sha256(("\n".join(self.requirements) + held).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Lock:
    """``text`` is a requirements file with one exact version and its SHA-256 hashes for each package (pip's
    hash-checking mode); ``platform`` names interpreter and platform. The environment's digest is the lock's."""

    text: str
    platform: str

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal."""
        return hashlib.sha256(f"{self.platform}\n{self.text}".encode()).hexdigest()


class BuildState(StrEnum):
    WAITING = "waiting"
    RESOLVING = "resolving"
    INSTALLING = "installing"
    READY = "ready"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (BuildState.READY, BuildState.FAILED)


@dataclass(frozen=True, slots=True)
class BuiltEnvironment:
    """An environment on disk. ``distributions`` are normalized names (PEP 503) with their versions, ``modules`` the
    top-level names that can be imported from it. Times are UTC seconds since the epoch; ``size`` is in bytes.
    ``log`` is the blob that holds the build's log."""

    digest: str
    requirements: tuple[str, ...]
    lock: Lock
    distributions: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    size: int = 0
    built_at: float = 0.0
    used_at: float = 0.0
    build_ms: float = 0.0
    log: str = ""
