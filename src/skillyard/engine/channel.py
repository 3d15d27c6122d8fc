"""The channel of a run: frames of the guest, sorted into blobs, the result and the error.

Foreign code can write to the channel too, so a frame is checked before it is believed (see
:mod:`skillyard.guest`), and what breaks the rules ends the run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from skillyard.engine.collect import BlobSink, violation
from skillyard.engine.failure import Failure
from skillyard.engine.output import Unfit, parse_result

_HEAD = 5
_PIECE = 1024 * 1024 + 4
_LARGEST = {b"B": 4096, b"E": 4096, b"A": 4096, b"D": _PIECE, b"R": 64 * 1024 * 1024, b"X": 1024 * 1024}


@dataclass(frozen=True, slots=True)
class Raised:
    """What the guest says of an exception."""

    type: str
    message: str = ""
    traceback: str = ""
    errno: int | None = None


class Channel:
    """Fed with the bytes of the channel as they come. ``result`` means something once ``has_result`` is set.

    ``unfit`` says why a result is none. ``feed`` raises Broken for what breaks the rules.
    """

    def __init__(self, sink: BlobSink) -> None:
        self.sink = sink
        self.has_result = False
        self.result: Any = None
        self.result_bytes = 0
        self.unfit: Failure | None = None
        self.error: Raised | None = None
        self._pending = bytearray()

    async def feed(self, data: bytes) -> None:
        pending = self._pending
        pending += data
        start = 0
        while len(pending) - start >= _HEAD and not self._over:
            kind = bytes(pending[start : start + 1])
            size = int.from_bytes(pending[start + 1 : start + _HEAD], "big")
            if size > _LARGEST.get(kind, -1):
                raise violation("a frame of an unknown type or size")
            end = start + _HEAD + size
            if len(pending) < end:
                break
            await self._take(kind, bytes(pending[start + _HEAD : end]))
            start = end
        del pending[:start]
        if self._over:
            pending.clear()

    @property
    def _over(self) -> bool:
        """R and X are the last frames; what comes behind them is nobody's."""
        return self.has_result or self.error is not None

    async def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == b"D":
            if len(payload) < 4:
                raise violation("a piece of no blob")
            await self.sink.piece(int.from_bytes(payload[:4], "big"), payload[4:])
        elif kind == b"R":
            self._returned(payload)
        elif kind == b"X":
            self.error = _raised(_object(payload))
        elif kind == b"B":
            fields = _object(payload)
            self.sink.begin(_number(fields, "n"), _text(fields, "kind"))
        elif kind == b"E":
            fields = _object(payload)
            await self.sink.end(_number(fields, "n"), _number(fields, "size"))
        else:
            await self.sink.abandon(_number(_object(payload), "n"))

    def _returned(self, payload: bytes) -> None:
        self.has_result, self.result_bytes = True, len(payload)
        try:
            self.result = parse_result(payload)
        except Unfit as unfit:
            self.unfit = unfit.failure


def _raised(fields: dict[str, Any]) -> Raised:
    errno = fields.get("errno")
    texts = (fields.get(name, "") for name in ("type", "message", "traceback"))
    type_, message, traceback = (text if isinstance(text, str) else "" for text in texts)
    return Raised(type_, message, traceback, errno if isinstance(errno, int) else None)


def _object(payload: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise violation("a frame that holds no JSON object")
    return fields


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise violation(f"a frame without a valid '{name}'")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise violation(f"a frame without a valid '{name}'")
    return value
