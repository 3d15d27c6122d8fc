"""The limits of an archive, and the tree that comes out of one."""

from __future__ import annotations

from dataclasses import dataclass, field

from skillyard.stores.archives import ArchiveRefused
from skillyard.stores.skills.tree import Caps, Tree

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """``caps`` bound what the skill holds; the rest bounds the work, with what is left out of it (``.git`` …).

    ``packed`` bytes of the archive itself; ``unpacked`` bytes and ``entries`` altogether; from ``ratio_from`` unpacked
    bytes on they may be at most ``ratio`` times the archive's.
    """

    caps: Caps = field(default_factory=Caps)
    packed: int = 32 * _MIB
    unpacked: int = 64 * _MIB
    entries: int = 8192
    ratio: int = 200
    ratio_from: int = 4 * _MIB

    def check_packed(self, size: int) -> None:
        """Raises ArchiveRefused."""
        if size > self.packed:
            raise ArchiveRefused("archive-size", "", f"has more than {self.packed} bytes")

    def check_unpacked(self, size: int, packed: int) -> None:
        """Raises ArchiveRefused."""
        if size > self.unpacked:
            raise ArchiveRefused("archive-bytes", "", f"unpacks to more than {self.unpacked} bytes")
        if size > self.ratio_from and size > self.ratio * packed:
            raise ArchiveRefused("archive-ratio", "", f"unpacks to more than {self.ratio} times its {packed} bytes")

    def check_entries(self, count: int) -> None:
        """Raises ArchiveRefused."""
        if count > self.entries:
            raise ArchiveRefused("archive-entries", "", f"has more than {self.entries} entries")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """``stripped`` is the leading directory that all files were in and that is none of the skill's, or empty."""

    tree: Tree
    stripped: str = ""
