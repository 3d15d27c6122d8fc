"""The published versions of skills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skillyard.domain.skill.publication import Disabled, Pin, Publication, PublicationEvent
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class Inserted:
    """A publication as it is stored.

    ``created`` is False when the same bytes were published before.
    """

    publication: Publication
    created: bool


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A withdrawal.

    ``changed`` is False when the version was withdrawn before; ``unpinned`` is True when a pin to it went with it.
    """

    publication: Publication
    changed: bool
    unpinned: bool


class PublicationStore(Protocol):
    """The facts, not the bytes: those lie in the snapshot that a digest names. Nothing is ever removed. Each change
    stands in the history of its name, from the same transaction."""

    async def insert(self, publication: Publication, *, any_project: bool = False) -> Inserted:
        """Stores a publication.

        Two versions are the same when neither precedes the other (semver §10, §11: build metadata does not count).
        Raises VersionTaken for other bytes under a version that is taken and for one that was withdrawn, Forbidden when
        the name is another project's, QuotaExceeded. With ``any_project`` the publication is stored for the project
        that the name belongs to.
        """
        ...

    async def check(self, publication: Publication, *, any_project: bool = False) -> None:
        """Raises what :meth:`insert` would raise; stores nothing."""
        ...

    async def find(self, name: str, version: str) -> Publication | None:
        """By the version's precedence, as for :meth:`insert`."""
        ...

    async def of(self, name: str) -> Sequence[Publication]:
        """Every version, withdrawn ones too, newest version first."""
        ...

    async def every(self) -> Sequence[Publication]:
        """Of all names, withdrawn ones too, in the order in which they were published."""
        ...

    async def owner(self, name: str) -> str | None:
        """The project that first published it; None for a name that was never published."""
        ...

    async def withdraw(self, name: str, version: str, *, at: float, by: str, reason: str) -> Withdrawn | None:
        """None when there is no such version. A pin to it goes with it."""
        ...

    async def restore(self, name: str, version: str, *, at: float, by: str) -> Publication | None:
        """The version, served again. None when there is no such version."""
        ...

    async def pin(self, pin: Pin) -> Pin:
        """Sets the version that ``latest`` means, and returns the stored pin.

        That is the earlier pin when it is to the same version. Raises InvalidInput for a version that is withdrawn. The
        caller knows whether a version that was never published exists elsewhere.
        """
        ...

    async def unpin(self, name: str, *, at: float, by: str) -> Pin | None:
        """The pin that went; None when there was none."""
        ...

    async def pinned(self, name: str) -> Pin | None: ...

    async def disable(self, disabled: Disabled) -> Disabled:
        """Stores that no agent of a project uses a skill. Returns the stored choice, which may be an earlier one."""
        ...

    async def enable(self, project: str, name: str) -> bool:
        """Returns whether the skill was disabled in the project."""
        ...

    async def disabled(self) -> Sequence[Disabled]:
        """Of every project, by project and name."""
        ...

    async def changed(self, since: int) -> tuple[int, Sequence[str]]:
        """Returns the number of the newest line of all histories, and the names in newer lines.

        The number is 0 without any line. Newer are the lines after ``since``. The names are in no order. Numbers only
        grow; each change has one of its own.
        """
        ...

    async def history(self, name: str, *, limit: int = 100) -> Sequence[PublicationEvent]:
        """Newest first."""
        ...
