"""Reads a hostile archive: returns the files of a bundle, or the reasons against them.

Nothing is written anywhere. Memory is bounded by the caps whatever the archive says, time by the limits.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.archive.tar_stream import BLOCK, TarEntry, TarStream, is_tar
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.archives.collected import ArchiveLimits, Collected, Enough, Unpacked
from skillyard.stores.skills.archives.zip_reading import read_zip

_PIECE = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS
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
    """Returns the bundle in a seekable file, None when a finding is an error, and the findings.

    ``below`` is the directory of the bundle in the archive, if not the root.

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
        _read_gzipped_tar(archive, size, collected)
    elif is_tar(head):
        _read_tar(archive, size, collected)
    else:
        what = next((text for magic, text in _OTHERS.items() if head.startswith(magic)), "no archive that is known")
        raise ArchiveRefused("archive-format", "", f"is {what}; zip, tar and gzipped tar are taken")


def _read_tar(archive: BinaryIO, size: int, collected: Collected) -> None:
    """Raises ArchiveRefused, Enough."""
    stream = TarStream(_Files(collected))
    collected.limits.check_unpacked(size, size)
    while piece := archive.read(_PIECE):
        stream.feed(piece)
    stream.finish()


def _read_gzipped_tar(archive: BinaryIO, size: int, collected: Collected) -> None:
    """Raises ArchiveRefused, Enough."""
    stream = TarStream(_Files(collected))
    unpacked = 0
    head = b""
    for piece in _inflated(archive):
        unpacked += len(piece)
        collected.limits.check_unpacked(unpacked, size)
        if len(head) < BLOCK:
            head += piece[: BLOCK - len(head)]
            _check_format(head, complete=len(head) == BLOCK)
        stream.feed(piece)
    _check_format(head, complete=True)
    stream.finish()


def _check_format(head: bytes, *, complete: bool) -> None:
    if complete and not is_tar(head):
        raise ArchiveRefused("archive-format", "", "is gzipped, and its content is not a tar archive")


def _inflated(archive: BinaryIO) -> Iterator[bytes]:
    """One gzip member (RFC 1952), which ends where the file does."""
    inflate = zlib.decompressobj(_GZIP)
    try:
        while raw := archive.read(_PIECE):
            while raw and not inflate.eof:
                yield inflate.decompress(raw, _PIECE)
                raw = inflate.unconsumed_tail
            if inflate.eof:
                break
        while not inflate.eof:  # what one more step still has to give
            rest = inflate.decompress(b"", _PIECE)
            if not rest:
                raise ArchiveRefused("archive-truncated", "", "ends before its compressed data does")
            yield rest
    except zlib.error:
        raise ArchiveRefused("archive-damaged", "", "holds compressed data that is none, or is damaged") from None
    if inflate.unused_data or archive.read(1):
        raise ArchiveRefused("archive-trailing", "", "goes on after the end of its compressed data")


class _Files:
    """Implements :class:`skillyard.domain.archive.tar_stream.Sink`."""

    def __init__(self, collected: Collected) -> None:
        self._collected = collected
        self._headers = 0
        self._wanted: tuple[str, bool] | None = None
        self._data = bytearray()

    def header(self) -> None:
        self._headers += 1
        self._collected.limits.check_entries(self._headers)

    def begin(self, entry: TarEntry) -> None:
        path = self._collected.claim(entry.name, directory=entry.directory, size=entry.size)
        self._wanted = None if path is None else (path, entry.executable)

    def write(self, data: memoryview) -> None:
        if self._wanted is not None:
            self._data += data

    def end(self) -> None:
        if self._wanted is not None:
            path, executable = self._wanted
            self._collected.add(path, bytes(self._data), executable=executable)
            self._data.clear()
