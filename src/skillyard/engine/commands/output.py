"""The log of a command, in which marks tell stdout from stderr. All of it is hostile.

:mod:`skillyard.guest.programs.follower` writes it.

A NUL and a digit are a mark: 1 and 2 begin a stream, 0 stands for a NUL of the output. Another byte behind a NUL is
taken for output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from operator import le

from skillyard.domain.work.record import LOG_START, LogPlace, StreamPlaces
from skillyard.engine.secrets.redact import Redaction, Redactor
from skillyard.values import dataclass

STDOUT, STDERR = "stdout", "stderr"
MARK_EVERY = 64 * 1024
"""Bytes of a log, within which there is a mark: so far back a reader looks who begins in the middle."""
BOTH = (STDOUT, STDERR)
_STREAMS = {ord("1"): STDOUT, ord("2"): STDERR}
_MARKS = {STDOUT: b"\x001", STDERR: b"\x002"}
_NUL, _ESCAPED = b"\0", b"\x000"
_PIECE = MARK_EVERY // 4
_LOOK_EVERY = 64 * 1024
"""Bytes of a log, after which a reading notes where it could be gone on with."""


class Unmarker:
    """Reads a log piece by piece. ``stream`` is the one that the next byte belongs to."""

    __slots__ = ("_half", "stream")

    def __init__(self, stream: str = STDOUT) -> None:
        self.stream = stream
        self._half = b""

    @property
    def held(self) -> int:
        """Returns the number of bytes that wait for the rest of their mark."""
        return len(self._half)

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


def stream_at(before: bytes) -> str:
    """Returns the stream that goes on behind ``before``.

    These are bytes of a log with at least one mark among them, or its start.
    """
    reader = Unmarker(STDOUT)
    reader.plain(before)
    return reader.stream


class Marker:
    """Writes such a log. However the output is cut into pieces, the log of it is the same."""

    __slots__ = ("stream", "unmarked")

    def __init__(self, stream: str = STDOUT, unmarked: int = 0) -> None:
        self.stream = stream
        self.unmarked = unmarked

    def add(self, out: bytearray, stream: str, data: bytes) -> None:
        """Adds output of ``stream`` to ``out``."""
        at = 0
        while at < len(data):
            if stream != self.stream or self.unmarked == _PIECE:
                out += _MARKS[stream]
                self.stream, self.unmarked = stream, 0
            piece = data[at : at + _PIECE - self.unmarked]
            at += len(piece)
            self.unmarked += len(piece)
            out += piece.replace(_NUL, _ESCAPED)


@dataclass(frozen=True, slots=True)
class _Look:
    """A place in a log: the stream of its next byte, and the bytes of both streams before it."""

    offset: int
    stream: str
    fed: tuple[int, int]


class MarkedRedactor(Redactor):
    """Replaces secrets in each stream by itself.

    Output of the other one may lie between two parts of a secret.
    """

    __slots__ = ("_fed", "_given", "_looks", "_marker", "_read", "_reader", "_shown", "_streams")

    def __init__(self, redaction: Redaction, place: LogPlace = LOG_START) -> None:
        """It reads a log from its start, or goes on at ``place`` of another reading."""
        super().__init__(None, 1)
        at = place.streams
        self._read = place.offset
        self._reader, self._marker, self._shown = Unmarker(at.stream), Marker(at.written, at.unmarked), Unmarker()
        self._streams = {name: redaction.stream(covered) for name, covered in zip(BOTH, at.covered, strict=True)}
        self._given = dict(zip(BOTH, at.given, strict=True))
        """Bytes of each stream that the other reading handed on, and that are passed over."""
        self._fed = dict.fromkeys(BOTH, 0)
        self._looks: deque[_Look] = deque([_Look(self._read, at.stream, (0, 0))])

    @property
    def idle(self) -> bool:
        return False

    def feed(self, data: bytes) -> bytes:
        out = bytearray()
        self._read += len(data)
        for stream, piece in self._reader.feed(data):
            self._fed[stream] += len(piece)
            if given := self._given[stream]:
                self._given[stream] = max(0, given - len(piece))
                piece = piece[given:]
            self._marker.add(out, stream, self._streams[stream].feed(piece))
        if self._read - self._looks[-1].offset >= _LOOK_EVERY:
            self._look()
        return bytes(out)

    def flush(self) -> bytes:
        out = bytearray()
        for stream, redactor in self._streams.items():
            self._marker.add(out, stream, redactor.flush())
        return bytes(out)

    def place(self, read: int) -> LogPlace:
        """Returns a place up to which both streams were handed on.

        A reading that goes on there passes over output of one stream that was handed on behind it.
        """
        self._look()
        handed = [self._fed[name] + self._given[name] - self._streams[name].held for name in BOTH]
        while len(self._looks) > 1 and all(map(le, self._looks[1].fed, handed)):
            self._looks.popleft()
        look = self._looks[0]
        at = StreamPlaces(
            look.stream,
            (handed[0] - look.fed[0], handed[1] - look.fed[1]),
            (self._streams[STDOUT].covered, self._streams[STDERR].covered),
            self._marker.stream,
            self._marker.unmarked,
        )
        return LogPlace(read - (self._read - look.offset), streams=at)

    def mark(self) -> None:
        self._marker.unmarked = _PIECE

    def aside(self, text: bytes) -> bytes:
        out = bytearray()
        self._marker.add(out, self._marker.stream, text)
        return bytes(out)

    def break_off(self) -> int:
        """The next mark tells the stream that goes on behind a gap; it counts as stdout before."""
        self._reader, self._given = Unmarker(), dict.fromkeys(BOTH, 0)
        self._looks.clear()
        self._look()
        return sum([redactor.break_off() for redactor in self._streams.values()])

    def shown(self, data: bytes) -> bytes:
        return self._shown.plain(data)

    def _look(self) -> None:
        offset = self._read - self._reader.held
        self._looks.append(_Look(offset, self._reader.stream, (self._fed[STDOUT], self._fed[STDERR])))


class Marked(Redaction):
    """The secrets of a command, as its log is read."""

    __slots__ = ("_of",)

    def __init__(self, of: Redaction) -> None:
        super().__init__()
        self._of = of
        self.empty = False

    def stream(self, covered: int = 0) -> Redactor:  # noqa: ARG002 - it is read from its start
        return MarkedRedactor(self._of)

    def resumed(self, place: LogPlace) -> Redactor:
        return MarkedRedactor(self._of, place)

    def done(self) -> Redaction:
        return _Done()


class _Done(Redaction):
    """No secrets, in a log with marks."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.empty = False

    def stream(self, covered: int = 0) -> Redactor:  # noqa: ARG002 - there are no secrets
        return _Unmarking()


class _Unmarking(Redactor):
    __slots__ = ("_marks",)

    def __init__(self) -> None:
        super().__init__(None, 1)
        self._marks = Unmarker()

    def shown(self, data: bytes) -> bytes:
        return self._marks.plain(data)
