"""The ends of both streams of a command: of one that has ended, and of one at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Protocol

from skillyard.engine.commands.output import BOTH, MARK_EVERY, STDOUT, Unmarker
from skillyard.engine.tasks import Tasks
from skillyard.engine.text import cut_tail
from skillyard.values import dataclass


class Kept(Protocol):
    """A log at work that can be read where it is kept."""

    async def page(self, offset: int, most: int, first_s: float) -> tuple[bytes, int, str]:
        """Returns bytes from ``offset`` on, and the stream that they begin in.

        Between them is the number of bytes that are not kept any more. It waits ``first_s`` for the first byte.
        """
        ...


Tell = Callable[[str, Mapping[str, Any]], Coroutine[Any, Any, None]]

MOST_TAIL = 64 * 1024
"""Bytes of each stream that are at hand of a command at work."""


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

    def last(self, most: int) -> Tail:
        """Returns the last ``most`` bytes of it."""
        return Tail(most, self.size, self.data[-most:] if most else b"")

    def text(self) -> str:
        """Returns the end as text; bytes that are none show as U+FFFD."""
        return (cut_tail(self.data) if self.truncated else self.data).decode("utf-8", "replace")


async def tails_at_end(read: Callable[[int], AsyncIterator[bytes]], size: int, most: dict[str, int]) -> dict[str, Tail]:
    """Returns the same as :func:`tails_of` of a log with ``size`` bytes.

    ``read`` gives it from an offset on.

    It reads no more of the log's end than it needs. The bytes before count as output of both streams.
    """
    length = sum(most.values()) + MARK_EVERY
    while True:
        offset = max(0, size - length)
        reader, before = Unmarker(STDOUT if not offset else ""), int(offset > 0)
        tails = {stream: Tail(most[stream]) for stream in BOTH}
        async for data in read(offset):
            for stream, piece in reader.feed(data):
                if stream:
                    tails[stream].feed(piece)
        if not offset or all(tail.size >= tail.most for tail in tails.values()):
            for tail in tails.values():
                tail.size += before
            return tails
        length *= 8


async def tails_of(pieces: AsyncIterator[bytes], most: dict[str, int]) -> dict[str, Tail]:
    """Returns the ends of both streams of a log, ``most`` bytes of each. It holds no more than that in memory."""
    reader = Unmarker()
    tails = {stream: Tail(most[stream]) for stream in BOTH}
    async for data in pieces:
        for stream, piece in reader.feed(data):
            tails[stream].feed(piece)
    return tails


class Silence:
    """Tells when a command has said nothing for ``after_s``, and when it speaks again. None tells nothing.

    A later server counts from its own start on.
    """

    def __init__(self, tasks: Tasks, tell: Tell, after_s: float | None) -> None:
        self._tasks = tasks
        self._tell = tell
        self._after_s = after_s
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self.lasts = False

    def begin(self) -> None:
        """Counts from now on."""
        if self._after_s is not None and not self.lasts:
            self._since = asyncio.get_running_loop().time()
            self._look()

    def pause(self) -> None:
        """Counts no longer, until it begins anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def broken(self) -> None:
        """There is output."""
        if self._timer is None and not self.lasts:
            return
        self._since = asyncio.get_running_loop().time()
        if self.lasts:
            self.lasts = False
            self._spawn("output", {})
            self._look()

    def end(self) -> None:
        """Nothing is told any more."""
        self.pause()
        self._after_s, self.lasts = None, False

    def _look(self) -> None:
        if self._after_s is None:
            return
        loop = asyncio.get_running_loop()
        left = self._since + self._after_s - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._look)
            return
        self._timer, self.lasts = None, True
        self._spawn("quiet", {"quiet_after_sec": self._after_s})

    def _spawn(self, kind: str, data: Mapping[str, Any]) -> None:
        self._tasks.spawn(self._tell(kind, data), f"tell of {kind}")


class Live:
    """The ends of both streams of a command at work.

    ``heard_at`` is the time of its last output; None while this server heard none. ``log`` is that of a service, which
    keeps its latest output alone.
    """

    def __init__(self, now: Callable[[], float], silence: Silence) -> None:
        self.tails = {stream: Tail(MOST_TAIL) for stream in BOTH}
        self.silence = silence
        self.heard_at: float | None = None
        self.log: Kept | None = None
        self._now = now
        self._reader = Unmarker()

    def hear(self, data: bytes) -> None:
        """Takes the next piece of the log, which has no secrets any more."""
        self.heard_at = self._now()
        self._take(data)

    def before(self, data: bytes, *, first: bool) -> None:
        """Takes a piece that an earlier server stored, of the log's beginning if ``first``."""
        if not first and not any(tail.size for tail in self.tails.values()):
            self._reader = Unmarker("")
            for tail in self.tails.values():
                tail.size = tail.most + 1
        self._take(data)

    def _take(self, data: bytes) -> None:
        for stream, piece in self._reader.feed(data):
            if stream:
                self.tails[stream].feed(piece)
