"""Trees of files, worked on by generators of short steps, since the keeper has one thread."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from skillyard.sandbox.native.keeper.loop import Turns

_PIECE = 1 << 20
_BUSY = (errno.ENOTEMPTY, errno.EEXIST)
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def removal(parent: int, name: str) -> Iterator[None]:
    """Removes the tree ``name`` below the directory ``parent``, which hostile code made.

    It may have any depth and any modes. Links are not followed. No process may still change it.
    """
    if _drop(parent, name):
        return
    fd = _opened(parent, name)
    way = [(name, os.listdir(fd))]
    try:
        while way:
            at, entries = way[-1]
            if entries:
                entry = entries.pop()
                if not _drop(fd, entry):
                    fd = _instead(fd, _opened(fd, entry))
                    way.append((entry, os.listdir(fd)))
            else:
                way.pop()
                fd = _instead(fd, _above(fd) if way else os.dup(parent))
                os.rmdir(at, dir_fd=fd)
            yield
    finally:
        os.close(fd)


def _instead(fd: int, other: int) -> int:
    os.close(fd)
    return other


def _above(fd: int) -> int:
    return os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)


def _drop(parent: int, name: str) -> bool:
    """Removes a file or an empty directory; returns whether it is gone."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
    return True


def _opened(parent: int, name: str) -> int:
    """Opens a directory, also one that its owner has shut."""
    try:
        fd = os.open(name, _FLAGS, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, _FLAGS, dir_fd=parent)
    if os.fstat(fd).st_mode & 0o700 != 0o700:
        os.fchmod(fd, 0o700)
    return fd


def placing(source: str, target: str, skip: frozenset[str] = frozenset()) -> Iterator[None]:
    """Shows ``source`` at ``target``, by hard links where the kernel makes them, else by copies.

    ``target`` is not there yet. Everybody can read its files and enter its directories, which are ours. Raises OSError
    naming the path.
    """
    about = os.stat(source)
    if not stat.S_ISDIR(about.st_mode):
        yield from _place_file(source, target, about)
        return
    pending = [(source, target)]
    while pending:
        at, to = pending.pop()
        os.mkdir(to, 0o755)
        for entry in os.scandir(at):
            if entry.path in skip:
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), f"{to}/{entry.name}")
            elif entry.is_dir():
                pending.append((entry.path, f"{to}/{entry.name}"))
            elif entry.is_file():
                yield from _place_file(entry.path, f"{to}/{entry.name}", entry.stat())
        yield


def _place_file(source: str, target: str, about: os.stat_result) -> Iterator[None]:
    if about.st_mode & 0o004:
        with suppress(OSError):  # another file system, or one that has no links
            os.link(source, target)
            yield
            return
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while os.sendfile(writing, reading, None, _PIECE):  # from where it stands
                yield
            os.utime(writing, ns=(about.st_atime_ns, about.st_mtime_ns))  # what was compiled names it
            os.fchmod(writing, 0o444 | about.st_mode & 0o111)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


class Sum:
    """The size of a tree: ``bytes`` on the disk and ``names``.

    ``torn`` says that something was listed and then not there: it was removed, or moved about and missed.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.names = 0
        self.torn = False


def measuring(path: str, into: Sum) -> Iterator[None]:
    """Adds up a tree that hostile code changes meanwhile.

    It may have any depth. Links are not followed, and a directory that its owner has shut is opened again. A file with
    several names counts once for each.
    """
    walk = _Walk(path, into)
    try:
        yield from walk.steps()
    finally:
        walk.close()


class _Walk:
    """Walks with one descriptor: paths may be too long, and trees deeper than our descriptors."""

    def __init__(self, path: str, into: Sum) -> None:
        self._fd = os.open(path, _FLAGS)
        self._into = into
        self._way: list[tuple[tuple[int, int], list[str]]] = []

    def close(self) -> None:
        os.close(self._fd)

    def steps(self) -> Iterator[None]:
        yield from self._enter()
        while self._way:
            names = self._way[-1][1]
            if not names:
                if not self._up():
                    return
            elif self._down(names.pop()):
                yield from self._enter()

    def _enter(self) -> Iterator[None]:
        inner: list[str] = []
        self._way.append((_identity(self._fd), inner))
        with suppress(OSError), os.scandir(self._fd) as listing:
            for entry in listing:
                self._into.names += 1
                try:
                    about = entry.stat(follow_symlinks=False)
                except OSError:
                    self._into.torn = True
                    yield
                    continue
                self._into.bytes += about.st_blocks * 512
                if stat.S_ISDIR(about.st_mode):
                    inner.append(entry.name)
                yield

    def _down(self, name: str) -> bool:
        try:
            self._fd = _instead(self._fd, _open_anyway(self._fd, name))
        except OSError:
            self._into.torn = True
            return False
        return True

    def _up(self) -> bool:
        self._way.pop()
        if not self._way:
            return False
        self._fd = _instead(self._fd, _above(self._fd))
        if _identity(self._fd) != self._way[-1][0]:
            self._into.torn = True
            return False
        return True


def _identity(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino


def _open_anyway(parent: int, name: str) -> int:
    try:
        return os.open(name, _FLAGS, dir_fd=parent)
    except PermissionError:
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
        finally:
            os.close(fd)
        return os.open(name, _FLAGS, dir_fd=parent)


SLICE_S = 0.003


def work(loop: Turns, steps: Iterator[None], done: Callable[[OSError | None], None]) -> None:
    """Goes through ``steps`` in short turns, the first at once; then calls ``done``."""

    def turn() -> None:
        until = time.monotonic() + SLICE_S
        try:
            for _ in steps:
                if time.monotonic() > until:
                    loop.after(0, turn)
                    return
        except OSError as error:
            done(error)
            return
        except Exception as error:  # noqa: BLE001 - the waiting caller hears of it
            loop.report(error)
            done(OSError(0, f"{type(error).__name__}: {error}"))
            return
        done(None)

    turn()
