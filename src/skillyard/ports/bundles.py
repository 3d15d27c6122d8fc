"""Bundles as they travel: an archive in, an archive out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from skillyard.domain.skill.skill import Skill


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
