"""A started program of a native sandbox, as the server sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from skillyard.domain.errors import SandboxGone
from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.work.outcome import Ending, Outcome, Usage
from skillyard.sandbox.native.link import Link

_PIECE = 1 << 18
_PATIENCE_S = 0.02
"""How long output waits for a short run's end, which brings all of it in one message."""

LOST = Ending(Outcome.LOST, reason="the sandbox is gone: its keeper ended")


class NativeProcess:
    def __init__(self, link: Link, handle: str, id: str) -> None:
        self._link = link
        self._handle = handle
        self._id = id
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._inline: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        self._killed = ""

    @property
    def id(self) -> str:
        return self._id

    async def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        if not self._ending.done():
            await asyncio.wait([self._ending], timeout=_PATIENCE_S)
        while stream not in self._inline:
            if self._sizes and offset >= self._sizes[stream]:
                return
            data, end = await self._read(stream, offset)
            offset += len(data)
            if data:
                yield data
            if end:
                return
        rest = self._inline[stream][offset:]
        if rest:
            yield rest

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            await self._link.answer(self._about("send"), bytes(view[:_PIECE]))
            view = view[_PIECE:]

    async def close_stdin(self) -> None:
        await self._link.answer(self._about("close_stdin"))

    async def wait(self) -> Ending:
        return await asyncio.shield(self._ending)

    async def kill(self, reason: str = "") -> None:
        if not self._ending.done():
            try:
                await self._link.answer({**self._about("kill"), "reason": reason or "killed"})
            except SandboxGone:
                return

    def ended(self, header: dict[str, Any], body: bytes) -> None:
        """The keeper's announcement, with the output where it is small."""
        if self._ending.done():
            return
        at = 0
        for name, size in header["inline"].items():
            self._inline[name] = body[at : at + size]
            at += size
        self._sizes = header["sizes"]
        self._ending.set_result(_ending(header["ending"]))

    def lost(self) -> None:
        if not self._ending.done():
            self._ending.set_result(LOST)

    async def _read(self, stream: Stream, offset: int) -> tuple[bytes, bool]:
        try:
            got, data = await self._link.answer(
                {**self._about("read"), "stream": stream.value, "offset": offset, "most": _PIECE}
            )
        except SandboxGone:
            if self._ending.done() and self._ending.result() is not LOST:
                if stream in self._inline:
                    return b"", False
                raise  # it ended in order, and what it said last is not to be had
            return b"", True
        return data, bool(got["end"])

    def _about(self, operation: str) -> dict[str, Any]:
        return {"op": operation, "handle": self._handle, "id": self._id}


def _ending(told: dict[str, Any]) -> Ending:
    return Ending(
        Outcome(told["outcome"]),
        told.get("code"),
        told.get("signal"),
        told.get("reason", ""),
        Usage(**told["usage"]),
        frozenset(told.get("hits", ())),
    )
