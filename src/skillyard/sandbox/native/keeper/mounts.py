"""Hanging things into a sandbox from outside.

The mount namespace of a sandbox may be the work of packages that were imported ahead, with a process of theirs alive in
it: nothing is made, changed or looked up in there but the places to hang something at. All that is hung is made here,
read-only, and its descriptors say where the next goes. The keeper is single-threaded, so changing its own mount
namespace for a moment changes nobody else's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType

from skillyard.sandbox.native import kernel, root, walls
from skillyard.sandbox.native.keeper import namespaces

_QUIET = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
_NO_LINKS = kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
_DIRECTORIES = {"size": "1m", "mode": "0755"}
"""Of what holds directories and links only."""


@dataclass(frozen=True, slots=True)
class Show:
    """``target`` lies below one of walls.SHOWN, or is walls.TRUST; ``aliases`` beside it."""

    source: str
    target: str
    aliases: tuple[str, ...] = ()


class Shower:
    """Shows what the mount namespace sees in which this is made: the keeper's own."""

    def __init__(self) -> None:
        self._home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._locked = -1

    def show(self, pidfd: int, items: Sequence[Show], hung: Mapping[str, int] = MappingProxyType({})) -> None:
        """Show ``items`` in the mount namespace of ``pidfd``'s process. ``hung`` are trees for some of the directories
        that are there already.

        Raises OSError naming the source or the step; the sandbox must then be thrown away.
        """
        with ExitStack() as opened:
            sources = self._sources(items, opened)
            trees = dict(hung)
            _fill(trees, items, sources, opened)
            for parent in trees.keys() - hung.keys():
                kernel.mount_setattr(trees[parent], "", _QUIET)
            kernel.setns(pidfd, kernel.CLONE_NEWNS)
            try:
                _attach(items, sources, trees, hung)
            finally:
                self._return()

    def _sources(self, items: Sequence[Show], opened: ExitStack) -> list[int]:
        """Detached mounts that nobody can make writable again: their flags are those of the locked namespace."""
        if self._locked < 0:
            self._locked = _lock_all()
        sources: list[int] = []
        kernel.setns(self._locked, kernel.CLONE_NEWNS)
        try:
            for item in items:
                fd, recursive = root.detached(item.source)
                opened.callback(os.close, fd)
                kernel.mount_setattr(fd, "", _QUIET, recursive=recursive)
                sources.append(fd)
        finally:
            self._return()
        return sources

    def _return(self) -> None:
        """A keeper that is lost among a sandbox's mounts must not go on: all it holds ends with it."""
        try:
            kernel.setns(self._home, kernel.CLONE_NEWNS)
        except OSError as error:
            raise SystemExit(f"the keeper cannot return to its mount namespace: {error}") from error


def _lock_all() -> int:
    """A descriptor of a mount namespace that shows what ours does, all of it read-only. It belongs to a further user
    namespace: so the kernel locks the flags of each mount in it, for whoever has a copy (mount_namespaces(7))."""
    said, saying = os.pipe2(os.O_CLOEXEC)
    go, going = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for fd in (said, going):
                os.close(fd)
            namespaces.unshare("mount namespace", kernel.CLONE_NEWNS)
            kernel.mount_setattr(kernel.AT_FDCWD, "/", _QUIET, recursive=True)
            namespaces.unshare("user and mount namespaces", kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
            os.write(saying, b"x")
            os.read(go, 1)
            status = 0
        except OSError as error:
            os.write(2, f"{error}\n".encode())
        finally:
            os._exit(status)
    try:
        os.close(saying)
        if not os.read(said, 1):
            raise OSError(0, "no user and mount namespace to lock mounts in")
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for fd in (said, go, going):
            os.close(fd)
        os.waitpid(pid, 0)


def _fill(trees: dict[str, int], items: Sequence[Show], sources: Sequence[int], opened: ExitStack) -> None:
    """Make a tmpfs for each directory in which something is shown, with a place for each of the items."""
    for item, source in zip(items, sources, strict=True):
        if item.target == walls.TRUST:
            continue
        parent, name = os.path.split(item.target)
        if parent not in trees:
            trees[parent] = _opened_tree(opened)
        if stat.S_ISDIR(os.fstat(source).st_mode):
            os.mkdir(name, 0o755, dir_fd=trees[parent])
        else:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o444, dir_fd=trees[parent]))
        for alias in item.aliases:
            beside, other = os.path.split(alias)
            if beside not in trees:
                trees[beside] = _opened_tree(opened)
            os.symlink(os.path.relpath(item.target, beside), other, dir_fd=trees[beside])


def _opened_tree(opened: ExitStack) -> int:
    fd = new_tree()
    opened.callback(os.close, fd)
    return fd


def new_tree() -> int:
    """A detached tmpfs of ours for places and links."""
    return kernel.new_tmpfs(_DIRECTORIES, kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV)


def _attach(items: Sequence[Show], sources: Sequence[int], trees: dict[str, int], hung: Mapping[str, int]) -> None:
    """In the sandbox's mount namespace: only descriptors name what is hung, and where inside of the trees."""
    for parent, fd in trees.items():
        if parent in hung:
            kernel.mount_setattr(fd, "", _QUIET)
        else:
            _hang(fd, parent, _NO_LINKS, kernel.AT_FDCWD)
    for item, fd in zip(items, sources, strict=True):
        parent, name = os.path.split(item.target)
        if item.target == walls.TRUST:
            _hang(fd, item.target, _NO_LINKS, kernel.AT_FDCWD)
        else:
            _hang(fd, name, _NO_LINKS | kernel.RESOLVE_NO_XDEV, trees[parent])


def _hang(fd: int, path: str, resolve: int, at: int) -> None:
    place = kernel.open_place(path, resolve, at)
    try:
        kernel.hang(fd, place)
    finally:
        os.close(place)


def allowed(target: str, aliases: Sequence[str]) -> bool:
    """Whether something may be shown there: each path is one plain name directly below /skills or /blobs, or it is the
    file of certificates alone."""
    return (target == walls.TRUST and not aliases) or all(map(_plain, (target, *aliases)))


def _plain(target: str) -> bool:
    parent, _, name = target.rpartition("/")
    return parent in walls.SHOWN.values() and name not in ("", ".", "..") and "\0" not in name
