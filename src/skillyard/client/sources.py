"""Where a blob's bytes come from and go to, in constant memory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, cast

from skillyard.client.errors import BadArgument

if TYPE_CHECKING:
    from skillyard.client.transport import Offloading

    Source = bytes | str | os.PathLike[str] | IO[bytes] | AsyncIterable[bytes] | Iterable[bytes]
    Sink = str | os.PathLike[str] | IO[bytes]
    Pieces = bytes | Callable[[int], bytes] | AsyncIterable[bytes] | Iterable[bytes]
    Progress = Callable[[int, int | None], None]

CHUNK = 256 * 1024


class Upload:
    """A body to send: ``length`` is None where only reading to the end would tell.

    A ``str`` is a path. Use as a context manager: a file that it opened is closed at its end.
    """

    def __init__(self, source: Source, worker: Offloading, progress: Progress | None = None) -> None:
        self._worker = worker
        self._progress = progress
        self._opened: IO[bytes] | None = None
        self.length: int | None = None
        self._source = self._open(source)

    def _open(self, source: Source) -> Pieces:
        if isinstance(source, (bytes, bytearray, memoryview)):
            self.length = len(source)
            return bytes(source)
        if isinstance(source, (str, os.PathLike)):
            self._opened = source = _opened(Path(source))
        if not hasattr(source, "read"):
            return cast("Pieces", source)
        file = cast("IO[bytes]", source)
        self.length = _remaining(file)
        return file.read

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            self._opened.close()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes; each piece is reported once the next one is asked for, so after it was sent."""
        done = 0
        async for chunk in self._pieces():
            yield chunk
            done += len(chunk)
            if self._progress:
                self._progress(done, self.length)

    async def _pieces(self) -> AsyncIterator[bytes]:
        source = self._source
        if isinstance(source, bytes):
            for start in range(0, len(source), CHUNK):
                yield source[start : start + CHUNK]
        elif callable(source):
            while chunk := await self._worker.offload(partial(source, CHUNK)):
                yield chunk
        elif isinstance(source, AsyncIterable):
            async for chunk in source:
                yield chunk
        else:
            for chunk in source:
                yield chunk


class Download:
    """A sink for a blob. A path appears whole or not at all: bytes go to a file beside it first."""

    def __init__(self, sink: Sink, worker: Offloading) -> None:
        self._worker = worker
        self._path: Path | None = None
        if isinstance(sink, (str, os.PathLike)):
            self._path = Path(sink)
            self._part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
            self._file: IO[bytes] = _opened(self._part, "xb")
        else:
            self._file = sink

    async def write(self, chunk: bytes) -> None:
        await self._worker.offload(lambda: self._file.write(chunk))

    def keep(self) -> None:
        """All came: put the file in its place."""
        if self._path is not None:
            self._file.close()
            self._part.replace(self._path)

    def discard(self) -> None:
        """Not all came: leave nothing. No effect after :meth:`keep`."""
        if self._path is not None and not self._file.closed:
            self._file.close()
            self._part.unlink(missing_ok=True)


async def save(
    chunks: AsyncIterable[bytes], sink: Sink, worker: Offloading, progress: Progress | None, total: int | None
) -> int:
    """Writes chunks to a sink and returns how many bytes came. A path appears whole or not at all."""
    target, done = Download(sink, worker), 0
    try:
        async for chunk in chunks:
            await target.write(chunk)
            done += len(chunk)
            if progress:
                progress(done, total)
        target.keep()
    finally:
        target.discard()
    return done


def _opened(path: Path, mode: Literal["rb", "xb"] = "rb") -> IO[bytes]:
    try:
        return path.open(mode)
    except OSError as error:
        raise BadArgument(f"{path}: {error.strerror}") from error


def _remaining(file: IO[bytes]) -> int | None:
    """Bytes from the file's position to its end; None for pipes and the like."""
    try:
        if not file.seekable():
            return None
        here = file.tell()
        end = file.seek(0, os.SEEK_END)
        file.seek(here)
    except (OSError, AttributeError):
        return None
    return end - here
