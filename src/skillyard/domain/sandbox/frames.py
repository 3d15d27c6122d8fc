"""The host's reader of the guest's channel (the protocol is in :mod:`skillyard.guest`).

Foreign code can write to the channel: every byte is checked against the protocol and the limits before it means
anything, and memory holds one frame at most.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.work.command import Command
from skillyard.values import dataclass

PIECE = 1024 * 1024
"""Most bytes of a blob in one frame."""

_HEAD = 5
_MAX_HEADER = 4096
_MAX_FAILURE = 256 * 1024
_MAX_NOTES = 64 * 1024
_MAX_NUMBER = 2**31 - 1
_MAX_PATH = 1024
MOST_TOLD = 10
_MOST_FORMATS = 100
_FREE_PIECES, _FAIR_PIECE = 4096, 4096
"""Frames D of any size, and the mean size of those after them: each costs the host the same, however small."""

KIND = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,126}/[A-Za-z0-9!#$&^_.+-]{1,126}(?:;[\x20-\x7e]{1,200})?")
"""A MIME type (RFC 6838 §4.2), with parameters perhaps."""


class FrameFault(Exception):
    """The channel breaks the protocol or a limit; the message is one sentence about how."""


class ResultFault(FrameFault):
    """A result is not a JSON object that can be passed on. Honest code may cause it: nesting, numbers."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The bounds of one run's frames.

    They bound blobs, bytes of all blobs, open blobs and bytes of the result; of the blobs that are files in
    ``/workspace/out`` their number, the bytes of each and the bytes of all. Only services tell ``states``, and
    only cells that may show values have ``shows``.
    """

    blobs: int = 1000
    blob_bytes: int = 4 * 1024**3
    open_blobs: int = 32
    result_bytes: int = 16 * 1024 * 1024
    files: int = 100
    file_bytes: int = 64 * 1024 * 1024
    files_bytes: int = 256 * 1024 * 1024
    states: int = 0
    shows: int = 0


MOST_STATES = 4096
DEFAULT_LIMITS = FrameLimits()


@dataclass(frozen=True, slots=True)
class FrameFamilies:
    """The bounds of skills and code, and those of commands."""

    runs: FrameLimits = DEFAULT_LIMITS
    commands: FrameLimits = DEFAULT_LIMITS

    def of(self, command: Command | None) -> FrameLimits:
        """Returns the bounds of a run; ``command`` is None where it is not one."""
        if command is None:
            return self.runs
        return self.commands if command.service is None else replace(self.commands, states=MOST_STATES)


@dataclass(frozen=True, slots=True)
class FramePlace:
    """A place between two frames where no blob is open, for a reader that goes on from there.

    ``offset`` is that of the channel; the others count the frames before it.
    """

    offset: int = 0
    last: int = 0
    blobs: int = 0
    ended: int = 0
    bytes: int = 0
    pieces: int = 0


START = FramePlace()


@dataclass(frozen=True, slots=True)
class BlobBegin:
    """The start of a blob. ``path`` is that of a file that the run left, relative and plain; empty for other blobs."""

    n: int
    kind: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class BlobData:
    n: int
    data: bytes


@dataclass(frozen=True, slots=True)
class BlobEnd:
    """Blob ``n`` is complete; ``size`` is what the reader counted."""

    n: int
    size: int


@dataclass(frozen=True, slots=True)
class BlobAbandon:
    """Blob ``n`` does not exist after all."""

    n: int


@dataclass(frozen=True, slots=True)
class Result:
    """The value that the entrypoint returned, in JSON as it came."""

    raw: bytes

    def value(self) -> dict[str, Any]:
        """The object. Lone surrogates have become U+FFFD, of equal keys the last counts, every number is finite.
        Raises ResultFault."""
        try:
            value = parse_json(self.raw)
        except BadJson as bad:
            raise ResultFault(f"the result cannot be passed on: {bad}") from None
        if not isinstance(value, dict):
            raise ResultFault("the result is not a JSON object")
        return value


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception that ended the call. ``type`` is an identifier; ``errno`` is that of an OSError."""

    type: str
    message: str
    traceback: str = ""
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class Notes:
    """The guest's report about the run beside its result, in foreign words except ``lost``.

    ``script``: no function was called. ``skipped``: files that are not sent, each with the reason. ``others``: files
    elsewhere in the working directory. ``more``: the number of further files of both kinds. ``stack``: the last stack
    of a program that was ended. ``lost``, which we set: nobody could look.
    """

    script: bool = False
    skipped: tuple[tuple[str, str], ...] = ()
    others: tuple[str, ...] = ()
    more: int = 0
    stack: str = ""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """How a service goes, in its own words.

    ``restarts`` counts how often it was started again, ``exit_code`` is that of its last end.
    """

    ready: bool
    restarts: int
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Shown:
    """A value that a cell shows: foreign forms by their MIME types. ``main`` is that of its last expression."""

    main: bool
    formats: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorText:
    """A piece of the standard error of a cell that shows values."""

    data: bytes


Frame = Shown | ErrorText | BlobBegin | BlobData | BlobEnd | BlobAbandon | Notes | State | Result | Failure


class FrameReader:
    """Reads frames from the channel's bytes.

    The frames and the fault do not depend on how the bytes are cut.
    """

    def __init__(self, limits: FrameLimits = DEFAULT_LIMITS, place: FramePlace = START) -> None:
        self._limits = limits
        self.place = place
        """The last one that was passed, before any file of the run."""
        self._offset = place.offset
        self._buffer = bytearray()
        self._fault: FrameFault | None = None
        self._final: Result | Failure | None = None
        self._open: dict[int, int] = {}
        self._last = place.last
        self._blobs, self._ended = place.blobs, place.ended
        self._bytes, self._pieces = place.bytes, place.pieces
        self._told_notes = False
        self._states, self._state_before = 0, State(ready=False, restarts=0, exit_code=None)
        self._paths: set[str] = set()
        self._files: dict[int, int] = {}
        """Bytes of the open blobs that are files."""
        self._files_bytes = 0
        self._readers: dict[int, tuple[int, Callable[[bytes], Frame]]] = {
            ord("B"): (_MAX_HEADER, self._begin),
            ord("D"): (PIECE + 4, self._data),
            ord("E"): (_MAX_HEADER, self._end),
            ord("A"): (_MAX_HEADER, self._abandon),
            ord("N"): (_MAX_NOTES, self._notes),
            ord("R"): (limits.result_bytes, Result),
            ord("X"): (_MAX_FAILURE, _failure),
        }
        if limits.states:
            self._readers[ord("S")] = (_MAX_HEADER, self._state)
        if limits.shows:
            self._readers[ord("V")] = (limits.result_bytes, self._shown)
            self._readers[ord("T")] = (PIECE, ErrorText)
        self._shows = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes. Those before a fault are given; what comes after it raises
        FrameFault, and so does :meth:`finish`."""
        if self._fault is not None:
            raise self._fault
        self._buffer += data
        frames: list[Frame] = []
        try:
            self._take_all(frames)
        except FrameFault as fault:
            self._fault = fault
            self._buffer.clear()
        return frames

    def finish(self) -> Result | Failure | None:
        """Returns the last frame, by which the run says how it ended.

        Returns None when it said nothing, as a killed one does, half a frame or not. Raises FrameFault.
        """
        if self._fault is not None:
            raise self._fault
        return self._final

    def _take_all(self, frames: list[Frame]) -> None:
        start = 0
        try:
            while (end := self._frame_end(start)) is not None:
                read = self._readers[self._buffer[start]][1]
                frame = read(bytes(memoryview(self._buffer)[start + _HEAD : end]))
                start = end
                frames.append(frame)
                if isinstance(frame, Result | Failure):
                    self._final = frame
                if not self._open and isinstance(frame, BlobEnd | BlobAbandon):
                    self._pass(self._offset + start)
        finally:
            self._offset += start
            del self._buffer[:start]

    def _pass(self, offset: int) -> None:
        if not self._paths and not self._told_notes:
            counts = (self._last, self._blobs, self._ended, self._bytes, self._pieces)
            self.place = FramePlace(offset, *counts)

    def _frame_end(self, start: int) -> int | None:
        """Where the frame at ``start`` ends; None when it is not complete yet."""
        if start == len(self._buffer):
            return None
        if self._final is not None:
            raise FrameFault("something was written to the channel after the last frame")
        if self._buffer[start] not in self._readers:
            raise FrameFault(f"the channel has a frame of the unknown type 0x{self._buffer[start]:02x}")
        if len(self._buffer) < start + _HEAD:
            return None
        length = int.from_bytes(self._buffer[start + 1 : start + _HEAD], "big")
        allowed = self._readers[self._buffer[start]][0]
        if length > allowed:
            raise FrameFault(f"a frame {chr(self._buffer[start])} is {length} bytes long, and {allowed} is the limit")
        end = start + _HEAD + length
        return end if end <= len(self._buffer) else None

    def _begin(self, payload: bytes) -> BlobBegin:
        header = _header(payload, "B")
        n, kind = _integer(header, "n", "B"), header.get("kind")
        if not self._last < n <= _MAX_NUMBER:
            raise FrameFault(f"blob {n} begins after blob {self._last}")
        if not isinstance(kind, str) or not KIND.fullmatch(kind):
            raise FrameFault(f"the kind of blob {n} is not a MIME type")
        if self._blobs >= self._limits.blobs:
            raise FrameFault(f"the run writes more than {self._limits.blobs} blobs")
        if len(self._open) >= self._limits.open_blobs:
            raise FrameFault(f"the run writes more than {self._limits.open_blobs} blobs at once")
        path = header.get("path", "")
        if "path" in header:
            self._check_file(path)
            self._files[n] = 0
        self._last = n
        self._blobs += 1
        self._open[n] = 0
        return BlobBegin(n, kind, path)

    def _check_file(self, path: object) -> None:
        if not isinstance(path, str) or not is_plain_path(path):
            raise FrameFault("a file has a path that cannot be passed on")
        if path in self._paths:
            raise FrameFault("a file comes twice")
        self._paths.add(path)
        if len(self._paths) > self._limits.files:
            raise FrameFault(f"the run leaves more than {self._limits.files} files")

    def _data(self, payload: bytes) -> BlobData:
        n, size = int.from_bytes(payload[:4], "big"), len(payload) - 4
        if size < 1:
            raise FrameFault("a frame D holds no data")
        if n not in self._open:
            raise FrameFault(f"data for blob {n}, which is not open")
        self._bytes += size
        self._pieces += 1
        if self._pieces > _FREE_PIECES + self._bytes // _FAIR_PIECE:
            raise FrameFault("the blobs of the run come in too many small pieces")
        if self._bytes > self._limits.blob_bytes:
            raise FrameFault(f"the blobs of the run are together larger than {self._limits.blob_bytes} bytes")
        self._open[n] += size
        if n in self._files:
            self._files[n] += size
            self._files_bytes += size
            if self._files[n] > self._limits.file_bytes or self._files_bytes > self._limits.files_bytes:
                raise FrameFault("the files that the run left are larger than is allowed")
        return BlobData(n, payload[4:])

    def _end(self, payload: bytes) -> BlobEnd:
        header = _header(payload, "E")
        n, size = _integer(header, "n", "E"), _integer(header, "size", "E")
        counted = self._close(n)
        self._ended += 1
        if size != counted:
            raise FrameFault(f"blob {n} ends as {size} bytes, and {counted} came")
        return BlobEnd(n, size)

    def _abandon(self, payload: bytes) -> BlobAbandon:
        n = _integer(_header(payload, "A"), "n", "A")
        self._close(n)
        return BlobAbandon(n)

    def _notes(self, payload: bytes) -> Notes:
        if self._told_notes:
            raise FrameFault("a second frame N")
        self._told_notes = True
        header = _header(payload, "N")
        skipped, others, more = header.get("skipped", []), header.get("others", []), header.get("more", 0)
        for rows in (skipped, others):
            if not isinstance(rows, list) or len(rows) > MOST_TOLD:
                raise FrameFault("a frame N tells of too many files")
        if not all(isinstance(row, list) and len(row) == 2 and all(isinstance(w, str) for w in row) for row in skipped):
            raise FrameFault("a frame N tells of what are not files")
        if not all(isinstance(row, str) for row in others) or type(more) is not int or not 0 <= more < 2**31:
            raise FrameFault("a frame N tells of what are not files")
        rows = tuple((path, why) for path, why in skipped)
        stack = _text(header.get("stack"))
        return Notes(header.get("script") is True, rows, tuple(others), more, stack)

    def _state(self, payload: bytes) -> State:
        self._states += 1
        if self._states > self._limits.states:
            raise FrameFault(f"the service tells more than {self._limits.states} states")
        if payload:
            header = _header(payload, "S")
            code = header.get("exit_code")
            known = type(code) is int and 0 <= code <= 255
            ready, restarts = header.get("ready") is True, _integer(header, "restarts", "S")
            self._state_before = State(ready, restarts, code if known else None)
        return self._state_before

    def _shown(self, payload: bytes) -> Shown:
        self._shows += 1
        if self._shows > self._limits.shows:
            raise FrameFault(f"the cell shows more than {self._limits.shows} values")
        header = _header(payload, "V")
        formats = header.get("formats")
        if not isinstance(formats, dict) or len(formats) > _MOST_FORMATS:
            raise FrameFault("a frame V has no forms of a value, or too many")
        return Shown(header.get("main") is True, formats)

    def _close(self, n: int) -> int:
        if n not in self._open:
            raise FrameFault(f"an end of blob {n}, which is not open")
        return self._open.pop(n)


def is_plain_path(path: str) -> bool:
    """Returns whether ``path`` names a file below a directory on every system, without hiding."""
    if not path.isprintable() or "\\" in path or len(path.encode("utf-8", "replace")) > _MAX_PATH:
        return False
    return all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= 255 for part in path.split("/"))


def _failure(payload: bytes) -> Failure:
    report = _header(payload, "X")
    name, number = report.get("type"), report.get("errno")
    return Failure(
        type=name if isinstance(name, str) and len(name) <= 128 and name.isidentifier() else "Exception",
        message=_text(report.get("message")),
        traceback=_text(report.get("traceback")),
        errno=number if type(number) is int and 0 < number < 4096 else None,
    )


def _header(payload: bytes, type_: str) -> dict[str, Any]:
    try:
        value = parse_json(payload)
    except BadJson as bad:
        raise FrameFault(f"the payload of a frame {type_} cannot be read: {bad}") from None
    if not isinstance(value, dict):
        raise FrameFault(f"the payload of a frame {type_} is not a JSON object")
    return value


def _integer(header: dict[str, Any], name: str, type_: str) -> int:
    value = header.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise FrameFault(f"'{name}' of a frame {type_} is not a count")
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
