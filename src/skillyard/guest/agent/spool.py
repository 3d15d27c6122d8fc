"""The kept output of one stream: a log with offsets, in memory, then in a nameless file."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

IN_MEMORY = 64 * 1024


class Spool:
    """Keeps the last ``cap`` bytes that were appended.

    The file is written in a circle, so that it never grows beyond ``cap``. ``watchers`` are called when there is more,
    and at the end.
    """

    def __init__(self, cap: int, directory: str) -> None:
        self._cap = cap
        self._directory = directory
        self._memory = bytearray()
        self._file = -1
        self.size = 0
        self.ended = False
        self.dropped = False
        self._cut = False
        self.watchers: set[Callable[[], None]] = set()

    @property
    def first(self) -> int:
        """The offset of the first byte that is kept."""
        return self.size if self.dropped else max(0, self.size - self._cap)

    def append(self, data: bytes) -> None:
        """Keeps ``data``. Raises OSError where the disk has no room; the bytes before stay.

        Nothing is added after that, since bytes would be missing in between.
        """
        if self._cut:
            return
        try:
            if self._file < 0 and len(self._memory) + len(data) > IN_MEMORY < self._cap:
                self._spill()
            if self._file >= 0:
                self._write(memoryview(data))
        except OSError:
            self._cut = True
            raise
        if self._file < 0:
            self._memory += data
            self.size += len(data)
            del self._memory[: max(0, len(self._memory) - self._cap)]
        self._tell()

    def read(self, offset: int, most: int) -> bytes:
        """Returns bytes from ``offset`` on; none where nothing has come yet.

        The offset is not before :attr:`first`.
        """
        length = min(most, self.size - offset)
        if length <= 0:
            return b""
        if self._file < 0:
            start = offset - (self.size - len(self._memory))
            return bytes(self._memory[start : start + length])
        at = offset % self._cap
        return os.pread(self._file, min(length, self._cap - at), at)

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True
        self._tell()

    def drop(self) -> None:
        """Forgets the bytes, and that they can be read."""
        self.dropped = True
        self._memory.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._tell()

    def _spill(self) -> None:
        """Moves what is in memory into a file. The memory stays where the disk has no room."""
        file, size = _nameless(self._directory), self.size
        self._file, self.size = file, size - len(self._memory)
        try:
            self._write(memoryview(bytes(self._memory)))
        except OSError:
            os.close(file)
            self._file, self.size = -1, size
            raise
        self._memory = bytearray()

    def _write(self, data: memoryview) -> None:
        while data:
            at = self.size % self._cap
            written = os.pwrite(self._file, data[: self._cap - at], at)
            self.size += written
            data = data[written:]

    def _tell(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()


def _nameless(directory: str) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:  # the file system has no such files
        import tempfile  # costs more than the rest of this module, and few sandboxes write so much

        fd, path = tempfile.mkstemp(dir=directory)
        os.unlink(path)
        return fd
