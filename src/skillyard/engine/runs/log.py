"""The log of a run: kept as a blob, shown as a preview."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from skillyard.domain.errors import SkillyardError
from skillyard.engine.runs.collect import INLINE, BlobTarget
from skillyard.engine.secrets.redact import Redaction
from skillyard.engine.text import cut_head, cut_tail

MAX = 2048
HEAD = 512


class Preview:
    """The short form of a log: its first 512 bytes, a marker and its end.

    Rows 4 and 9 of skills-protocol §4. It is fed piece by piece and keeps only the bytes that :meth:`text` needs.
    """

    __slots__ = ("_head", "_tail", "size")

    def __init__(self) -> None:
        self.size = 0
        self._head = b""
        self._tail = b""

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        if len(self._head) < MAX:
            self._head = (self._head + data)[:MAX]
        self._tail = data[-MAX:] if len(data) >= MAX else (self._tail + data)[-MAX:]

    def text(self) -> str:
        """At most 2,048 bytes of UTF-8; bytes that are none show as U+FFFD."""
        whole = _valid(self._head)
        if self.size <= MAX and len(whole) <= MAX:
            return whole.decode()
        head = cut_head(whole[:HEAD])
        room = MAX - HEAD - len(_marker(self.size))
        tail = cut_tail(_valid(cut_tail(self._tail))[-room:])
        left_out = max(0, self.size - len(head) - len(tail))
        return (head + _marker(left_out) + tail).decode()


def _valid(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode()


def _marker(left_out: int) -> bytes:
    return f"\n[... {left_out} bytes left out ...]\n".encode()


@dataclass(frozen=True, slots=True)
class Log:
    """A kept log.

    ``blob`` is the whole log, None when it is empty or could not be kept; ``problem`` says why.
    """

    preview: str = ""
    blob: str | None = None
    problem: str = ""


NO_LOG = Log()


async def keep_log(source: AsyncIterator[bytes], redaction: Redaction, target: BlobTarget) -> Log:
    """Store a log, redacted, and give its preview. Small logs go in one piece."""
    preview = Preview()
    pieces = _tapped(source, redaction, preview)
    start = bytearray()
    async for piece in pieces:
        start += piece
        if len(start) > INLINE:
            break
    if not start:
        return NO_LOG
    data = bytes(start) if len(start) <= INLINE else _joined(bytes(start), pieces)
    blob_id = target.named("log")
    if (before := await target.stored(blob_id)) is not None:
        async for _ in pieces:  # the preview is still wanted
            pass
        return Log(preview.text(), before.blob_id)
    try:
        info = await target.create(blob_id, "text/plain", data)
    except SkillyardError as error:
        async for _ in pieces:  # the preview is still wanted
            pass
        return Log(preview.text(), None, f"the full log was not kept: {error.message}")
    return Log(preview.text(), info.blob_id)


async def _tapped(source: AsyncIterator[bytes], redaction: Redaction, preview: Preview) -> AsyncIterator[bytes]:
    if redaction.empty:
        async for data in source:
            preview.feed(data)
            yield data
        return
    redactor = redaction.stream()
    async for data in source:
        piece = redactor.feed(data)
        preview.feed(redactor.shown(piece))
        yield piece
    rest = redactor.flush()
    preview.feed(redactor.shown(rest))
    yield rest


async def _joined(start: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for piece in rest:
        yield piece
