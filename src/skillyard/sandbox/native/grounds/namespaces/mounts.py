"""Hanging skills and blobs into a sandbox from outside.

Packages that were imported ahead may have shaped a sandbox's mount namespace and left a process in it. So nothing is
made, changed or looked up in there but the places to attach something at. All mounts are made here, read-only, and
descriptors of them say where the next goes. The keeper is single-threaded, so it can change its own mount namespace
for a moment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import MappingProxyType

from skillyard.sandbox.native.grounds import root
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Show
from skillyard.sandbox.native.linux import kernel, namespaces

_QUIET = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
_NO_LINKS = kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
_DIRECTORIES = {"size": "1m", "mode": "0755"}
"""Options of a tmpfs that holds directories and links only."""


class Shower:
    """Shows sources of the mount namespace that it is made in: the keeper's own."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._locked = -1
        self._stock: list[int] = []
        """Trees that were made while nobody waited."""
        loop.when_idle(self._stock_up)

    def _stock_up(self) -> None:
        with suppress(OSError):  # the next to show something will hear why
            self._make_trees()

    def _make_trees(self) -> None:
        """Makes the trees that the next :meth:`show` needs. Raises OSError."""
        if self._locked < 0:
            self._locked = _lock_all()
        while len(self._stock) < len(walls.SHOWN):
            self._stock.append(new_tree())

    def show(self, pidfd: int, items: Sequence[Show], hung: Mapping[str, int] = MappingProxyType({})) -> None:
        """Shows ``items`` in the mount namespace of ``pidfd``'s process. ``hung`` are trees of directories that are
        there already.

        Raises OSError naming the source or the step; the sandbox must then be thrown away.
        """
        self._make_trees()
        with ExitStack() as opened:
            try:
                kernel.setns(self._locked, kernel.CLONE_NEWNS)
                sources = [_source(item.source, opened) for item in items]
                trees = self._trees(items, sources, hung, opened)
                kernel.setns(pidfd, kernel.CLONE_NEWNS)
                _attach(items, sources, trees, hung)
            finally:
                self._return()
        self._loop.when_idle(self._stock_up)

    def _trees(
        self, items: Sequence[Show], sources: Sequence[int], hung: Mapping[str, int], opened: ExitStack
    ) -> dict[str, int]:
        """Makes a tmpfs for each directory in which an item is shown, with a place for each item."""
        trees = dict(hung)
        for item, source in zip(items, sources, strict=True):
            if item.target == walls.TRUST:
                continue
            for path in (item.target, *item.aliases):
                if (parent := os.path.dirname(path)) not in trees:
                    trees[parent] = self._stock.pop()
                    opened.callback(os.close, trees[parent])
            _make_place(trees, item, source)
        for parent in trees.keys() - hung.keys():
            kernel.mount_setattr(trees[parent], "", _QUIET)
        return trees

    def _return(self) -> None:
        """Returns to the keeper's mount namespace, or ends the keeper and so all that it holds."""
        try:
            kernel.setns(self._home, kernel.CLONE_NEWNS)
        except OSError as error:
            raise SystemExit(f"the keeper cannot return to its mount namespace: {error}") from error


def _lock_all() -> int:
    """Returns a descriptor of a mount namespace like ours in which all is locked read-only. It belongs to a further
    user namespace, so the kernel locks the flags of each mount in it for everybody who has a copy
    (mount_namespaces(7))."""
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


def _source(path: str, opened: ExitStack) -> int:
    """Returns a detached mount that is read-only for good. Its flags are locked in the namespace that we are in."""
    fd, _ = root.detached(path)
    opened.callback(os.close, fd)
    return fd


def _make_place(trees: Mapping[str, int], item: Show, source: int) -> None:
    parent, name = os.path.split(item.target)
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.mkdir(name, 0o755, dir_fd=trees[parent])
    else:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o444, dir_fd=trees[parent]))
    for alias in item.aliases:
        beside, other = os.path.split(alias)
        os.symlink(os.path.relpath(item.target, beside), other, dir_fd=trees[beside])


def new_tree() -> int:
    """Returns a detached tmpfs of ours for places and links."""
    return kernel.new_tmpfs(_DIRECTORIES, kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV)


def _attach(items: Sequence[Show], sources: Sequence[int], trees: dict[str, int], hung: Mapping[str, int]) -> None:
    """Attaches the trees and items in the sandbox's mount namespace, by descriptors alone."""
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
