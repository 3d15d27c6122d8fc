"""The files of a tar archive, gzipped or not."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from skillyard.stores.archives import ArchiveRefused
from skillyard.stores.archives.tar_header import BLOCK, is_tar
from skillyard.stores.archives.tar_stream import TarEntry, TarStream
from skillyard.stores.skills.archives.collected import Collected

_PIECE = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS


def read_plain_tar(archive: BinaryIO, size: int, collected: Collected) -> None:
    """Raises ArchiveRefused, Enough."""
    stream = TarStream(_Files(collected))
    collected.limits.check_unpacked(size, size)
    while piece := archive.read(_PIECE):
        stream.feed(piece)
    stream.finish()


def read_gzipped_tar(archive: BinaryIO, size: int, collected: Collected) -> None:
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
        raise ArchiveRefused("archive-format", "", "is gzipped, and what is in it is no tar archive")


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
    """Implements :class:`skillyard.stores.archives.tar_stream.Sink`."""

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
