"""The catalogue of skills, and bundles as they travel: an archive in, an archive out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

from skillyard.domain.skill.skill import Finding, Skill, SkillLine
from skillyard.values import dataclass


class SkillStore(Protocol):
    async def revision(self) -> str:
        """Changes whenever the catalogue does; what a cursor is bound to."""
        ...

    async def page(self, after: str | None, limit: int, namespace: str | None = None) -> Sequence[SkillLine]:
        """Returns at most ``limit`` skills whose names sort behind ``after`` (code points).

        With ``namespace``, these are that skill and those below it on a dotted boundary.
        """
        ...

    async def get(self, name: str, version: str | None = None) -> Skill:
        """Returns a version, the latest when none is given.

        The latest is the pinned one, else the highest by semver (pre-releases only where nothing else is there). Raises
        SkillNotFound, which says so when the version was withdrawn.
        """
        ...

    async def versions(self, name: str) -> Sequence[str]:
        """Newest first. Raises SkillNotFound."""
        ...

    async def not_published(self, name: str) -> frozenset[str]:
        """Returns the versions in the operator's directories and the built-in ones."""
        ...

    async def pinned(self, name: str) -> str | None:
        """The version that ``latest`` was set to, when it is served."""
        ...

    async def refresh(self, name: str) -> None:
        """Takes note of a change to the publications of ``name``.

        The change is served from the moment that this returns.
        """
        ...

    async def problems(self) -> Sequence[Finding]:
        """Why some bundles on disk are not served."""
        ...


class ArchiveForm(StrEnum):
    """The archive that :meth:`BundleStore.export` writes."""

    TAR_GZ = "tar.gz"
    ZIP = "zip"


class Arrived(Protocol):
    """A bundle that came whole and is a valid skill, of which nothing is stored yet."""

    @property
    def skill(self) -> Skill:
        """``root`` is where its snapshot will be."""
        ...

    async def keep(self) -> None:
        """Store the snapshot; returns when it is there whole. Idempotent. Raises StoreFault."""
        ...


@dataclass(frozen=True, slots=True)
class Exported:
    """An archive of ``size`` bytes. The same bundle gives every caller the same bytes, at any time."""

    size: int
    chunks: AsyncIterator[bytes]


class BundleStore(Protocol):
    async def receive(self, chunks: AsyncIterator[bytes]) -> Arrived:
        """Take an archive (zip, tar, tar.gz, told apart by content) in constant memory and check it.

        Raises BundleRefused with what is wrong as ``findings``, QuotaExceeded for one that is too large, StoreFault,
        and what ``chunks`` raises. Nothing is left then, nor after a crash.
        """
        ...

    def export(self, skill: Skill, form: ArchiveForm) -> AbstractAsyncContextManager[Exported]:
        """The bundle, file for file: a reader of the archive gets the same digest. Raises StoreFault."""
        ...
