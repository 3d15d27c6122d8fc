"""Where locks and built environments are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from skillyard.domain.errors import SkillyardError
from skillyard.domain.package.environment import BuiltEnvironment, Lock, Wanted
from skillyard.values import dataclass


class BadEnvironment(SkillyardError):
    """A build's result differs from its lock; the message says how."""

    type = "SandboxError"


class TooLarge(BadEnvironment):
    """The build has more bytes than :class:`Arrival` allows."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The facts that a resolution depends on beside its requirements.

    They are interpreter and platform in words, the index, and the packages that are built from source.
    """

    platform: str
    index: str
    source: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredLock:
    """``resolved_at`` is UTC seconds since the epoch."""

    lock: Lock
    requirements: tuple[str, ...]
    index: str
    resolved_at: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """An environment that is about to be stored: its lock and facts, without its files."""

    lock: Lock
    requirements: tuple[str, ...]
    log: str
    most_bytes: int


class EnvironmentStore(Protocol):
    """Environments on one host, written by one process at a time.

    An environment appears whole or not at all, and never changes.
    """

    async def lock(self, wanted: Wanted, origin: Origin) -> StoredLock | None:
        """Returns what these requirements were resolved to. Raises StoreFault."""
        ...

    async def keep_lock(self, wanted: Wanted, origin: Origin, lock: Lock) -> None:
        """In the place of an earlier one. Raises StoreFault."""
        ...

    async def find(self, digest: str) -> BuiltEnvironment | None:
        """None for one that was not built, or was removed."""
        ...

    def packages(self, digest: str) -> Path:
        """The directory that sandboxes are shown: files 0444 or 0555, directories 0555."""
        ...

    async def list(self) -> Sequence[BuiltEnvironment]:
        """The one that was used last first."""
        ...

    async def add(self, arrival: Arrival, chunks: AsyncIterator[bytes]) -> BuiltEnvironment:
        """Stores the tar archive that a build gives.

        The archive is read as hostile, and compared with the lock and with the digests that its distributions record.
        One that is there already stays.

        Raises BadEnvironment, and StoreFault when the disk refuses it; nothing is left then.
        """
        ...

    async def annotate(self, digest: str, *, build_ms: float, log: str) -> None:
        """How it was built, which is known when everything is over. No effect on one that is gone."""
        ...

    async def wheel_tags(self, digest: str) -> Mapping[str, Sequence[str]]:
        """The tags of the wheel that each distribution came from, by normalized name. Raises StoreFault."""
        ...

    async def touch(self, digest: str) -> None:
        """It is used. Cheap: remembered now and then."""
        ...

    async def remove(self, digest: str) -> bool:
        """Returns whether it was there. Nobody may use it: its files go at once."""
        ...

    async def forget_lock(self, digest: str) -> int:
        """Remove every lock that leads to this environment; how many there were."""
        ...

    async def sweep(self) -> int:
        """Remove what a crash left half-made; how many went. Only while nothing is being added."""
        ...
