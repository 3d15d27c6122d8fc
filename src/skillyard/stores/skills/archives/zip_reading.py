"""The files of a zip archive. Directory and local headers must say the same, and the entries must fill the file from
its first byte to the directory, each byte used once: then there is only one way to read it.

The format is PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 to 4.6:
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.stores.skills.archives.collected import ArchiveLimits, Collected
from skillyard.values import dataclass

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


_LOCAL = struct.Struct("<4s5H3L2H")
_LOCAL_MARK, _DESCRIPTOR_MARK = b"PK\x03\x04", b"PK\x07\x08"
_COMPARED_FLAGS = 1 | DESCRIPTOR | 1 << 6 | 1 << 11 | 1 << 13
_DESCRIPTORS = {12: ("", "<3L"), 16: ("m", "<3L"), 20: ("", "<L2Q"), 24: ("m", "<L2Q")}
_PIECE = 64 * 1024


def read_zip(archive: BinaryIO, size: int, collected: Collected) -> None:
    """Raises ArchiveRefused, Enough."""
    entries, directory_at = read_directory(archive, size, collected.limits)
    collected.limits.check_unpacked(sum(entry.size for entry in entries), size)
    starts = _content_starts(archive, entries, directory_at)
    wanted = [(entry, collected.claim(entry.name, directory=entry.directory, size=entry.size)) for entry in entries]
    if collected.findings:
        return
    for entry, path in wanted:
        if path is not None:
            archive.seek(starts[entry.offset])
            collected.add(path, _content(archive, entry), executable=entry.executable)


def _content_starts(archive: BinaryIO, entries: Sequence[ZipEntry], directory_at: int) -> dict[int, int]:
    """Where each entry's content begins, by the place of its local header."""
    ordered = sorted(entries, key=lambda entry: entry.offset)
    ends = [*(entry.offset for entry in ordered), directory_at][1:]
    if (ordered[0].offset if ordered else directory_at) != 0:
        raise ArchiveRefused("archive-trailing", "", "holds bytes before its first entry")
    starts: dict[int, int] = {}
    for entry, end in zip(ordered, ends, strict=True):
        starts[entry.offset] = start = _check_local(archive, entry)
        _check_end(archive, entry, start + entry.packed, end)
    return starts


def _check_local(archive: BinaryIO, entry: ZipEntry) -> int:
    """Where the content begins."""
    archive.seek(entry.offset)
    raw = archive.read(_LOCAL.size)
    if len(raw) < _LOCAL.size or raw[:4] != _LOCAL_MARK:
        raise ArchiveRefused("archive-mismatch", entry.name, "has no header where the directory says")
    _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL.unpack(raw)
    start: int = entry.offset + _LOCAL.size + name_length + extra_length
    name, extra = archive.read(name_length), archive.read(extra_length)
    if len(extra) != extra_length:
        raise ArchiveRefused("archive-truncated", entry.name, "has a header that is cut off")
    sizes = read_extra(extra, name, Sizes(size, packed))
    same = (name, method, flags & _COMPARED_FLAGS) == (entry.name, entry.method, entry.flags & _COMPARED_FLAGS)
    told = (crc, sizes.packed, sizes.size)
    later = entry.flags & DESCRIPTOR and all(
        here in (0, there) for here, there in zip(told, (entry.crc, entry.packed, entry.size), strict=True)
    )
    if not same or not (later or told == (entry.crc, entry.packed, entry.size)):
        raise ArchiveRefused("archive-mismatch", entry.name, "is another in its own header than in the directory")
    return start


def _check_end(archive: BinaryIO, entry: ZipEntry, at: int, end: int) -> None:
    """Checks that a data descriptor (4.3.9) or nothing follows an entry's content."""
    if at > end:
        raise ArchiveRefused("archive-overlap", entry.name, "shares bytes with what follows it")
    if not entry.flags & DESCRIPTOR:
        if at != end:
            raise ArchiveRefused("archive-trailing", entry.name, "is followed by bytes that belong to no entry")
        return
    if end - at not in _DESCRIPTORS:
        raise ArchiveRefused("archive-trailing", entry.name, "is followed by bytes that are not a data descriptor")
    marked, layout = _DESCRIPTORS[end - at]
    archive.seek(at)
    raw = archive.read(end - at)
    if marked and raw[:4] != _DESCRIPTOR_MARK:
        raise ArchiveRefused("archive-trailing", entry.name, "is followed by bytes that are not a data descriptor")
    if struct.unpack(layout, raw[4:] if marked else raw) != (entry.crc, entry.packed, entry.size):
        raise ArchiveRefused("archive-mismatch", entry.name, "is another in its data descriptor than in the directory")


def _content(archive: BinaryIO, entry: ZipEntry) -> bytes:
    data = _inflated(archive, entry) if entry.method == DEFLATED else archive.read(entry.packed)
    if len(data) != entry.size:
        raise ArchiveRefused("archive-damaged", entry.name, "does not have the length that it says")
    if zlib.crc32(data) != entry.crc:
        raise ArchiveRefused("archive-damaged", entry.name, "has a wrong check sum")
    return data


def _inflated(archive: BinaryIO, entry: ZipEntry) -> bytes:
    """At most one byte more than the entry says that it is."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    left, data = entry.packed, bytearray()
    try:
        while len(data) <= entry.size and not inflate.eof:
            raw = inflate.unconsumed_tail or archive.read(min(left, _PIECE))
            left -= 0 if inflate.unconsumed_tail else len(raw)
            piece = inflate.decompress(raw, min(_PIECE, entry.size + 1 - len(data)))
            data += piece
            if not raw and not piece:
                break
    except zlib.error:
        raise ArchiveRefused("archive-damaged", entry.name, "holds compressed data that is none") from None
    if len(data) <= entry.size and (not inflate.eof or left or inflate.unused_data):
        raise ArchiveRefused("archive-damaged", entry.name, "ends elsewhere than its compressed data")
    return bytes(data)
