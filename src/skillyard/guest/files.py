"""The files program of a sandbox, which serves ``Sandbox.read``, ``write`` and ``entries``.

::

    read PATH [OFFSET [LENGTH]]     the bytes of a regular file on standard output; LENGTH "-" is up to its end
    write PATH [MODE]               standard input becomes the file, at once and whole; prints how many bytes
    entries PATH [LIMIT]            {"name", "kind", "size"} as JSON lines, sorted; 10,000 unless told otherwise

A link as the last part of PATH is not followed. Nothing here waits for a FIFO or a device. Names that are not UTF-8
pass through as lone surrogates (PEP 383). The exit status says what went wrong, a line on standard error the rest.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DONE = 0
MISSING = 3
"""There is no such file; for ``entries``, no such directory."""
NOT_REGULAR = 4
"""It is something else: a link, a directory, a FIFO, a device."""
NO_SPACE = 5
REFUSED = 6
"""The kernel says no for another reason, permissions most of all."""
USAGE = 64

MAX_ENTRIES = 10_000
_PIECE = 1 << 20
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
_STATUS = {
    errno.ENOENT: MISSING,
    errno.ENOTDIR: MISSING,  # also entries of a link
    errno.ELOOP: NOT_REGULAR,
    errno.EISDIR: NOT_REGULAR,
    errno.ENXIO: NOT_REGULAR,
    errno.ENOSPC: NO_SPACE,
    errno.EDQUOT: NO_SPACE,
    errno.EFBIG: NO_SPACE,
}


class NotRegular(OSError):
    """It is neither what can be read nor what can be replaced."""


def main(arguments: list[str]) -> int:
    """The exit status for ``read PATH …``, ``write PATH …`` or ``entries PATH …``."""
    operation = _OPERATIONS.get(arguments[0]) if len(arguments) in (2, 3, 4) else None
    if operation is None:
        return _fail(USAGE, "usage: read PATH [OFFSET [LENGTH]] | write PATH [MODE] | entries PATH [LIMIT]")
    try:
        operation(*arguments[1:])
    except NotRegular as error:
        return _fail(NOT_REGULAR, str(error))
    except OSError as error:
        return _fail(_STATUS.get(error.errno or 0, REFUSED), error.strerror or str(error))
    except (TypeError, ValueError) as error:
        return _fail(USAGE, str(error))
    return DONE


def _fail(status: int, text: str) -> int:
    os.write(2, text.encode("utf-8", "replace") + b"\n")
    return status


def read(path: str, offset: str = "0", length: str = "-") -> None:
    start, left = int(offset), sys.maxsize if length == "-" else int(length)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise NotRegular("it is not a regular file")
    os.lseek(fd, start, os.SEEK_SET)
    while left > 0 and (data := os.read(fd, min(left, _PIECE))):
        left -= len(data)
        _write_all(1, data)


def write(path: str, mode: str = "644") -> None:
    """Writes a file and makes its parents. An older file stays until the new one is complete."""
    permissions = int(mode, 8)
    directory, name = os.path.split(path)
    if not name:
        raise NotRegular("it is a directory")
    if directory:
        os.makedirs(directory, exist_ok=True)
    part = os.path.join(directory, f".partial-{os.urandom(8).hex()}")
    try:
        size = _receive(part, permissions)
        if os.path.isdir(path) and not os.path.islink(path):
            raise NotRegular("it is a directory")
        os.replace(part, path)
    except BaseException:
        if os.path.lexists(part):
            os.unlink(part)
        raise
    _write_all(1, b"%d\n" % size)


def _receive(part: str, permissions: int) -> int:
    usual = os.umask(0)
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, permissions)
    finally:
        os.umask(usual)
    size = 0
    while data := os.read(0, _PIECE):
        size += len(data)
        _write_all(fd, data)
    os.close(fd)
    return size


def entries(path: str, limit: str = str(MAX_ENTRIES)) -> None:
    """The first ``limit`` names in the order of their code points."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    lines = bytearray()
    for name in sorted(os.listdir(fd))[: int(limit)]:
        try:
            about = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:  # removed meanwhile
            continue
        kind = _KINDS.get(stat.S_IFMT(about.st_mode), "other")
        lines += json.dumps({"name": name, "kind": kind, "size": about.st_size}).encode() + b"\n"
    _write_all(1, lines)


def _write_all(fd: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


_OPERATIONS: dict[str, Callable[..., None]] = {"read": read, "write": write, "entries": entries}
