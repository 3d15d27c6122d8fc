"""Walks through a tree of any depth, which programs may change meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Moved(OSError):
    """A directory was moved while it was walked through."""


def open_directory(path: str, parent: int | None = None) -> int:
    """Opens a directory that is not a link. Raises OSError."""
    fd = os.open(path, _DIRECTORY, dir_fd=parent)
    # A kernel in user space follows a link all the same where O_DIRECTORY stands beside O_NOFOLLOW.
    if not os.path.samestat(os.fstat(fd), os.stat(path, dir_fd=parent, follow_symlinks=False)):
        os.close(fd)
        raise NotADirectoryError(errno.ENOTDIR, "it is a link, or was moved meanwhile")
    return fd


class Walk:
    """Stands in one directory at a time, and has few descriptors open.

    :meth:`leave` returns by ``..`` and compares the place with the one that was entered from.
    """

    def __init__(self, fd: int) -> None:
        """Takes ``fd`` as its own."""
        self.fd = fd
        self.names: list[str] = []
        self._places = [_place(fd)]

    def enter(self, name: str) -> None:
        """Raises OSError."""
        fd = open_directory(name, self.fd)
        os.close(self.fd)
        self.fd = fd
        self.names.append(name)
        self._places.append(_place(fd))

    def leave(self) -> str:
        """Returns to the directory above, and returns the name of the one that was left. Raises OSError."""
        above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        os.close(self.fd)
        self.fd = above
        self._places.pop()
        if _place(above) != self._places[-1]:
            raise Moved("a directory was moved while it was walked through")
        return self.names.pop()

    def close(self) -> None:
        os.close(self.fd)


def _place(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino


def tree(top: int) -> Iterator[tuple[Walk, str, os.stat_result]]:
    """Yields each entry below a directory as (walk, name, state).

    A directory comes before its own entries. The walk stands in the directory of the name. ``top`` is taken
    over. A directory of ours that is closed is open as long as the walk is in it. Raises OSError.
    """
    walk = Walk(top)
    left = [_listed(walk.fd)]
    closed: list[int | None] = []
    try:
        while True:
            if not left[-1]:
                left.pop()
                if not left:
                    return
                _leave(walk, closed.pop())
                continue
            name = left[-1].pop()
            try:
                about = os.stat(name, dir_fd=walk.fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield walk, name, about
            if stat.S_ISDIR(about.st_mode):
                was = opened_up(walk.fd, name, about.st_mode, 0o500)
                try:
                    walk.enter(name)
                except (FileNotFoundError, NotADirectoryError):  # it was replaced meanwhile
                    continue
                closed.append(was)
                left.append(_listed(walk.fd))
    finally:
        walk.close()


def opened_up(parent: int, name: str, mode: int, wanted: int) -> int | None:
    """Gives us the rights ``wanted`` to what is ours; returns its mode if that was without."""
    mode = stat.S_IMODE(mode)
    if mode & wanted == wanted:
        return None
    try:
        os.chmod(name, mode | wanted, dir_fd=parent)
    except OSError:  # another's, or gone: opening it says why
        return None
    return mode


def _leave(walk: Walk, mode: int | None) -> None:
    """Leaves a directory, which gets its ``mode`` back."""
    if mode is None:
        walk.leave()
        return
    left = os.dup(walk.fd)
    try:
        walk.leave()
        os.fchmod(left, mode)
    finally:
        os.close(left)


def _listed(fd: int) -> list[str]:
    """Returns the names, the last one first."""
    return sorted(os.listdir(fd), reverse=True)


def remove_below(parent: int, name: str) -> None:
    """Removes the directory ``name`` of ``parent``, whatever its permissions. Raises OSError."""
    walk = Walk(os.dup(parent))
    try:
        _enter(walk, name)
        while True:
            inner = _remove_files(walk)
            if inner is not None:
                _enter(walk, inner)
                continue
            gone = walk.leave()
            os.rmdir(gone, dir_fd=walk.fd)
            if not walk.names:
                return
    finally:
        walk.close()


def _enter(walk: Walk, name: str) -> None:
    with contextlib.suppress(PermissionError):  # another's: opening it says why
        os.chmod(name, 0o700, dir_fd=walk.fd)
    walk.enter(name)


def _remove_files(walk: Walk) -> str | None:
    """Removes what is not a directory; returns a directory that is still there."""
    with os.scandir(walk.fd) as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                return entry.name
            os.unlink(entry.name, dir_fd=walk.fd)
    return None
