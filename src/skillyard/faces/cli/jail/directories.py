"""The directories of the host that an operator gives a jail."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
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
    with ExitStack() as stack:
        return tuple(directory for directory, _ in opened(read, write, closed, stack))


def opened(
    read: Iterable[Path], write: Iterable[Path], closed: Iterable[Path], stack: ExitStack
) -> list[tuple[JailDirectory, int]]:
    """As :func:`chosen`, each with a descriptor (O_PATH) that ``stack`` closes."""
    found = []
    for option, paths, writable in (("read", read, False), ("write", write, True)):
        found += [_opened(option, path, stack, writable=writable) for path in paths]
    _check([directory for directory, _ in found], closed)
    return found


def received(
    fds: Sequence[int], asked: Sequence[tuple[str, bool]], closed: Iterable[Path]
) -> tuple[JailDirectory, ...]:
    """Returns the directories behind another process's descriptors, as :func:`chosen` does.

    ``asked`` has the path of each, and whether it may be written to. The path that counts is the kernel's: another one,
    and a descriptor that is not of the directory and the mount at that path here, is refused. Raises InvalidInput.
    """
    if len(fds) != len(asked):
        raise InvalidInput("read", "must come with one descriptor for each directory")
    found = [_identified(fd, path, writable=writable) for fd, (path, writable) in zip(fds, asked, strict=True)]
    _check(found, closed)
    return tuple(found)


def _check(found: Sequence[JailDirectory], closed: Iterable[Path]) -> None:
    closed = [path.resolve() for path in closed]
    for each in found:
        option = _option(each)
        _check_place(option, each)
        check_closed(option, Path(each.path), _homes(), within=False)
        check_closed(option, Path(each.path), closed)
    _check_apart(found)


def _homes() -> list[Path]:
    """Returns the home directory that the environment names and that of the system.

    A client may set the first.
    """
    found = [Path.home().resolve()]
    with suppress(KeyError):  # a user without an entry
        found.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return found


def _option(each: JailDirectory) -> str:
    return "write" if each.writable else "read"


def _opened(option: str, path: Path, stack: ExitStack, *, writable: bool) -> tuple[JailDirectory, int]:
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
    stack.callback(os.close, fd)
    seen = os.fstat(fd)
    return JailDirectory(whole, seen.st_dev, seen.st_ino, os.getuid(), os.getgid(), writable), fd


def _identified(fd: int, asked: str, *, writable: bool) -> JailDirectory:
    option, seen = "write" if writable else "read", os.fstat(fd)
    path = str(Path(f"/proc/self/fd/{fd}").readlink())
    if path != asked or not stat.S_ISDIR(seen.st_mode) or any(not letter.isprintable() for letter in path):
        raise InvalidInput(option, "is not the directory of the descriptor that came with it", shown(asked))
    try:
        here = _open_without_links(path)
    except OSError as error:
        raise InvalidInput(option, f"cannot be opened: {os.strerror(error.errno or 0)}", shown(path)) from None
    try:
        is_it = os.path.samestat(seen, os.fstat(here)) and _mount_of(fd) == _mount_of(here)
    finally:
        os.close(here)
    if not is_it:
        raise InvalidInput(option, "is not what stands at this path for the server", shown(path))
    return JailDirectory(path, seen.st_dev, seen.st_ino, os.getuid(), os.getgid(), writable)


def _mount_of(fd: int) -> str:
    """Returns the mount of a descriptor, which no other mount namespace has."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii", errors="replace").splitlines()
    return next(line for line in lines if line.startswith("mnt_id:"))


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


def _check_apart(found: Sequence[JailDirectory]) -> None:
    for each in found:
        for other in found:
            if each is not other and Path(each.path).is_relative_to(other.path):
                raise InvalidInput(
                    _option(each), f"lies in {other.path}, which is shown already; name one of them", each.path
                )
