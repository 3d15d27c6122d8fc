"""A small private file that several processes change under a lock and replace whole."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skillyard.domain.errors import StoreFault
from skillyard.stores.disk import give_to_owner, sync_path

Stamp = tuple[int, int, int] | None
"""Inode, time of change and size; None when there is no file."""


class StateFile:
    """Mode 0600, in a 0700 directory. Its methods block for as long as a small file takes, :meth:`locked`
    for as long as another process changes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stamp(self) -> Stamp:
        """Differs after every change, so that a reader keeps what it parsed until then."""
        try:
            status = os.stat(self.path)  # noqa: PTH116 - the quickest way, on the path of every request
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.fault(error) from error
        return status.st_ino, status.st_mtime_ns, status.st_size

    def read(self) -> bytes | None:
        """Returns the whole file. Raises StoreFault when others than the owner could read or write it."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise StoreFault(f"{self.path} is open to other users; run: chmod 600 {self.path}")
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.fault(error) from error

    def replace(self, data: bytes, *, sync: bool = True) -> None:
        """Readers see the old file or the new one; ``sync`` puts it on the disk before this returns.
        For the holder of :meth:`locked`."""
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            new.unlink(missing_ok=True)  # a crash may have left one
            _write(new, data, sync=sync)
            new.replace(self.path)
            if sync:
                sync_path(self.path.parent)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise self.fault(error) from error

    @contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold what all who change the file hold. Without ``wait`` it gives False when another has it."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self.path.with_name(f".{self.path.name}.lock")
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise self.fault(error) from error
        try:
            give_to_owner(fd, self.path.parent)
            yield _lock(fd, wait=wait)
        finally:
            os.close(fd)

    def fault(self, error: OSError) -> StoreFault:
        return StoreFault(f"{self.path} cannot be read or written: {error.strerror}")


def _write(path: Path, data: bytes, *, sync: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        give_to_owner(fd, path.parent)
        file.write(data)
        file.flush()
        now = time.time_ns()
        os.utime(fd, ns=(now, now))  # finer than the kernel's clock tick: two changes never look alike
        if sync:
            os.fsync(fd)


def _lock(fd: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
