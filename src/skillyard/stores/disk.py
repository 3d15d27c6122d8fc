"""Helpers of every store for the disk: owners, syncing and removing trees."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def give_to_owner(fd: int, directory: Path) -> None:
    """Gives a file that root writes to the owner of its directory, whose server has to read it."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)


def sync_path(path: Path) -> None:
    """Writes a file or the names in a directory through to the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_tree(path: Path) -> None:
    """Deletes a file or a tree, read-only directories too; does nothing when it is not there."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    if not path.is_dir():
        return
    for directory, _, _ in os.walk(path):
        Path(directory).chmod(0o700)
    shutil.rmtree(path)
