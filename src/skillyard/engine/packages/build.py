"""One build that is at work or failed a moment ago, and the log that it writes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from skillyard.domain.package.environment import BuildState, BuiltEnvironment, Wanted
from skillyard.engine.packages.environment import BuildFailed


class Build:
    """``owner`` is whose blob its log becomes. Times are UTC seconds since the epoch."""

    def __init__(self, wanted: Wanted, owner: str, started_at: float) -> None:
        self.wanted = wanted
        self.owner = owner
        self.started_at = started_at
        self.state = BuildState.WAITING
        self.log = BuildLog()
        self.digest = ""
        """Of the lock, as soon as it is known."""
        self.error: BuildFailed | None = None
        self._built: BuiltEnvironment | None = None
        self._over = asyncio.Event()

    def succeed(self, built: BuiltEnvironment) -> None:
        self._built, self.state = built, BuildState.READY
        self._over.set()

    def fail(self, error: BuildFailed) -> None:
        self.error, self.state = error, BuildState.FAILED
        self._over.set()

    async def result(self) -> BuiltEnvironment:
        """Waits for the end; a caller that stops waiting ends nothing. Raises BuildFailed."""
        await self._over.wait()
        if self._built is None:
            assert self.error is not None
            raise BuildFailed(self.error.message, self.error.log)
        return self._built

    def view(self) -> dict[str, Any]:
        """As methods show it."""
        shown: dict[str, Any] = {
            "state": self.state.value,
            "requirements": list(self.wanted.requirements),
            "digest": self.digest,
            "line": self.log.line,
            "started_at": self.started_at,
        }
        if self.error is not None:
            shown |= {"error": self.error.message, "log": self.error.log}
        return shown


MOST_BYTES = 8 * 1024 * 1024
LINE = 200
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class BuildLog:
    """Foreign text: of the whole the first and the newest half of :data:`MOST_BYTES` are kept."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._lost = 0
        self._partial = b""
        self.line = ""

    def add(self, data: bytes) -> None:
        half = MOST_BYTES // 2
        room = half - len(self._head)
        self._head += data[: max(0, room)]
        self._tail += data[max(0, room) :]
        if len(self._tail) > 2 * half:
            self._lost += len(self._tail) - half
            del self._tail[:-half]
        self._see(data)

    def say(self, text: str) -> None:
        """A line of ours."""
        self.add(f"{text}\n".encode())

    def whole(self) -> bytes:
        gap = f"\n[{self._lost} bytes left out]\n".encode() if self._lost else b""
        return bytes(self._head + gap + self._tail)

    def _see(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data[-4 * LINE :]).split(b"\n")
        self._partial = self._partial[-4 * LINE :]
        for line in reversed(lines):
            if text := calm(line.decode("utf-8", "replace")).strip():
                self.line = text[:LINE]
                return


def calm(text: str) -> str:
    """Without what steers a terminal."""
    return _CONTROL.sub("", text)
