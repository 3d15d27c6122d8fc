"""What was published, and what operators said about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skillyard.domain.approval import Approval
from skillyard.domain.publication import Publication


class PublicationStore(Protocol):
    """The facts, not the bytes: those lie in the snapshot that a digest names."""

    async def insert(self, publication: Publication) -> Publication:
        """The stored one: the earlier one when name, version and digest are the same. Two versions are the same when
        neither precedes the other (semver §10, §11: build metadata does not count). Raises VersionTaken."""
        ...

    async def find(self, name: str, version: str) -> Publication | None: ...

    async def of(self, name: str) -> Sequence[Publication]:
        """Every version, withdrawn ones too, newest version first."""
        ...

    async def every(self) -> Sequence[Publication]: ...

    async def withdraw(self, name: str, version: str, *, at: float, by: str, reason: str) -> Publication | None:
        """None when there is no such version."""
        ...

    async def restore(self, name: str, version: str) -> Publication | None: ...

    async def pin(self, name: str, version: str | None) -> None:
        """Which version ``latest`` means; None for the newest."""
        ...

    async def pins(self) -> dict[str, str]: ...


class ApprovalStore(Protocol):
    async def approve(self, approval: Approval) -> None:
        """Replaces what was said of the same name, version and digest."""
        ...

    async def revoke(self, name: str, version: str) -> int:
        """How many went."""
        ...

    async def find(self, name: str, version: str, digest: str) -> Approval | None: ...

    async def of(self, name: str | None = None) -> Sequence[Approval]:
        """By name, then version; every skill's when ``name`` is None."""
        ...
