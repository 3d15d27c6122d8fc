"""The log of a command, in which marks tell stdout from stderr. All of it is hostile.

:mod:`skillyard.guest.programs.follower` writes it.

A NUL and a digit are a mark: 1 and 2 begin a stream, 0 stands for a NUL of the output. Another byte behind a NUL is
taken for output.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from skillyard.engine.secrets.redact import Redaction, Redactor
from skillyard.engine.text import cut_tail

STDOUT, STDERR = "stdout", "stderr"
MARK_EVERY = 64 * 1024
"""Bytes of a log, within which there is a mark: so far back a reader looks who begins in the middle."""
_STREAMS = {ord("1"): STDOUT, ord("2"): STDERR}
_MARKS = {STDOUT: b"\x001", STDERR: b"\x002"}
_NUL, _ESCAPED = b"\0", b"\x000"
_PIECE = MARK_EVERY // 4


class Unmarker:
    """Reads a log piece by piece. ``stream`` is the one that the next byte belongs to."""

    __slots__ = ("_half", "stream")

    def __init__(self, stream: str = STDOUT) -> None:
        self.stream = stream
        self._half = b""

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Yields the output with the name of its stream. A mark that is cut waits for its rest."""
        data, self._half = self._half + data, b""
        if data.endswith(_NUL):
            data, self._half = data[:-1], _NUL
        first, *others = data.split(_NUL)
        if first:
            yield self.stream, first
        for part in others:
            if part[:1] == b"0":
                yield self.stream, _NUL + part[1:]
                continue
            begun = _STREAMS.get(part[0]) if part else None
            if begun is None:
                yield self.stream, _NUL + part
                continue
            self.stream = begun
            if len(part) > 1:
                yield begun, part[1:]

    def plain(self, data: bytes) -> bytes:
        """Returns the output of both streams as it came."""
        return b"".join(piece for _, piece in self.feed(data))


class Marker:
    """Writes such a log."""

    __slots__ = ("_stream", "_unmarked")

    def __init__(self) -> None:
        self._stream = STDOUT
        self._unmarked = 0

    def add(self, out: bytearray, stream: str, data: bytes) -> None:
        """Adds output of ``stream`` to ``out``."""
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE]
            if stream != self._stream or self._unmarked + len(piece) > _PIECE:
                out += _MARKS[stream]
                self._stream, self._unmarked = stream, 0
            self._unmarked += len(piece)
            out += piece.replace(_NUL, _ESCAPED)


class MarkedRedactor(Redactor):
    """Replaces secrets in each stream by itself.

    Output of the other one may lie between two parts of a secret.
    """

    __slots__ = ("_marker", "_reader", "_shown", "_streams")

    def __init__(self, redaction: Redaction) -> None:
        super().__init__(None, 1)
        self._reader, self._marker, self._shown = Unmarker(), Marker(), Unmarker()
        self._streams = {STDOUT: redaction.stream(), STDERR: redaction.stream()}

    @property
    def idle(self) -> bool:
        return False

    def feed(self, data: bytes) -> bytes:
        out = bytearray()
        for stream, piece in self._reader.feed(data):
            self._marker.add(out, stream, self._streams[stream].feed(piece))
        return bytes(out)

    def flush(self) -> bytes:
        out = bytearray()
        for stream, redactor in self._streams.items():
            self._marker.add(out, stream, redactor.flush())
        return bytes(out)

    def break_off(self) -> int:
        """The next mark tells the stream that goes on behind a gap; it counts as stdout before."""
        self._reader = Unmarker()
        return sum([redactor.break_off() for redactor in self._streams.values()])

    def shown(self, data: bytes) -> bytes:
        return self._shown.plain(data)


class Marked(Redaction):
    """The secrets of a command, as its log is read."""

    __slots__ = ("_of",)

    def __init__(self, of: Redaction) -> None:
        super().__init__()
        self._of = of
        self.empty = False

    def stream(self, covered: int = 0) -> Redactor:  # noqa: ARG002 - it is read from its start
        return MarkedRedactor(self._of)


@dataclass(slots=True)
class Tail:
    """The end of one stream: its last ``most`` bytes. ``size`` counts all of them."""

    most: int
    size: int = 0
    data: bytes = b""

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        self.data = data[-self.most :] if len(data) >= self.most else (self.data + data)[-self.most :]

    @property
    def truncated(self) -> bool:
        return self.size > self.most

    def text(self) -> str:
        """Returns the end as text; bytes that are none show as U+FFFD."""
        return (cut_tail(self.data) if self.truncated else self.data).decode("utf-8", "replace")


async def tails_of(pieces: AsyncIterator[bytes], most: dict[str, int]) -> dict[str, Tail]:
    """Returns the ends of both streams of a log, ``most`` bytes of each. It holds no more than that in memory."""
    reader = Unmarker()
    tails = {stream: Tail(most[stream]) for stream in (STDOUT, STDERR)}
    async for data in pieces:
        for stream, piece in reader.feed(data):
            tails[stream].feed(piece)
    return tails
