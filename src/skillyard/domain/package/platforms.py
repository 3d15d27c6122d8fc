"""Interpreters and their platforms, which decide which wheels fit.

A sandbox tells of its interpreter in one line. The maker of its image chose that line, so it is read strictly, and only
numbers and names of this file go on from it.
"""

from __future__ import annotations

import re
from dataclasses import field
from functools import lru_cache

from skillyard.domain.errors import InvalidInput, shown
from skillyard.values import dataclass

GLIBC = (17, 28, *range(31, 41))
"""The second numbers of the versions of glibc that uv has platforms of; each serves those up to the next."""
MACHINES = ("x86_64", "aarch64")
_TOLD = re.compile(
    rf"cpython (3\.[0-9]{{1,2}})\.([0-9]{{1,3}}) ({'|'.join(MACHINES)}) (?:musl|glibc 2\.([0-9]{{1,3}})(?:\.[0-9]+)?)"
)


def interpreter() -> str:
    """Tells of the interpreter that runs it. Its text runs in sandboxes, too."""
    import glob
    import os
    import sys

    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        libc = "musl" if glob.glob("/lib/ld-musl-*") else "unknown"  # noqa: PTH207 - it imports little
    kind = sys.implementation.name + getattr(sys, "abiflags", "")
    bits = "" if sys.maxsize > 2**32 else " (32 bit)"
    version = ".".join(map(str, sys.version_info[:3]))
    return " ".join([kind, version, os.uname().machine + bits, libc])


@dataclass(frozen=True, slots=True)
class Platform:
    """CPython ``python`` (``3.12``) on ``machine``.

    ``glibc`` is one of :data:`GLIBC`; 0 stands for musl.
    """

    python: str
    machine: str
    glibc: int
    patch: int = field(default=0, compare=False)

    @classmethod
    def told(cls, line: object) -> Platform:
        """Reads what :func:`interpreter` told in a sandbox. Raises InvalidInput for one that wheels are not had for."""
        found = _TOLD.fullmatch(line) if isinstance(line, str) else None
        glibc = max((minor for minor in GLIBC if found and found[4] and minor <= int(found[4])), default=0)
        if found is None or (found[4] and not glibc):
            rule = (
                f"are had for CPython 3 on {' or '.join(MACHINES)} with musl, or glibc 2.{GLIBC[0]} and newer, and the "
                "sandbox has another interpreter; use an image with one of these, or leave packages out"
            )
            raise InvalidInput("packages", rule, shown(line))
        return cls(found[1], found[3], glibc, int(found[2]))

    @property
    def version(self) -> str:
        return f"{self.python}.{self.patch}"

    @property
    def uv(self) -> str:
        """Returns the platform in uv's words."""
        return f"{self.machine}-manylinux_2_{self.glibc}" if self.glibc else f"{self.machine}-unknown-linux-musl"

    @property
    def name(self) -> str:
        return f"cpython-{self.python}-{self.uv}"

    def __str__(self) -> str:
        libc = f"glibc 2.{self.glibc}" if self.glibc else "musl"
        return f"Python {self.python} on {self.machine} with {libc}"

    def runs(self, other: Platform) -> bool:
        """Returns whether programs of the other one, which want old systems only, run on this one."""
        return (self.machine, bool(self.glibc)) == (other.machine, bool(other.glibc))

    def serves(self, other: Platform) -> bool:
        """Returns whether what is built for this one fits the other."""
        return self.python == other.python and other.runs(self) and self.glibc <= other.glibc


@lru_cache
def own() -> Platform:
    """Returns that of this server. Raises InvalidInput where wheels are not had for it."""
    return Platform.told(interpreter())


def foreign(line: object) -> Platform | None:
    """Returns the platform of a sandbox; None where packages for this server serve it.

    Raises InvalidInput for one that wheels are not had for.
    """
    told = Platform.told(line)
    try:
        return None if own().serves(told) else told
    except InvalidInput:  # this server is another one
        return told
