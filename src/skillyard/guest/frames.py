"""The writer of the channel: frames as :mod:`skillyard.guest` describes them."""

from __future__ import annotations

import io
import os
from _thread import allocate_lock

PIECE = 64 * 1024
"""Bytes of a blob in one frame; the protocol allows 1 MiB."""
_BUFFER = PIECE + 64
_MAX_PAYLOAD = 0xFFFF_FFFF

_getpid, _write = os.getpid, os.write  # foreign code may replace what it finds in os


class Channel:
    """Writes whole frames, from any thread of the one process that the run started in.

    A signal handler of foreign code may raise while a frame is being written. The rest of the frame is then still in
    the buffer, which is as large as a frame, and the next frame goes behind it.
    """

    def __init__(self) -> None:
        self.fd = self._pid = -1
        self._file: io.BufferedWriter | None = None
        self._lock = allocate_lock()
        self._ended = False

    def open(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self.fd, self._pid = fd, _getpid()

    def is_ours(self) -> bool:
        """False in a process that was forked off later: its frames would mix with ours."""
        return _getpid() == self._pid

    def send(self, kind: bytes, *parts: bytes | memoryview, taken: list[int] | None = None) -> None:
        """Send a frame whose payload are ``parts``, at most a piece with its number.

        Raises RuntimeError in a child process and after the last frame, OSError when nobody listens. ``taken`` is
        empty afterwards if an exception came before the frame was on its way for good.
        """
        if not self.is_ours():
            raise RuntimeError(
                "blobs can be written only by the process that the run started in; return the data to it instead"
            )
        frame = b"".join((_head(kind, sum(map(len, parts))), *parts))
        with self._lock:
            if self._ended:
                raise RuntimeError("the run has ended")
            file = self._buffered()
            ([] if taken is None else taken).extend(map(file.write, (frame,)))  # one step, which no signal divides
            file.flush()

    def finish(self, kind: bytes, payload: bytes, notes: bytes = b"", end: bytes = b"") -> None:
        """Sends ``notes``, the last frame and ``end``, whatever handlers of pending signals raise. Raises OSError."""
        before = _head(b"N", len(notes)) + notes if notes else b""
        frame = memoryview(before + _head(kind, len(payload)) + payload + end)
        while True:
            try:
                with self._lock:
                    self._ended = True
                    if self._file is None and len(frame) <= PIECE:
                        frame = frame[_write(self.fd, frame) :]
                    while frame:
                        self._buffered().flush()
                        piece, frame = frame[:PIECE], frame[PIECE:]
                        self._buffered().write(piece)
                    if self._file is not None:
                        self._file.flush()
                return
            except OSError:
                raise
            except BaseException:  # noqa: BLE001, S112 - a signal handler of foreign code; the frame must be whole
                continue

    def _buffered(self) -> io.BufferedWriter:
        if self._file is None:
            self._file = io.BufferedWriter(io.FileIO(self.fd, "wb", closefd=False), _BUFFER)
        return self._file


def _head(kind: bytes, length: int) -> bytes:
    if length > _MAX_PAYLOAD:
        raise ValueError("a frame holds at most 4 GiB")
    return kind + length.to_bytes(4, "big")
