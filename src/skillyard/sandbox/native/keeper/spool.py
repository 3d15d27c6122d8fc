"""One stream of one program: an append-only log with offsets, in memory while small, in a file from then on."""

from __future__ import annotations

import os

IN_MEMORY = 64 * 1024


class Spool:
    """``held_back`` bytes at the end are not read before the end is known: they may be taken away."""

    def __init__(self, path: str, held_back: int = 0) -> None:
        self._path = path
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
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(self._path)  # the descriptor is enough, and nothing stays behind whatever happens to us
        self._fd = fd
        self._write(bytes(self._memory))
        self._memory.clear()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
