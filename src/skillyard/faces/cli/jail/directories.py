"""The directories of the host that an operator gives a jail."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from skillyard.config.gateway.places import check_closed
from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.sandbox.content import JailDirectory

_OWN = ("/proc", "/sys", "/dev", "/run", "/skills", "/blobs", "/workspace", "/opt/skillyard")
"""Places that a sandbox has of its own, and those where the host shows its kernel."""
_SYSTEM = (
    "/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/libexec",
    "/usr/share", "/usr/include", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/var",
    "/var/tmp", "/tmp",  # noqa: S108
)  # fmt: skip
"""Places that hold more than one directory of a sandbox's own root, which would be covered."""


def chosen(read: Iterable[Path], write: Iterable[Path], closed: Iterable[Path]) -> tuple[JailDirectory, ...]:
    """Returns the directories, each opened once and named by its device and inode.

    ``closed`` are directories and files that no jail may see: they, all in them, and all that they lie in are refused.
    Raises InvalidInput that names the option.
    """
    found: list[JailDirectory] = []
    for option, paths, writable in (("read", read, False), ("write", write, True)):
        found += [_opened(option, path, writable=writable) for path in paths]
    for each in found:
        option = "write" if each.writable else "read"
        _check_place(option, each)
        check_closed(option, Path(each.path), [Path.home().resolve()], within=False)
        check_closed(option, Path(each.path), [path.resolve() for path in closed])
    _check_apart(found)
    return tuple(found)


def _opened(option: str, path: Path, *, writable: bool) -> JailDirectory:
    whole = os.path.normpath(path.expanduser().absolute())
    if any(not letter.isprintable() for letter in whole):
        raise InvalidInput(option, "must be printable", shown(whole))
    try:
        fd = _open_without_links(whole)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and (real := os.path.realpath(whole)) != whole:
            # Somebody who may write beside it could have made the link: the operator sees where it leads.
            raise InvalidInput(option, f"is reached through a link; if that is meant, name {real}", whole) from None
        raise InvalidInput(option, f"cannot be opened: {os.strerror(error.errno or 0)}", whole) from None
    try:
        seen = os.fstat(fd)
    finally:
        os.close(fd)
    return JailDirectory(whole, seen.st_dev, seen.st_ino, os.getuid(), os.getgid(), writable)


def _open_without_links(path: str) -> int:
    """Opens a directory by its parts, none of which may be a link. Raises OSError."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("/", flags)
    for part in filter(None, path.split("/")):
        above = fd
        try:
            fd = os.open(part, flags, dir_fd=above)
        finally:
            os.close(above)
    return fd


def _check_place(option: str, each: JailDirectory) -> None:
    if each.path == "/":
        raise InvalidInput(option, "cannot be the whole host; name the directories that the program needs", "/")
    if each.path in _SYSTEM or any(each.path == own or each.path.startswith(f"{own}/") for own in _OWN):
        rule = "is a place that a jail has of its own; name a directory elsewhere, or one in it"
        raise InvalidInput(option, rule, each.path)


def _check_apart(found: list[JailDirectory]) -> None:
    for each in found:
        for other in found:
            if each is not other and Path(each.path).is_relative_to(other.path):
                option = "write" if each.writable else "read"
                raise InvalidInput(option, f"lies in {other.path}, which is shown already; name one of them", each.path)
