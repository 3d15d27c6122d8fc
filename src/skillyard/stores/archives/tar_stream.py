"""A tar archive as it arrives, in pieces of any size, in constant memory.

Files and directories are handed on; every other kind of entry is refused. Nothing that the archive says makes this
keep more than one block and one extended header.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

from skillyard.stores.archives.pax import MAX_EXTENDED, pax_path
from skillyard.stores.archives.refused import ArchiveRefused
from skillyard.stores.archives.tar_header import BLOCK, ZEROS, TarHeader, read_header

MAX_PADDING = 1024 * 1024
"""Zero bytes after the end of an archive: tar fills up records of 10 KiB, or of what ``-b`` says."""
MAX_EXTENDED_IN_ROW = 2
_FILES, _DIRECTORY = (b"0", b"\0"), b"5"
_PAX, _PAX_FOR_ALL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_LINKS = {b"1": "a hard link", b"2": "a symbolic link", _LONG_LINK: "a link with a long target"}
_SPECIAL = {b"3": "a character device", b"4": "a block device", b"6": "a FIFO", b"S": "a sparse file"}


@dataclass(frozen=True, slots=True)
class TarEntry:
    """``name`` as the archive has it, unchecked; ``size`` is 0 for a directory."""

    name: bytes
    directory: bool
    size: int
    executable: bool


class Sink(Protocol):
    """Takes one entry after the other: ``begin``, ``write`` any number of times (exactly ``size`` bytes), ``end``.
    The view that ``write`` gets is valid during that call. Any may raise ArchiveRefused."""

    def header(self) -> None:
        """A header was read, whatever it is for: once at least for each entry."""
        ...

    def begin(self, entry: TarEntry) -> None: ...

    def write(self, data: memoryview) -> None: ...

    def end(self) -> None: ...


class TarStream:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._block = bytearray()
        self._left = 0
        self._padding = 0
        self._extension: tuple[TarHeader, bytearray] | None = None
        self._name: bytes | None = None
        self._in_row = 0
        self._zero_blocks = 0
        self._trailing = 0

    def feed(self, chunk: bytes | memoryview) -> None:
        """Raises ArchiveRefused; there is nothing more to be had of the stream then."""
        view = memoryview(chunk)
        at, size = 0, len(view)
        while at < size:
            if self._left:
                at = self._content(view, at)
            elif self._padding:
                taken = min(self._padding, size - at)
                self._padding -= taken
                at += taken
            elif self._zero_blocks == 2:
                self._after_the_end(view[at:])
                return
            else:
                at = self._header_bytes(view, at)

    def finish(self) -> None:
        """There is no more. Raises ArchiveRefused when there should be."""
        if self._zero_blocks != 2:
            raise ArchiveRefused("archive-truncated", "", "ends before its end is marked")

    def _content(self, view: memoryview, at: int) -> int:
        taken = view[at : at + self._left]
        self._left -= len(taken)
        if self._extension is not None:
            self._extension[1].extend(taken)
        else:
            self._sink.write(taken)
        if not self._left:
            self._content_ends()
        return at + len(taken)

    def _content_ends(self) -> None:
        if self._extension is None:
            self._sink.end()
            return
        header, raw = self._extension
        self._extension = None
        self._extend(header, bytes(raw))

    def _header_bytes(self, view: memoryview, at: int) -> int:
        if not self._block and len(view) - at >= BLOCK:
            self._header(bytes(view[at : at + BLOCK]))
            return at + BLOCK
        taken = view[at : at + BLOCK - len(self._block)]
        self._block += taken
        if len(self._block) == BLOCK:
            block = bytes(self._block)
            self._block.clear()
            self._header(block)
        return at + len(taken)

    def _header(self, block: bytes) -> None:
        if block == ZEROS:
            if self._in_row:
                raise ArchiveRefused("archive-header", "", "ends with an extended header of nothing")
            self._zero_blocks += 1
            return
        if self._zero_blocks:
            raise ArchiveRefused("archive-trailing", "", "goes on after its end")
        self._sink.header()
        header = read_header(block)
        self._padding = -header.size % BLOCK
        if header.kind in (_PAX, _PAX_FOR_ALL, _LONG_NAME):
            self._begin_extension(header)
        elif header.kind in _FILES or header.kind == _DIRECTORY:
            self._begin(header)
        else:
            _refuse_kind(header, self._name or header.name)

    def _begin_extension(self, header: TarHeader) -> None:
        self._in_row += 1
        if header.size > MAX_EXTENDED:
            message = f"has an extended header of {header.size} bytes, at most {MAX_EXTENDED} are taken"
            raise ArchiveRefused("archive-extended", header.name, message)
        if self._in_row > MAX_EXTENDED_IN_ROW:
            raise ArchiveRefused("archive-extended", header.name, "has several extended headers in a row")
        self._left = header.size
        self._extension = (header, bytearray())
        if not header.size:
            self._content_ends()

    def _extend(self, header: TarHeader, raw: bytes) -> None:
        every = header.kind == _PAX_FOR_ALL
        name = _long_name(raw) if header.kind == _LONG_NAME else pax_path(raw, header.name, every=every)
        if name is None:
            return
        if self._name is not None:
            raise ArchiveRefused("archive-extended", header.name, "has two extended headers that name a path")
        self._name = name

    def _begin(self, header: TarHeader) -> None:
        name = header.name if self._name is None else self._name
        self._name, self._in_row = None, 0
        directory = header.kind == _DIRECTORY
        if directory and header.size:
            raise ArchiveRefused("archive-header", name, "is a directory with content")
        if not directory and name.endswith(b"/"):
            raise ArchiveRefused("archive-header", name, "is a file with the name of a directory")
        self._left = header.size
        self._sink.begin(TarEntry(name, directory, header.size, header.executable))
        if not header.size:
            self._sink.end()

    def _after_the_end(self, rest: memoryview) -> None:
        self._trailing += len(rest)
        if self._trailing > MAX_PADDING or any(rest):
            raise ArchiveRefused("archive-trailing", "", "goes on after its end")


def _long_name(raw: bytes) -> bytes:
    name, end, rest = raw.partition(b"\0")
    if not end or rest:
        raise ArchiveRefused("archive-extended", name, "has a long name that does not end where it says")
    return name


def _refuse_kind(header: TarHeader, name: bytes) -> NoReturn:
    if header.kind in _LINKS:
        raise ArchiveRefused("archive-link", name, f"is {_LINKS[header.kind]}")
    what = _SPECIAL.get(header.kind, f"an entry of the unknown kind {header.kind!r}")
    raise ArchiveRefused("archive-special", name, f"is {what}; only files and directories are taken")
