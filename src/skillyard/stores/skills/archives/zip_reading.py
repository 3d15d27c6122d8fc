"""The files of a zip archive. Directory and local headers must say the same, and the entries must fill the file from
its first byte to the directory, each byte used once: then there is only one way to read it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import BinaryIO

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.stores.skills.archives.collected import Collected
from skillyard.stores.skills.archives.zip_directory import (
    DEFLATED,
    DESCRIPTOR,
    Sizes,
    ZipEntry,
    read_directory,
    read_extra,
)

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
