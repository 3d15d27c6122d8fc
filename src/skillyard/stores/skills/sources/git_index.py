"""The paths that a git checkout tracks, read from its index and from nothing else.

No git is run: its configuration can name programs (fsmonitor, filters, hooks), and that of a repository somebody else
made is theirs. Versions 2 to 4 of the format, SHA-1 and SHA-256: https://git-scm.com/docs/index-format
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.values import dataclass

MAX_BYTES = 64 * 1024 * 1024
MAX_PATH = 4096
_HEADER = 12
_FACTS = 40
"""Bytes of times, device, inode, mode, owner and size, in front of the object's name."""
_MODE_AT = 24
_EXTENDED, _LENGTH = 0x4000, 0x0FFF
_SKIPPED = 0x4000
_HASHES = (hashlib.sha1, hashlib.sha256)
_POINTER = b"gitdir: "


@dataclass(frozen=True, slots=True)
class Tracked:
    """``mode`` is a file's, a link's (0o120000) or a submodule's (0o160000). ``sparse``: it need not be on disk."""

    path: bytes
    mode: int
    sparse: bool


def is_checkout(directory: Path) -> bool:
    return os.path.lexists(directory / ".git")


def read_index(directory: Path) -> Iterator[Tracked]:
    """Of a checkout's root. Raises ArchiveRefused, OSError."""
    raw = _bounded(_git_directory(directory) / "index")
    if raw[:4] != b"DIRC" or len(raw) < _HEADER:
        raise _unreadable("is not an index of git")
    version, count = int.from_bytes(raw[4:8], "big"), int.from_bytes(raw[8:12], "big")
    if version not in (2, 3, 4):
        raise _unreadable(f"has version {version}, which is not known")
    width = _hash_width(raw)
    at, previous = _HEADER, b""
    for _ in range(count):
        entry, at = _entry(raw, at, width, version, previous)
        previous = entry.path
        yield entry
    _check_extensions(raw, at, len(raw) - width)


def _git_directory(directory: Path) -> Path:
    """A file ``.git`` names it, in further work trees and submodules (gitrepository-layout(5))."""
    place = directory / ".git"
    if stat.S_ISDIR(place.stat().st_mode):
        return place
    text = _bounded(place)
    if not text.startswith(_POINTER):
        raise _unreadable("is not to be found: .git is neither a directory nor names one")
    return directory / os.fsdecode(text.removeprefix(_POINTER).rstrip(b"\r\n"))


def _bounded(path: Path) -> bytes:
    # Non-blocking: a FIFO in the file's place must not hold us up.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise _unreadable("is not a file")
        if found.st_size > MAX_BYTES:
            raise _unreadable(f"has more than {MAX_BYTES} bytes")
        return file.read(MAX_BYTES)


def _hash_width(raw: bytes) -> int:
    """Returns the width of the repository's hash by the check sum at the end (index.skipHash)."""
    for digest in _HASHES:
        width = digest().digest_size
        if raw[-width:] == digest(raw[:-width], usedforsecurity=False).digest():
            return width
    if not any(raw[-20:]):
        return 32 if not any(raw[-32:]) else 20
    raise _unreadable("is damaged: its check sum is wrong")


def _entry(raw: bytes, at: int, width: int, version: int, previous: bytes) -> tuple[Tracked, int]:
    flags_at = at + _FACTS + width
    mode = int.from_bytes(raw[at + _MODE_AT : at + _MODE_AT + 4], "big")
    flags = int.from_bytes(raw[flags_at : flags_at + 2], "big")
    name_at, more = flags_at + 2, 0
    if flags & _EXTENDED and version > 2:
        more = int.from_bytes(raw[name_at : name_at + 2], "big")
        name_at += 2
    if version == 4:
        kept, name_at = _varint(raw, name_at)
        previous = previous[: max(0, len(previous) - kept)]
    else:
        previous = b""
    end = raw.find(b"\0", name_at, name_at + MAX_PATH + 1)
    if end < 0 or end >= len(raw) - width:
        raise _unreadable("is damaged: an entry is cut off")
    path = previous + raw[name_at:end]
    if len(path) > MAX_PATH or (flags & _LENGTH) not in (_LENGTH, len(path)):
        raise _unreadable("is damaged: a path's length is wrong")
    after = end + 1 if version == 4 else at + (end - at + 8) // 8 * 8
    return Tracked(path, mode, bool(more & _SKIPPED)), after


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """As offsets in packs are written: each further byte adds one."""
    value = raw[at] & 0x7F if at < len(raw) else 0
    while at < len(raw) and raw[at] & 0x80:
        at += 1
        if at >= len(raw) or value > MAX_BYTES:
            raise _unreadable("is damaged: a number is cut off")
        value = (value + 1 << 7) + (raw[at] & 0x7F)
    return value, at + 1


def _check_extensions(raw: bytes, at: int, end: int) -> None:
    """Refuses extensions with a small first letter: they say that entries are elsewhere."""
    while at + 8 <= end:
        name = raw[at : at + 4]
        if not name[:1].isupper():
            what = {b"link": "is split into two files", b"sdir": "is sparse"}.get(name, "has an unknown extension")
            raise _unreadable(what)
        at += 8 + int.from_bytes(raw[at + 4 : at + 8], "big")
    if at != end:
        raise _unreadable("is damaged: its extensions do not end where they should")


def _unreadable(what: str) -> ArchiveRefused:
    return ArchiveRefused("git-index", ".git/index", what)
