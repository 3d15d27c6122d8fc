"""Reads a tar archive as it arrives, in pieces of any size, in constant memory.

Files and directories are handed on, and symbolic links where they are wanted; every other kind of entry is refused.
Nothing that the archive says makes this
keep more than one block and one extended header. Headers are those of POSIX ustar and pax (IEEE Std 1003.1, pax,
"ustar Interchange Format", https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html) and of GNU
(https://www.gnu.org/software/tar/manual).
"""

from __future__ import annotations

import re
from typing import NoReturn, Protocol

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.values import dataclass

BLOCK = 512
_ZEROS = bytes(BLOCK)
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_POSIX, _GNU = b"ustar\x0000", b"ustar  \0"
_BINARY = b"\x80\xff"
_LARGE = b"\x80"
"""Begins a size in GNU's binary form, which files of 8 GiB and more need."""
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
    """Returns whether ``block`` begins a tar archive with a magic (not the format of 1979)."""
    return block[257:265] in (_POSIX, _GNU)


def _read_header(block: bytes, *, large: bool) -> TarHeader:
    """Reads a header of 512 bytes. Raises ArchiveRefused."""
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
    mode = _number(block[100:108], name)
    is_large = large and block[124:125] == _LARGE
    size = int.from_bytes(block[125:136]) if is_large else _number(block[124:136], name)
    for start, end in _UNUSED_NUMBERS:
        if block[start] not in _BINARY:
            _number(block[start:end], name)
    return TarHeader(name, block[156:157], size, bool(mode & 0o100))


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, name: bytes) -> int:
    """Octal digits. GNU's binary form, for what does not fit, is for sizes alone, where the reader takes large ones."""
    digits = _OCTAL.fullmatch(field)
    if digits is None:
        raise ArchiveRefused("archive-header", name, "has a header with a number that is none, or too large")
    return int(digits[1] or b"0", 8)


MAX_EXTENDED = 64 * 1024
"""Bytes of one extended header; that is what file attributes of common tools need, many times."""
MAX_RECORDS = 64

_IGNORED = frozenset({"atime", "ctime", "mtime", "comment", "gid", "gname", "uid", "uname", "hdrcharset"})
_IGNORED_PREFIXES = ("SCHILY.", "LIBARCHIVE.", "RHT.security.", "MSWINDOWS.")


def _pax_path(raw: bytes, entry: bytes, *, every: bool, links: bool) -> bytes | None:
    """Returns the ``path`` of an extended header (``LENGTH KEY=VALUE``), None without one. ``every`` is for
    a header of all entries, which may name no path. A key that changes how content is read (``size``,
    ``GNU.sparse.*``) is refused. Raises ArchiveRefused."""
    found: bytes | None = None
    for key, value in _records(raw, entry):
        if key == "path" and not every:
            if found is not None:
                raise ArchiveRefused("archive-extended", entry, "has an extended header that names two paths")
            found = value
        elif key.startswith("GNU.sparse."):
            raise ArchiveRefused("archive-special", entry, "is a sparse file")
        elif key == "linkpath" and not links:
            raise ArchiveRefused("archive-link", entry, "is a link")
        elif key != "linkpath" and key not in _IGNORED and not key.startswith(_IGNORED_PREFIXES):
            raise ArchiveRefused("archive-extended", entry, "has an extended header with a key that is not taken")
    return found


def _records(raw: bytes, entry: bytes) -> list[tuple[str, bytes]]:
    records: list[tuple[str, bytes]] = []
    at = 0
    while at < len(raw):
        space = raw.find(b" ", at, at + 6)
        digits = raw[at:space] if space > 0 else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = raw[space + 1 : end - 1].partition(b"=")
        if len(records) == MAX_RECORDS:
            raise ArchiveRefused("archive-extended", entry, f"has an extended header of more than {MAX_RECORDS} lines")
        if end > len(raw) or end <= space + 1 or raw[end - 1 : end] != b"\n" or not equals:
            raise ArchiveRefused("archive-extended", entry, "has an extended header that does not follow the format")
        records.append((key.decode("utf-8", "backslashreplace"), value))
        at = end
    return records


MAX_PADDING = 1024 * 1024
"""Zero bytes after the end of an archive: tar fills up records of 10 KiB, or of what ``-b`` says."""
MAX_EXTENDED_IN_ROW = 2
_FILES, _DIRECTORY, _SYMBOLIC = (b"0", b"\0"), b"5", b"2"
_PAX, _PAX_FOR_ALL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_LINKS = {b"1": "a hard link", b"2": "a symbolic link", _LONG_LINK: "a link with a long target"}
_SPECIAL = {b"3": "a character device", b"4": "a block device", b"6": "a FIFO", b"S": "a sparse file"}


@dataclass(frozen=True, slots=True)
class TarEntry:
    """``name`` as the archive has it, unchecked; ``size`` is 0 for a directory and a link."""

    name: bytes
    directory: bool
    size: int
    executable: bool
    link: bool = False


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
    def __init__(self, sink: Sink, *, links: bool = False, large: bool = False) -> None:
        """With ``links`` symbolic links are handed on too; ``large`` takes files of 8 GiB and more."""
        self._sink = sink
        self._links = links
        self._large = large
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
        if block == _ZEROS:
            if self._in_row:
                raise ArchiveRefused("archive-header", "", "ends with an extended header of nothing")
            self._zero_blocks += 1
            return
        if self._zero_blocks:
            raise ArchiveRefused("archive-trailing", "", "goes on after its end")
        self._sink.header()
        header = _read_header(block, large=self._large)
        self._padding = -header.size % BLOCK
        if header.kind in (_PAX, _PAX_FOR_ALL, _LONG_NAME):
            self._begin_extension(header)
        elif header.kind in _FILES or header.kind == _DIRECTORY or (self._links and header.kind == _SYMBOLIC):
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
        if header.kind == _LONG_NAME:
            name: bytes | None = _long_name(raw)
        else:
            name = _pax_path(raw, header.name, every=every, links=self._links and not every)
        if name is None:
            return
        if self._name is not None:
            raise ArchiveRefused("archive-extended", header.name, "has two extended headers that name a path")
        self._name = name

    def _begin(self, header: TarHeader) -> None:
        name = header.name if self._name is None else self._name
        self._name, self._in_row = None, 0
        directory, link = header.kind == _DIRECTORY, header.kind == _SYMBOLIC
        if header.size and (directory or link):
            raise ArchiveRefused("archive-header", name, "is a directory or link with content")
        if not directory and name.endswith(b"/"):
            raise ArchiveRefused("archive-header", name, "is a file with the name of a directory")
        self._left = header.size
        self._sink.begin(TarEntry(name, directory, header.size, header.executable, link))
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
