"""Whose groups a keeper's are: a lock on the directory that holds them (flock(2)), which ends with the keeper.

What a killed keeper left is empty, since its processes ended with it, and its parent's lock is free: whichever keeper
starts next beside it, on any data directory, takes it away. Directories are 0700, so that nobody else can hold a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterable

_NAME = re.compile(r"skillyard-[0-9a-f]{12}")
_LOOK_AGAIN_S = 0.01
_LOCK_BOUND_S = 2.0
"""A sweep holds a lock for microseconds; a keeper that never gets it goes on without."""


def claim(path: str) -> int:
    """Make the directory unless it is there, and own it as long as the descriptor is open. Raises OSError."""
    deadline = time.monotonic() + _LOCK_BOUND_S
    while True:
        os.makedirs(path, 0o700, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if (_lock(fd) and _is(fd, path)) or time.monotonic() > deadline:
            return fd
        os.close(fd)
        time.sleep(_LOOK_AGAIN_S)


def sweep_dead(bases: Iterable[str]) -> None:
    """Remove the groups of keepers that are no more, directly below ``bases``; ours are locked, and stay."""
    for base in bases:
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    _remove_if_dead(entry.path)


def children(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def remove(paths: Iterable[str]) -> list[str]:
    """Those that are left: a process may still be in them, be it one that is about to end."""
    return [path for path in paths if not _removed(path)]


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove_if_dead(path: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _lock(fd):
                remove(children(path))
                os.rmdir(path)
        finally:
            os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(fd: int, path: str) -> bool:
    """Whether it was not swept away between our making and our locking it."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
