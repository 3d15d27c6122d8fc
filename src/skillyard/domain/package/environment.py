"""The packages of runs: requirements, the lock of resolved ones, the built environment.

The text of a lock is a requirements file in pip's hash-checking mode. It is written inside a sandbox, so it is read
strictly and written anew::

    name==1.2.3 \\
        --hash=sha256:<64 hexadecimal digits> \\
        --hash=sha256:…
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum

from skillyard.domain.errors import SkillyardError
from skillyard.domain.package.names import normalized
from skillyard.domain.package.platforms import Platform
from skillyard.values import dataclass

DEFAULT_ENVIRONMENT = "base"
"""The environment of runs that name none."""
MAX_TEXT = 16 * 1024 * 1024
MAX_PACKAGES = 2000
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9])?"
_VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9.!+_-]{0,98}[A-Za-z0-9])?"
_PIN = re.compile(rf"({_NAME})==({_VERSION})((?: --hash=sha256:[0-9a-f]{{64}})+)")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
SHOWN = 16
"""Digits of an environment's digest that people are shown, and may say."""


class BadLock(SkillyardError):
    """A lock is not a list of exact versions with digests."""

    type = "SandboxError"


@dataclass(frozen=True, slots=True)
class Pin:
    """``name`` is normalized (PEP 503), ``hashes`` are SHA-256 in hexadecimal."""

    name: str
    version: str
    hashes: tuple[str, ...]


def parse_lock(text: str) -> tuple[Pin, ...]:
    """Sorted by name. Raises BadLock."""
    if len(text) > MAX_TEXT:
        raise BadLock("the resolved lock is too large")
    pins: dict[str, Pin] = {}
    for line in _logical_lines(text):
        match = _PIN.fullmatch(line)
        if match is None:
            raise BadLock(f"the resolved lock has a line that is not an exact version with digests: {line[:100]!r}")
        pin = Pin(normalized(match[1]), match[2], tuple(dict.fromkeys(_HASH.findall(match[3]))))
        if pin.name in pins:
            raise BadLock(f"the resolved lock names {pin.name} twice")
        pins[pin.name] = pin
    if len(pins) > MAX_PACKAGES:
        raise BadLock(f"the resolved lock has more than {MAX_PACKAGES} packages")
    return tuple(pins[name] for name in sorted(pins))


def agreed(one: Pin, other: Pin) -> Pin | None:
    """Returns the pin with the files that both name.

    Returns None for another version, and without a common file.
    """
    hashes = tuple(found for found in one.hashes if found in other.hashes)
    return Pin(one.name, one.version, hashes) if one.version == other.version and hashes else None


def held_to(pins: Iterable[Pin], held: Iterable[Pin]) -> tuple[Pin, ...]:
    """Returns the pins, where they are held with no files but those that are held. Raises BadLock for others."""
    by_name, found = {pin.name: pin for pin in held}, []
    for pin in pins:
        bound = by_name.get(pin.name, pin)
        both = agreed(bound, pin)
        if both is None:
            other = f"version {pin.version}" if pin.version != bound.version else "only other files"
            raise BadLock(f"'{pin.name}' was approved as {bound.version}, and the resolution gives {other}")
        found.append(both)
    return tuple(found)


def lock_text(pins: Iterable[Pin]) -> str:
    """The one way to write them, so that equal locks are equal texts."""
    return "".join(
        f"{pin.name}=={pin.version}" + "".join(f" \\\n    --hash=sha256:{found}" for found in sorted(pin.hashes)) + "\n"
        for pin in sorted(pins, key=lambda pin: pin.name)
    )


def _logical_lines(text: str) -> Iterable[str]:
    joined = text.replace("\\\n", " ")
    for line in joined.split("\n"):
        plain = " ".join(line.split())
        if plain and not plain.startswith("#"):
            yield plain


@dataclass(frozen=True, slots=True)
class Wanted:
    """PEP 508 requirements, sorted and each once; make it with :meth:`of`. ``digest`` names the set.

    ``held`` are packages that must be exactly these wherever the requirements come to need them, sorted by name.
    ``platform`` is what they are for; None for this server's own.
    """

    requirements: tuple[str, ...]
    held: tuple[Pin, ...] = ()
    platform: Platform | None = None

    @classmethod
    def of(cls, requirements: Iterable[str]) -> Wanted:
        return cls(tuple(sorted({" ".join(text.split()) for text in requirements})))

    def __bool__(self) -> bool:
        return bool(self.requirements)

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal. Whole: who chooses both of two sets can find two that agree in 64 bits of it."""
        held = f"\n\n{lock_text(self.held)}" if self.held else ""
        platform = f"\n\n{self.platform.name}" if self.platform is not None else ""
        return hashlib.sha256(("\n".join(self.requirements) + held + platform).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Lock:
    """The resolved packages.

    ``text`` is a requirements file with one exact version and its SHA-256 hashes for each package (pip's hash-checking
    mode); ``platform`` names interpreter and platform. The environment's digest is the lock's.
    """

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
