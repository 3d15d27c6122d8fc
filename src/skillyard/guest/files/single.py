"""Single files and directories: read, write, list, describe, remove."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys

from . import MAX_ENTRIES, PIECE
from .walk import open_directory, remove_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


class NotRegular(OSError):
    """It is neither what can be read nor what can be replaced."""


class Damaged(ValueError):
    """A stream breaks its format, or holds an entry that is not taken."""


def read(path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
    """Yields the bytes of a regular file. Raises OSError."""
    left = sys.maxsize if length is None else length
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotRegular("it is not a regular file")
        os.lseek(fd, offset, os.SEEK_SET)
        while left > 0 and (data := os.read(fd, min(left, PIECE))):
            left -= len(data)
            yield data
    finally:
        os.close(fd)


def write(path: str, chunks: Iterable[bytes], mode: int = 0o644) -> int:
    """Writes a file, makes its parents, and returns its size. An older file stays until the new one is complete."""
    directory, name = os.path.split(path)
    if not name:
        raise NotRegular("it is a directory")
    if directory:
        os.makedirs(directory, exist_ok=True)
    part = os.path.join(directory, f".partial-{os.urandom(8).hex()}")
    try:
        size = _receive(directory or ".", part, chunks, mode)
        if os.path.isdir(path) and not os.path.islink(path):
            raise NotRegular("it is a directory")
        os.replace(part, path)
    except BaseException:
        if os.path.lexists(part):
            os.unlink(part)
        raise
    return size


def _receive(directory: str, part: str, chunks: Iterable[bytes], mode: int) -> int:
    """Makes the file ``part``, which gets its name when it is complete.

    So a writer that is killed leaves nothing. Where a file system knows no nameless files, it has its name at once.
    """
    usual = os.umask(0)
    try:
        fd, named = _opened(directory, part, mode)
    finally:
        os.umask(usual)
    size = 0
    try:
        for data in chunks:
            size += len(data)
            write_all(fd, data)
        if not named:
            _name(fd, part)
    finally:
        os.close(fd)
    return size


def _opened(directory: str, part: str, mode: int) -> tuple[int, bool]:
    """Returns the descriptor of a new file, and whether it has its name."""
    try:
        fd = os.open(directory, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            raise
    else:
        if os.path.exists(f"/proc/self/fd/{fd}"):
            return fd, False
        os.close(fd)
    return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode), True


def _name(fd: int, part: str) -> None:
    """Gives a nameless file its name (open(2), O_TMPFILE). With a descriptor Python follows the link to the file."""
    top = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        os.link(f"/proc/self/fd/{fd}", part, src_dir_fd=top)
    finally:
        os.close(top)


def entries(path: str, limit: int = MAX_ENTRIES) -> Iterator[bytes]:
    """Yields JSON lines of the first ``limit`` names, in the order of their code points."""
    fd = open_directory(path)
    try:
        names = sorted(os.listdir(fd))[:limit]
        for at in range(0, len(names), 256):
            yield b"".join(_line(name, fd) for name in names[at : at + 256])
    finally:
        os.close(fd)


def _line(name: str, directory: int) -> bytes:
    try:
        about = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:  # removed meanwhile
        return b""
    return json.dumps(_described(name, about)).encode() + b"\n"


def describe(path: str) -> dict[str, object]:
    """Returns the entry of a path of any kind. Raises OSError."""
    return _described(os.path.basename(path.rstrip("/")), os.lstat(path))


def _described(name: str, about: os.stat_result) -> dict[str, object]:
    kind = _KINDS.get(stat.S_IFMT(about.st_mode), "other")
    mode = stat.S_IMODE(about.st_mode)
    return {"name": name, "kind": kind, "size": about.st_size, "mode": mode, "modified": about.st_mtime}


def remove(path: str) -> None:
    """Removes a file or a whole tree of any depth. Links are not followed. Raises OSError."""
    parent, name = os.path.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        raise NotRegular("it is not a name below a directory")
    try:
        os.unlink(path.rstrip("/"))
    except IsADirectoryError:
        fd = open_directory(parent or ".")
        try:
            remove_below(fd, name)
        finally:
            os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Writes all of ``data``. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
