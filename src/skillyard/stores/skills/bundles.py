"""Bundles as they travel: an archive into a checked skill, a snapshot into an archive. Nothing of a skill is run."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from skillyard.domain.errors import BundleRefused, QuotaExceeded, StoreFault
from skillyard.domain.skill.skill import Finding, Skill, SkillSource
from skillyard.ports.skills import ArchiveForm, Exported
from skillyard.stores.disk import remove_tree
from skillyard.stores.skills.archives import ArchiveLimits, packed_files, read_archive, tar_gz, write_zip
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Tree
from skillyard.stores.skills.validation.bundle import Bundle, Place, check_bundle
from skillyard.stores.skills.validation.companions import MANIFEST
from skillyard.stores.skills.validation.findings import Findings
from skillyard.stores.skills.validation.skill_md import NAME, read_skill_md
from skillyard.stores.skills.validation.toml import TomlRefused, read_toml
from skillyard.threads import to_its_end
from skillyard.values import dataclass

T = TypeVar("T")

PIECE = 1024 * 1024
"""Bytes of an archive that are in memory at once on their way to and from the disk."""
AT_ONCE = 2
"""Archives that are unpacked at a time, and packed: each is in memory whole, within the caps."""


@dataclass(frozen=True, slots=True)
class ArrivedBundle:
    """A :class:`skillyard.ports.skills.Arrived`."""

    skill: Skill
    tree: Tree
    snapshots: Snapshots

    async def keep(self) -> None:
        try:
            await to_its_end(lambda: self.snapshots.store(self.tree))
        except OSError as error:
            raise StoreFault(f"the snapshot of '{self.skill.name}' cannot be stored: {error.strerror}") from error


class LocalBundles:
    """A :class:`skillyard.ports.skills.BundleStore` over a directory of snapshots.

    ``spool`` is a directory of this object's own, for archives on their way: their files have no name in it where the
    file system allows that, and what a crash leaves goes at the next :meth:`prepare`.
    """

    def __init__(
        self, snapshots: Snapshots, spool: Path, *, max_bytes: int = 32 * 1024 * 1024, lenient: bool = False
    ) -> None:
        """``max_bytes`` of one archive. ``lenient`` takes what the catalogue would serve from a directory, too."""
        self._snapshots = snapshots
        self._spool = spool
        self._limits = ArchiveLimits(packed=max_bytes)
        self._lenient = lenient
        self._reading = asyncio.Semaphore(AT_ONCE)
        self._packing = asyncio.Semaphore(AT_ONCE)

    def prepare(self) -> None:
        """Makes the spool's directory, empty. It blocks, and comes before all other calls. Raises OSError."""
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._spool.chmod(0o700)
        for left in self._spool.iterdir():
            remove_tree(left)

    async def receive(self, chunks: AsyncIterator[bytes]) -> ArrivedBundle:
        async with self._spooled() as archive:
            await self._fill(archive, chunks)
            async with self._reading:
                tree, skill = await to_its_end(lambda: self._checked(archive))
        return ArrivedBundle(skill, tree, self._snapshots)

    @asynccontextmanager
    async def export(self, skill: Skill, form: ArchiveForm) -> AsyncIterator[Exported]:
        async with self._spooled() as archive:
            async with self._packing:
                size = await to_its_end(lambda: _pack(skill, form, archive))
            yield Exported(size, _pieces(archive))

    @asynccontextmanager
    async def _spooled(self) -> AsyncIterator[BinaryIO]:
        try:
            archive = tempfile.TemporaryFile(dir=self._spool)  # noqa: SIM115 - closed below, whatever happens
        except OSError as error:
            raise StoreFault(f"no archive can be spooled: {error.strerror}") from error
        try:
            yield cast("BinaryIO", archive)
        finally:
            archive.close()

    async def _fill(self, archive: BinaryIO, chunks: AsyncIterator[bytes]) -> None:
        size, held = 0, bytearray()
        async for chunk in chunks:
            size += len(chunk)
            if size > self._limits.packed:
                rule = f"must be at most {self._limits.packed} bytes"
                raise QuotaExceeded("bundle", rule, limit="upload_bytes", maximum=self._limits.packed)
            held += chunk
            if len(held) >= PIECE:
                held, full = bytearray(), held
                await _write(archive, full)
        await _write(archive, held)

    def _checked(self, archive: BinaryIO) -> tuple[Tree, Skill]:
        """Raises BundleRefused."""
        try:
            unpacked, notes = read_archive(archive, self._limits)
        except OSError as error:
            raise StoreFault(f"a spooled archive cannot be read: {error.strerror}") from error
        if unpacked is None:
            raise refusal(notes)
        tree = unpacked.tree
        root = self._snapshots.path(tree.digest)
        skill, findings = check_bundle(Bundle(tree, Place(own_name(tree)), root, self._lenient))
        if skill is None:
            raise refusal([*notes, *findings])
        return tree, replace(skill, findings=(*notes, *skill.findings), source=SkillSource.PUBLISHED)


def own_name(tree: Tree) -> str:
    """Returns the name that a bundle gives itself, empty when it has none. Its directory's name does not count."""
    manifest = tree.files.get(MANIFEST)
    if manifest is not None:
        try:
            name = read_toml(manifest.data).data.get("name")
        except TomlRefused:
            return ""
        return name if isinstance(name, str) else ""
    document = tree.files.get(NAME)
    text = read_skill_md(document.data, Findings(), lenient=True, needs_front=True) if document else None
    return (text.front.text("name") or "") if text else ""


def refusal(findings: Sequence[Finding]) -> BundleRefused:
    """``findings`` hold an error."""
    errors = [finding for finding in findings if finding.level == "error"]
    first = errors[0]
    where = f"{first.file}:{first.line}" if first.line else first.file
    more = f"; and {len(errors) - 1} more" if len(errors) > 1 else ""
    rule = f"is not a skill that can be published: {where}: {first.message} [{first.rule}]{more}"
    return BundleRefused("bundle", rule, findings=[asdict(finding) for finding in findings])


def _pack(skill: Skill, form: ArchiveForm, archive: BinaryIO) -> int:
    """Returns the number of bytes that were written."""
    try:
        files = packed_files(skill.root, skill.files)
        if form is ArchiveForm.ZIP:
            write_zip(files, archive, prefix=skill.name)
        else:
            archive.writelines(tar_gz(files, prefix=skill.name))
        size = archive.seek(0, os.SEEK_END)
        archive.seek(0)
    except OSError as error:
        raise StoreFault(f"the bundle of '{skill.name}' cannot be packed: {error.strerror}") from error
    return size


async def _pieces(archive: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await to_its_end(lambda: archive.read(PIECE)):
        yield piece


async def _write(archive: BinaryIO, piece: bytearray) -> None:
    try:
        await to_its_end(lambda: archive.write(piece))
    except OSError as error:
        raise StoreFault(f"an archive cannot be spooled: {error.strerror}") from error
