"""From an archive that anybody may have made to the files of a bundle, or to the reasons why not.

Nothing is written anywhere. Memory is bounded by the caps whatever the archive says, time by the limits.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from skillyard.domain.skill.skill import Finding
from skillyard.stores.archives import ArchiveRefused
from skillyard.stores.archives.tar_header import BLOCK, is_tar
from skillyard.stores.skills.archives.collected import Collected, Enough
from skillyard.stores.skills.archives.limits import ArchiveLimits, Unpacked
from skillyard.stores.skills.archives.tar_reading import read_gzipped_tar, read_plain_tar
from skillyard.stores.skills.archives.zip_reading import read_zip

_OTHERS = {
    b"PK\x07\x08": "a zip in several parts",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"\x5d\x00\x00": "compressed with lzma",
    b"LZIP": "compressed with lzip",
    b"\x1f\x9d": "compressed with compress",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"!<arch>\n": "an ar archive",
    b"07070": "a cpio archive",
}


def read_archive(
    archive: BinaryIO, limits: ArchiveLimits | None = None, *, below: str = ""
) -> tuple[Unpacked | None, list[Finding]]:
    """The bundle in ``archive``, a seekable file, read from its beginning; None when a finding is an error. ``below``
    is the directory in which it lies, if not at the root.

    The format is told by the content: zip, tar, gzipped tar. Rules are those of
    :mod:`skillyard.domain.rules.archives`; notes say what was left out. Raises OSError when the file cannot be read.
    """
    collected = Collected(limits or ArchiveLimits(), tuple(below.split("/")) if below else ())
    try:
        size = archive.seek(0, os.SEEK_END)
        collected.limits.check_packed(size)
        archive.seek(0)
        head = archive.read(BLOCK)
        archive.seek(0)
        _read(archive, head, size, collected)
        return collected.unpacked()
    except ArchiveRefused as refused:
        return None, [*collected.findings, refused.finding()]
    except Enough:
        return None, collected.findings


def _read(archive: BinaryIO, head: bytes, size: int, collected: Collected) -> None:
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        read_zip(archive, size, collected)
    elif head.startswith(b"\x1f\x8b"):
        read_gzipped_tar(archive, size, collected)
    elif is_tar(head):
        read_plain_tar(archive, size, collected)
    else:
        what = next((text for magic, text in _OTHERS.items() if head.startswith(magic)), "no archive that is known")
        raise ArchiveRefused("archive-format", "", f"is {what}; zip, tar and gzipped tar are taken")
