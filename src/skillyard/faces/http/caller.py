"""The HTTP client of one request, watched while something long works for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from starlette.types import Receive

from skillyard.faces.http.body import Lease
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.rpc.errors import CallerGone

T = TypeVar("T")

SMALL_ANSWER = 64 * 1024
"""Bytes of one answer; a thousand connections may hold that much each."""


class HttpCaller:
    """Ends a run or a transfer when its client disconnects or the server's grace period is over.

    Use as ``async with``; the body of the request has been read by then. ``lease`` pays for the answer.
    """

    def __init__(self, receive: Receive, lifecycle: Lifecycle, lease: Lease | None = None) -> None:
        self._receive = receive
        self._lifecycle = lifecycle
        self._lease = lease
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._why: Exception | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HttpCaller:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    @property
    def gone(self) -> bool:
        return isinstance(self._why, CallerGone)

    def hold(self, count: int) -> None:
        """Small answers, as of every run, are for nothing: what was done is never refused for its answer."""
        if self._lease is not None and count > SMALL_ANSWER:
            self._lease.take(count)

    async def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """The call's result. Raises CallerGone, or Unavailable when the server stops, once the call ended."""
        if self._why is not None:
            call.close()
            raise self._why
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        run = asyncio.create_task(call)
        try:
            with self._lifecycle.stoppable(self._stop):
                await asyncio.wait((run, self._left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(run)
        if run.cancelled() and self._why is not None:
            raise self._why
        return run.result()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._stop(CallerGone("the client went away"))

    def _stop(self, why: Exception) -> None:
        if self._why is None:
            self._why = why
            self._left.set_result(None)


async def _end(run: asyncio.Task[Any]) -> None:
    """Cancel what still works and wait until it has cleaned up."""
    while not run.done():
        run.cancel()
        await asyncio.wait((run,))
