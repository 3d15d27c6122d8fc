"""Bundles as archives: reading what anybody sends, writing what was published."""

from __future__ import annotations

from skillyard.stores.skills.archives.collected import ArchiveLimits, Unpacked
from skillyard.stores.skills.archives.reading import read_archive
from skillyard.stores.skills.archives.writing import Packed, packed_files, packed_tree, tar_gz, write_zip

__all__ = [
    "ArchiveLimits",
    "Packed",
    "Unpacked",
    "packed_files",
    "packed_tree",
    "read_archive",
    "tar_gz",
    "write_zip",
]
