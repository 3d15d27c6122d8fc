"""Contents as files: ``sha256/ab/<key>`` (0444); unfinished files are below ``tmp``.

A key (:func:`skillyard.stores.sqlite.blob_rows.content_key`) is of one owner's content; of old contents it is the
digest itself. Directories are 0700. A file gets its final name only when it is complete. Its writer holds a lock on it,
so that an unlocked file below ``tmp`` was left by a crash.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from skillyard.domain.errors import StoreFault
from skillyard.stores.disk import sync_path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def disk_fault(error: OSError) -> StoreFault:
    """Returns an error of the file system as a fault of the blob store."""
    if error.errno in _FULL:
        return StoreFault("the blob store's disk is full; free some space")
    return StoreFault(f"the blob store cannot use its files: {error.strerror}")


class StagedFile:
    """A file on its way in. Its methods block, and may be called from any thread."""

    def __init__(self, directory: Path) -> None:
        self._lock = threading.Lock()
        self._digest = hashlib.sha256()
        self.size = 0
        self.path, self._fd = _locked_file(directory)

    def write(self, data: bytes | bytearray) -> None:
        """Raises StoreFault when the disk is full."""
        with self._lock:
            self._digest.update(data)
            self.size += len(data)
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError as error:
                raise disk_fault(error) from error

    def seal(self, *, sync: bool) -> str:
        """Makes it read-only, on the disk too when ``sync``. Returns the content's SHA-256 in hex."""
        with self._lock:
            try:
                os.fchmod(self._fd, 0o444)
                if sync:
                    os.fsync(self._fd)
            except OSError as error:
                raise disk_fault(error) from error
            return self._digest.hexdigest()

    def discard(self) -> None:
        """Closes it, and removes it unless it got its final name. Idempotent."""
        with self._lock:
            if self._fd < 0:
                return
            fd, self._fd = self._fd, -1
            os.close(fd)
            self.path.unlink(missing_ok=True)


class BlobFiles:
    """The tree. Its methods block; ``place`` and ``trash`` are for holders of the database's write lock."""

    def __init__(self, directory: Path, *, sync: bool) -> None:
        self._contents = directory / "sha256"
        self._tmp = directory / "tmp"
        self._sync = sync

    def prepare(self) -> None:
        try:
            for directory in (self._contents.parent, self._contents, self._tmp):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise disk_fault(error) from error

    def path(self, key: str) -> Path:
        return self._contents / key[:2] / key

    def stage(self) -> StagedFile:
        """Makes a new empty file below ``tmp``."""
        return StagedFile(self._tmp)

    def seal(self, staged: StagedFile) -> str:
        return staged.seal(sync=self._sync)

    def holds(self, key: str, size: int) -> bool:
        """Returns whether the content is there, whole as far as its size tells."""
        try:
            return self.path(key).stat().st_size == size
        except OSError:
            return False

    def place(self, staged: Path, key: str, size: int) -> None:
        """Gives a sealed file its final name, unless the content is there already. Can be repeated."""
        if self.holds(key, size):
            return
        target = self.path(key)
        try:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            staged.replace(target)
            if self._sync:
                sync_path(target.parent)
        except OSError as error:
            raise disk_fault(error) from error

    def put(self, content: bytes, key: str) -> None:
        """Writes a small content and gives it its final name at once."""
        staged = self.stage()
        try:
            staged.write(content)
            self.seal(staged)
            self.place(staged.path, key, len(content))
        finally:
            staged.discard()

    def trash(self, key: str) -> Path | None:
        """Takes the final name away, which is quick whatever the size.

        Returns the place where the file waits for :meth:`remove`, None when it was not there."""
        away = self._tmp / f"trash-{secrets.token_hex(8)}"
        try:
            self.path(key).rename(away)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_fault(error) from error
        return away

    def remove(self, trashed: Iterable[Path]) -> None:
        for path in trashed:
            path.unlink(missing_ok=True)

    def clean(self) -> int:
        """Removes the files below ``tmp`` that nobody writes. Returns how many of them a crash had left."""
        left = 0
        for entry in os.scandir(self._tmp):
            if entry.name.startswith("trash-"):
                Path(entry).unlink(missing_ok=True)  # a run that was shown it may have a lock on it
            else:
                left += _remove_unlocked(Path(entry))
        return left

    def prefixes(self) -> list[str]:
        """Returns the two digits with which the contents here begin."""
        return sorted(entry.name for entry in os.scandir(self._contents) if entry.is_dir())

    def digests(self, prefix: str) -> list[str]:
        """Returns the contents that begin with ``prefix``."""
        names = sorted(entry.name for entry in os.scandir(self._contents / prefix))
        return [name for name in names if name.startswith(prefix)]


def _locked_file(directory: Path) -> tuple[Path, int]:
    while True:
        path = directory / f"new-{secrets.token_hex(8)}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise disk_fault(error) from error
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return path, fd
        os.close(fd)  # a sweep came between the two calls and took it for abandoned


def _remove_unlocked(path: Path) -> bool:
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
    return False
