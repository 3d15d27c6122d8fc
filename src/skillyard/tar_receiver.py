"""Writing a hostile tar stream below a directory of ours.

Each name is opened relative to its open parent, one component at a time, without following links, and only what was
not there before is made: no path that the stream shaped is ever resolved. The directory belongs to this process alone
while that lasts. When the stream is refused, what came before stays for the caller to remove.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterable
from pathlib import Path

from skillyard.domain.archive.names import MAX_PATH, ArchiveRefused, parts_of
from skillyard.domain.archive.tar_stream import TarEntry, TarStream
from skillyard.values import dataclass

_HOP = 1024 * 1024
"""Bytes that go to a thread at once."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ReceiverLimits:
    """``bytes`` of content, ``entries`` (headers of every kind count), ``depth`` of directories.

    ``path`` counts the bytes of a name, and ``large`` takes files of 8 GiB and more."""

    bytes: int = 4 * 1024**3
    entries: int = 300_000
    depth: int = 40
    path: int = MAX_PATH
    large: bool = False


@dataclass(slots=True)
class Received:
    files: int = 0
    directories: int = 0
    bytes: int = 0


class TarReceiver:
    """Fed with the pieces of one tar stream; a context manager, since it holds directories open.

    Files are made 0644, or 0755 when the stream's owner may execute them, directories 0755, whatever else the stream
    says; ``sealed`` takes the write bits from files. All calls block.
    """

    def __init__(self, directory: Path, limits: ReceiverLimits | None = None, *, sealed: bool = False) -> None:
        """``directory`` exists and is empty. Raises OSError."""
        self.received = Received()
        self._limits = limits or ReceiverLimits()
        self._modes = (0o444, 0o555) if sealed else (0o644, 0o755)
        self._stream = TarStream(self, large=self._limits.large)
        self._lock = threading.Lock()
        self._entries = 0
        self._file = -1
        self._open: list[tuple[str, int]] = [("", os.open(directory, _DIRECTORY))]

    def __enter__(self) -> TarReceiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def feed(self, chunk: bytes | memoryview) -> None:
        """Raises ArchiveRefused, and OSError when the disk does not take it."""
        with self._lock:
            if not self._open:
                raise ValueError("the receiver is closed")
            self._stream.feed(chunk)

    def finish(self) -> Received:
        """The stream is over. Raises ArchiveRefused when it should not be."""
        self._stream.finish()
        return self.received

    def close(self) -> None:
        """Idempotent. Waits for a ``feed`` that another thread is in."""
        with self._lock:
            self.end()
            while self._open:
                os.close(self._open.pop()[1])

    def header(self) -> None:
        self._entries += 1
        if self._entries > self._limits.entries:
            raise ArchiveRefused("archive-entries", "", f"has more than {self._limits.entries} entries")

    def begin(self, entry: TarEntry) -> None:
        parts = parts_of(entry.name, max_depth=self._limits.depth, max_path=self._limits.path)
        self.received.bytes += entry.size
        if self.received.bytes > self._limits.bytes:
            raise ArchiveRefused("archive-bytes", entry.name, f"brings it over {self._limits.bytes} bytes")
        if entry.directory:
            self._enter(parts, entry)
            return
        if not parts:
            raise ArchiveRefused("archive-name", entry.name, "is a file in place of the root")
        parent = self._enter(parts[:-1], entry)
        self._file = _made(parts[-1], parent, entry)
        os.fchmod(self._file, self._modes[entry.executable])
        self.received.files += 1

    def write(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._file, data) :]

    def end(self) -> None:
        if self._file >= 0:
            handle, self._file = self._file, -1
            os.close(handle)

    def _enter(self, parts: tuple[str, ...], entry: TarEntry) -> int:
        """The open directory ``parts``, made when it is not there. Those on its path stay open for the next entry."""
        names = [name for name, _ in self._open[1:]]
        common = next((i for i, pair in enumerate(zip(names, parts, strict=False)) if pair[0] != pair[1]), None)
        keep = min(len(names), len(parts)) if common is None else common
        while len(self._open) > keep + 1:
            os.close(self._open.pop()[1])
        for part in parts[keep:]:
            self._open.append((part, self._directory(part, self._open[-1][1], entry)))
        return self._open[-1][1]

    def _directory(self, name: str, parent: int, entry: TarEntry) -> int:
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            return _opened(name, parent, entry)
        self.received.directories += 1
        handle = _opened(name, parent, entry)
        os.fchmod(handle, 0o755)
        return handle


def _opened(name: str, parent: int, entry: TarEntry) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except (NotADirectoryError, FileNotFoundError):
        message = "needs a directory where there is a file"
        raise ArchiveRefused("archive-duplicate", entry.name, message) from None


def _made(name: str, parent: int, entry: TarEntry) -> int:
    try:
        return os.open(name, _NEW, 0o600, dir_fd=parent)
    except (FileExistsError, IsADirectoryError):
        raise ArchiveRefused("archive-duplicate", entry.name, "is there twice") from None


async def receive_tar(
    chunks: AsyncIterable[bytes], directory: Path, limits: ReceiverLimits | None = None, *, sealed: bool = False
) -> Received:
    """Write a whole stream below ``directory``, which exists and is empty. Raises ArchiveRefused, OSError."""
    receiver = TarReceiver(directory, limits, sealed=sealed)
    try:
        pieces: list[bytes] = []
        held = 0
        async for chunk in chunks:
            pieces.append(chunk)
            held += len(chunk)
            if held >= _HOP:
                await asyncio.to_thread(_feed, receiver, pieces)
                pieces, held = [], 0
        await asyncio.to_thread(_feed, receiver, pieces)
        return receiver.finish()
    finally:  # when this was cancelled, a thread may still be writing
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, receiver.close))


def _feed(receiver: TarReceiver, pieces: list[bytes]) -> None:
    for piece in pieces:
        receiver.feed(piece)
