"""One stream of one program: an append-only log with offsets, in memory while small, in a file from then on."""

from __future__ import annotations

import errno
import os

IN_MEMORY = 64 * 1024


_NO_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})
"""What file systems and kernels without O_TMPFILE answer (open(2))."""


def clear(directory: str) -> None:
    """Remove what a keeper left that was killed while it made a file."""
    for entry in os.scandir(directory):
        os.unlink(entry)


class Spool:
    """``held_back`` bytes at the end are not read before the end is known: they may be taken away.

    Its file lies in ``directory`` and has no name, so nothing stays behind whatever happens to the keeper.
    """

    def __init__(self, directory: str, held_back: int = 0) -> None:
        self._directory = directory
        self._held_back = held_back
        self._memory = bytearray()
        self._fd = -1
        self.length = 0
        self.closed = False
        """Whether the end is known: nothing will be appended."""

    def append(self, data: bytes) -> None:
        """Raises OSError when the host's disk takes no more."""
        if self._fd < 0 and self.length + len(data) <= IN_MEMORY:
            self._memory += data
        else:
            if self._fd < 0:
                self._to_file()
            self._write(data)
        self.length += len(data)

    @property
    def readable(self) -> int:
        """Up to where it can be read now."""
        return self.length if self.closed else max(0, self.length - self._held_back)

    def read(self, offset: int, most: int) -> bytes:
        if self._fd < 0:
            return bytes(self._memory[offset : offset + most])
        return os.pread(self._fd, most, offset)

    def strip(self, tail: bytes) -> bool:
        """Take ``tail`` away if the stream ends with it."""
        start = self.length - len(tail)
        if start < 0 or self.read(start, len(tail)) != tail:
            return False
        if self._fd < 0:
            del self._memory[start:]
        self.length = start
        return True

    def drop(self) -> None:
        """Free what it holds; it reads as empty from now on."""
        self._memory.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _to_file(self) -> None:
        self._fd = _nameless(self._directory)
        self._write(bytes(self._memory))
        self._memory.clear()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]


def _nameless(directory: str) -> int:
    try:
        return os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
    path = f"{directory}/{os.urandom(8).hex()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return fd
