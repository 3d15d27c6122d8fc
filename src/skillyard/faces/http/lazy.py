"""A part of the server that is imported and started with its first request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.types import Receive, Scope, Send


class Part(Protocol):
    """An ASGI application that runs in a task of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def run(self, ready: asyncio.Event, stop: asyncio.Event) -> None: ...


class Lazy:
    """Serves a part. ``load`` makes it; it is called in a thread, because it may import for a second."""

    def __init__(self, load: Callable[[], Part]) -> None:
        self._load = load
        self._starting: asyncio.Task[Part] | None = None
        self._running: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        part = await asyncio.shield(self._starting)
        await part(scope, receive, send)

    async def _start(self) -> Part:
        part = await asyncio.to_thread(self._load)
        ready = asyncio.Event()
        self._running = asyncio.create_task(part.run(ready, self._stop))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({self._running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            self._running.result()
        return part

    async def close(self) -> None:
        """Ends the part, if it was started."""
        self._stop.set()
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._running is not None:
            await asyncio.wait({self._running})
