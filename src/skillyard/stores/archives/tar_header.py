"""One header block of a tar archive: POSIX ustar (IEEE Std 1003.1, pax, "ustar Interchange Format") and GNU's.

https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html, https://www.gnu.org/software/tar/manual
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from skillyard.stores.archives.refused import ArchiveRefused

BLOCK = 512
ZEROS = bytes(BLOCK)
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_POSIX, _GNU = b"ustar\x0000", b"ustar  \0"
_BINARY = b"\x80\xff"
_UNUSED_NUMBERS = ((108, 116), (116, 124), (136, 148), (329, 337), (337, 345))
"""Owner, group, time and device: others give up at one that is none, and so would see another archive."""
_CHECKSUM_AS_SPACES = sum(b" " * 8)


@dataclass(frozen=True, slots=True)
class TarHeader:
    """``kind`` is the type flag; ``size`` counts the bytes of content that follow."""

    name: bytes
    kind: bytes
    size: int
    executable: bool


def is_tar(block: bytes) -> bool:
    """Whether a file that begins with ``block`` is a tar archive with a magic (not the format of 1979)."""
    return block[257:265] in (_POSIX, _GNU)


def read_header(block: bytes) -> TarHeader:
    """Of 512 bytes. Raises ArchiveRefused."""
    short = _text(block[:100])
    if not is_tar(block):
        raise ArchiveRefused("archive-header", short, "has a header that is not ustar's or GNU's")
    total = sum(block) - sum(block[148:156]) + _CHECKSUM_AS_SPACES
    if _number(block[148:156], short) != total:
        raise ArchiveRefused("archive-damaged", short, "has a header whose check sum is wrong")
    prefix = _text(block[345:500])
    name = prefix + b"/" + short if prefix else short
    if prefix and block[257:265] == _GNU:  # other fields of GNU's own, which some take for a part of the name
        raise ArchiveRefused("archive-header", short, "has a header of an incremental backup")
    mode, size = _number(block[100:108], name), _number(block[124:136], name)
    for start, end in _UNUSED_NUMBERS:
        if block[start] not in _BINARY:
            _number(block[start:end], name)
    return TarHeader(name, block[156:157], size, bool(mode & 0o100))


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, name: bytes) -> int:
    """Octal digits. GNU's binary form, for what does not fit, is for numbers that no entry here may have."""
    digits = _OCTAL.fullmatch(field)
    if digits is None:
        raise ArchiveRefused("archive-header", name, "has a header with a number that is none, or too large")
    return int(digits[1] or b"0", 8)
