"""The output of a program, kept by offset: whole, or the last bytes of it in a ring."""

from __future__ import annotations

import errno
import os

IN_MEMORY = 64 * 1024


_NO_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})
"""The errors of file systems and kernels without O_TMPFILE (open(2))."""


def clear(directory: str) -> None:
    """Remove what a keeper left that was killed while it made a file."""
    for entry in os.scandir(directory):
        os.unlink(entry)


class Dropped(Exception):
    """A ring does not have the bytes any more; ``first`` is the offset of those that it has."""

    def __init__(self, first: int) -> None:
        self.first = first


class Spool:
    """A log; ``held_back`` bytes at its end are not read before the end is known.

    Its file lies in ``directory`` and has no name, so nothing stays behind whatever happens to the keeper. With
    ``kept`` it is a ring that holds so many bytes, in memory or in a file of that size.
    """

    def __init__(self, directory: str, held_back: int = 0, kept: int | None = None) -> None:
        self._directory = directory
        self._held_back = held_back
        self._kept = kept
        self._memory = bytearray()
        self._fd = -1
        self.length = 0
        self.closed = False
        """Whether its writers are gone."""
        self.final = False
        """Whether nothing will be appended: its program ended."""
        self._cut = False

    def append(self, data: bytes) -> None:
        """Raises OSError when the host's disk takes no more.

        The bytes before stay. Nothing is added after that, since bytes would be missing in between.
        """
        if self._cut:
            return
        try:
            if self._kept is not None:
                self._append_to_ring(data, self._kept)
            elif self._fd < 0 and self.length + len(data) <= IN_MEMORY:
                self._memory += data
            else:
                self._to_file()
                _write(self._fd, data, self.length)
        except OSError:
            self._cut = True
            raise
        self.length += len(data)

    @property
    def first(self) -> int:
        """The offset of the first byte that is kept."""
        return 0 if self._kept is None else max(0, self.length - self._kept)

    @property
    def readable(self) -> int:
        """Up to where it can be read now."""
        return self.length if self.closed else max(0, self.length - self._held_back)

    def read(self, offset: int, most: int) -> bytes:
        """Returns bytes from ``offset`` on, fewer than ``most`` where a ring turns. Raises Dropped, OSError."""
        if offset < self.first:
            raise Dropped(self.first)
        if self._fd < 0:
            at = offset - (self.length - len(self._memory))
            return bytes(self._memory[at : at + most])
        if self._kept is None:
            return os.pread(self._fd, most, offset)
        at = offset % self._kept
        return os.pread(self._fd, max(0, min(most, self.length - offset, self._kept - at)), at)

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

    def _append_to_ring(self, data: bytes, kept: int) -> None:
        if self._fd < 0 and (kept <= IN_MEMORY or self.length + len(data) <= IN_MEMORY):
            self._memory += data[-kept:] if kept else b""
            del self._memory[: max(0, len(self._memory) - kept)]
            return
        self._to_file()
        at = (self.length + max(0, len(data) - kept)) % kept
        view = memoryview(data)[-kept:]
        while view:
            written = os.pwrite(self._fd, view[: kept - at], at)
            view, at = view[written:], (at + written) % kept

    def _to_file(self) -> None:
        """Moves what is in memory into a file, the first time."""
        if self._fd >= 0:
            return
        fd = _nameless(self._directory)
        try:
            _write(fd, bytes(self._memory), 0)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        self._memory.clear()


LINE_BYTES = 256 * 1024


class Line:
    """The output of a program that waits for its one reader, who has not taken it yet.

    It is read as a :class:`Spool`.
    """

    def __init__(self) -> None:
        self._memory = bytearray()
        self.length = 0
        self.closed = self.final = False

    @property
    def full(self) -> bool:
        """Returns whether no more is to be taken from the program."""
        return len(self._memory) >= LINE_BYTES

    @property
    def first(self) -> int:
        return self.length - len(self._memory)

    def append(self, data: bytes) -> None:
        self._memory += data
        self.length += len(data)

    def forget(self, offset: int) -> None:
        """Drops the bytes before ``offset``, which the reader has."""
        del self._memory[: max(0, offset - self.first)]

    @property
    def readable(self) -> int:
        return self.length

    def read(self, offset: int, most: int) -> bytes:
        """Returns bytes from ``offset`` on. Raises Dropped."""
        if offset < self.first:
            raise Dropped(self.first)
        at = offset - self.first
        return bytes(self._memory[at : at + most])

    def strip(self, tail: bytes) -> bool:
        """Returns False: no guest writes to it, and it has no marker."""
        return False

    def drop(self) -> None:
        self._memory.clear()


def _write(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


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
