"""Reads the central directory and the extra fields of a zip archive, with no tolerance.

The format is PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 to 4.6:
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.stores.skills.archives.collected import ArchiveLimits

_ZIP64, _UNICODE_PATH = 0x0001, 0x7075
_ENCRYPTION = {0x0017, 0x9901}
_ELSEWHERE = 0xFFFFFFFF
_LARGEST = 1 << 40


class Sizes(NamedTuple):
    """``offset`` is None where there is none to be had: in a local header."""

    size: int
    packed: int
    offset: int | None = None


def read_extra(extra: bytes, name: bytes, sizes: Sizes) -> Sizes:
    """``sizes`` with those that stand in the zip64 field (4.5.3). Raises ArchiveRefused."""
    seen: set[int] = set()
    wide: bytes | None = None
    for kind, value in _fields(extra, name):
        if kind in seen:
            raise ArchiveRefused("archive-header", name, "has the same extra field twice")
        seen.add(kind)
        if kind in _ENCRYPTION:
            raise ArchiveRefused("archive-encrypted", name, "is encrypted")
        if kind == _UNICODE_PATH and value[5:] != name:
            raise ArchiveRefused("archive-mismatch", name, "has another name in an extra field")
        wide = value if kind == _ZIP64 else wide
    return _widened(sizes, wide, name)


def _fields(extra: bytes, name: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(extra):
        kind, length = struct.unpack_from("<HH", extra, at) if len(extra) - at >= 4 else (0, len(extra))
        value = extra[at + 4 : at + 4 + length]
        if len(value) != length:
            raise ArchiveRefused("archive-header", name, "has an extra field that is cut off")
        yield kind, value
        at += 4 + length


def _widened(sizes: Sizes, wide: bytes | None, name: bytes) -> Sizes:
    asked = [field for field in sizes._fields if getattr(sizes, field) == _ELSEWHERE]
    if not asked:
        return sizes
    if wide is None or len(wide) < 8 * len(asked):
        raise ArchiveRefused("archive-header", name, "says that its sizes stand elsewhere, and they do not")
    values = struct.unpack_from(f"<{len(asked)}Q", wide)
    if any(value > _LARGEST for value in values):
        raise ArchiveRefused("archive-header", name, "has sizes that nothing has")
    return sizes._replace(**dict(zip(asked, values, strict=True)))


STORED, DEFLATED = 0, 8
DESCRIPTOR = 1 << 3
_ENCRYPTED = 1 | 1 << 6 | 1 << 13
_KNOWN_FLAGS = 1 << 1 | 1 << 2 | DESCRIPTOR | 1 << 11
_METHODS = {1: "shrunk", 6: "imploded", 9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "zstd", 95: "xz", 98: "PPMd"}
_AES = 99
_NEWEST = 63
"""Version 6.3 (4.4.3.2)."""

_END = struct.Struct("<4s4H2LH")
_END_MARK, _ENTRY_MARK, _ZIP64_MARK = b"PK\x05\x06", b"PK\x01\x02", b"PK\x06\x07"
_ZIP64_LOCATOR = 20
_ENTRY = struct.Struct("<4s6H3L5H2L")
_MAX_COMMENT = 0xFFFF
_MAX_DIRECTORY = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """An entry. ``packed`` and ``size`` are its bytes in the archive and unpacked; ``offset`` its header's."""

    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    directory: bool
    executable: bool


@dataclass(frozen=True, slots=True)
class _End:
    entries: int
    size: int
    offset: int


def read_directory(archive: BinaryIO, size: int, limits: ArchiveLimits) -> tuple[list[ZipEntry], int]:
    """The entries as the directory has them, and where the directory begins. Raises ArchiveRefused."""
    end = _read_end(archive, size)
    limits.check_entries(end.entries)
    if end.size > _MAX_DIRECTORY:
        raise ArchiveRefused("archive-entries", "", f"has a directory of more than {_MAX_DIRECTORY} bytes")
    archive.seek(end.offset)
    entries = list(_entries(archive.read(end.size), end))
    return entries, end.offset


def _read_end(archive: BinaryIO, size: int) -> _End:
    archive.seek(max(0, size - _END.size - _MAX_COMMENT - _ZIP64_LOCATOR))
    tail = archive.read()
    found = list(_ends(tail))
    if not found:
        raise ArchiveRefused("archive-truncated", "", "has no end of a zip directory at its own end")
    if len(found) > 1:
        raise ArchiveRefused("archive-header", "", "has two ends of a zip directory")
    at = found[0]
    _, disk, directory_disk, here, entries, length, offset, _ = _END.unpack_from(tail, at)
    if tail[max(0, at - _ZIP64_LOCATOR) :].startswith(_ZIP64_MARK) or 0xFFFF in (here, entries) or offset == 0xFFFFFFFF:
        raise ArchiveRefused("archive-zip64", "", "is in the zip format for very large archives")
    if disk or directory_disk or here != entries:
        raise ArchiveRefused("archive-disks", "", "is one part of an archive in several parts")
    position = size - len(tail) + at
    if offset + length != position:
        rule = "archive-trailing" if offset + length < position else "archive-damaged"
        raise ArchiveRefused(rule, "", "has a directory that does not lie where it says")
    return _End(entries, length, offset)


def _ends(tail: bytes) -> Iterator[int]:
    """Where the last record may stand: its comment reaches to the very end of the file."""
    at = tail.find(_END_MARK)
    while at >= 0:
        if at + _END.size <= len(tail) and at + _END.size + _END.unpack_from(tail, at)[7] == len(tail):
            yield at
        at = tail.find(_END_MARK, at + 1)


def _entries(raw: bytes, end: _End) -> Iterator[ZipEntry]:
    at = 0
    for _ in range(end.entries):
        if len(raw) - at < _ENTRY.size or raw[at : at + 4] != _ENTRY_MARK:
            raise ArchiveRefused("archive-header", "", "has a directory that holds less than it says")
        fields = _ENTRY.unpack_from(raw, at)
        name_length, extra_length, comment_length = fields[10:13]
        start = at + _ENTRY.size
        at = start + name_length + extra_length + comment_length
        name = raw[start : start + name_length]
        if at > len(raw):
            raise ArchiveRefused("archive-header", name, "has lengths that reach beyond the directory")
        yield _entry(fields, name, raw[start + name_length : start + name_length + extra_length])
    if at != len(raw):
        raise ArchiveRefused("archive-header", "", "has a directory that holds more than it says")


def _entry(fields: tuple[int, ...], name: bytes, extra: bytes) -> ZipEntry:
    flags, method, crc = fields[3], fields[4], fields[7]
    disk, attributes = fields[13], fields[15]
    _check_flags(flags, method, name)
    if fields[2] & 0xFF > _NEWEST:
        raise ArchiveRefused("archive-header", name, "wants a version of the format that there is not")
    if disk:
        raise ArchiveRefused("archive-disks", name, "lies in another part of an archive in several parts")
    sizes = read_extra(extra, name, Sizes(fields[9], fields[8], fields[16]))
    directory, executable = _kind(attributes >> 16, name)
    if directory and sizes.size:
        raise ArchiveRefused("archive-header", name, "is a directory with content")
    if method == STORED and sizes.packed != sizes.size:
        raise ArchiveRefused("archive-header", name, "is stored, with two sizes")
    return ZipEntry(name, flags, method, crc, sizes.packed, sizes.size, sizes.offset or 0, directory, executable)


def _check_flags(flags: int, method: int, name: bytes) -> None:
    if flags & _ENCRYPTED or method == _AES:
        raise ArchiveRefused("archive-encrypted", name, "is encrypted")
    if method not in (STORED, DEFLATED):
        how = _METHODS.get(method, f"method {method}")
        raise ArchiveRefused("archive-method", name, f"is compressed in a way that is not taken: {how}")
    if flags & ~_KNOWN_FLAGS:
        raise ArchiveRefused("archive-header", name, "has flags that are not taken")


def _kind(mode: int, name: bytes) -> tuple[bool, bool]:
    """Returns whether it is a directory, and executable. Tools of other systems leave the mode 0."""
    kind = stat.S_IFMT(mode)
    directory = name.endswith(b"/")
    if kind == stat.S_IFLNK:
        raise ArchiveRefused("archive-link", name, "is a symbolic link")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArchiveRefused("archive-special", name, "is neither a file nor a directory")
    if kind and (kind == stat.S_IFDIR) != directory:
        raise ArchiveRefused("archive-header", name, "is a directory by its name or by its mode, and not by both")
    return directory, bool(mode & stat.S_IXUSR) and not directory
