"""Hanging things into a sandbox from outside, before foreign code runs in it.

Sources are opened in the keeper's mount namespace as detached mounts; only their attachment happens inside. The
keeper is single-threaded, so changing its own mount namespace for a moment changes nobody else's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from skillyard.sandbox.native import kernel, walls

_QUIET = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV


@dataclass(frozen=True, slots=True)
class Show:
    """``target`` lies below one of walls.SHOWN, or is walls.TRUST; ``aliases`` beside it."""

    source: str
    target: str
    aliases: tuple[str, ...] = ()


def show(home: int, pidfd: int, root_id: int, items: Sequence[Show]) -> None:
    """Show ``items`` in the mount namespace of ``pidfd``'s process; ``home`` is our own, to return to.

    ``root_id`` is the zygote's id 0 as we see it: its tmpfs knows no other owner for what is made in it.

    Raises OSError naming the source or the step; the sandbox must then be thrown away.
    """
    sources: list[int] = []
    try:
        for item in items:
            sources.append(kernel.open_tree(item.source))
            kernel.mount_setattr(sources[-1], "", _QUIET)
        kernel.setns(pidfd, kernel.CLONE_NEWNS)
        try:
            kernel.set_file_ids(root_id, root_id)
            _attach(items, sources)
        finally:
            kernel.set_file_ids(0, 0)
            kernel.setns(home, kernel.CLONE_NEWNS)
    finally:
        for fd in sources:
            os.close(fd)


def _attach(items: Sequence[Show], sources: Sequence[int]) -> None:
    parents = {os.path.dirname(item.target) for item in items if item.target != walls.TRUST}
    for parent in parents:
        kernel.mount_setattr(kernel.AT_FDCWD, parent, 0, kernel.MOUNT_ATTR_RDONLY)
    for item, fd in zip(items, sources, strict=True):
        if item.target == walls.TRUST:
            kernel.move_mount(fd, item.target)
            continue
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.mkdir(item.target, 0o755)
        else:
            os.close(os.open(item.target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444))
        kernel.move_mount(fd, item.target)
        for alias in item.aliases:
            os.symlink(os.path.relpath(item.target, os.path.dirname(alias)), alias)
    for parent in parents:
        kernel.mount_setattr(kernel.AT_FDCWD, parent, kernel.MOUNT_ATTR_RDONLY)


def allowed(target: str, aliases: Sequence[str]) -> bool:
    """Whether something may be shown there: each path is one plain name directly below /skills or /blobs, or it is the
    file of certificates alone."""
    return (target == walls.TRUST and not aliases) or all(map(_plain, (target, *aliases)))


def _plain(target: str) -> bool:
    parent, _, name = target.rpartition("/")
    return parent in walls.SHOWN.values() and name not in ("", ".", "..") and "\0" not in name
