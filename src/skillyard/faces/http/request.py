"""One request: reads its body within bounds, and watches its client during long work.

The size of a body, its time and the memory of all bodies together are bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from starlette.types import Receive, Scope

from skillyard.domain.errors import Busy
from skillyard.faces.http.errors import BadRequest, PayloadTooLarge, SlowBody, Unavailable
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.rpc.wire import CallerGone
from skillyard.values import dataclass

_SOON_MS = 1000
_PARTS = 4096
"""A thousand connections, which is all, hold a quarter of a budget more by what is free of it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A body may pause ``idle_s`` seconds, and on the whole comes at ``bytes_per_s`` or faster."""

    idle_s: float = 30.0
    bytes_per_s: int = 4096

    def left(self, elapsed_s: float, received: int) -> float:
        """Returns the seconds until the next piece has to be here."""
        return min(self.idle_s, self.idle_s + received / self.bytes_per_s - elapsed_s)


DEFAULT_PACE = Pace()


class ByteBudget:
    """The memory for all buffered bodies of a server, of which one principal may take half.

    ``free`` bytes of each request are not counted, so that small requests are served when the rest is taken.
    """

    def __init__(self, total: int) -> None:
        self._left = total
        self._each = total // 2
        self.free = total // _PARTS
        self._held: dict[str, int] = {}

    def take(self, principal: str, count: int) -> None:
        """Raises Unavailable when too little is free, and Busy for a principal that has its part."""
        if count > self._left:
            raise Unavailable("too many large requests at once", retry_after_ms=_SOON_MS)
        mine = self._held.get(principal, 0) + count
        if mine > self._each:
            raise Busy("too many large requests of yours at once", retry_after_ms=_SOON_MS)
        self._left -= count
        self._held[principal] = mine

    def give_back(self, principal: str, count: int) -> None:
        self._left += count
        if count:
            self._held[principal] -= count
            if not self._held[principal]:
                del self._held[principal]


class Lease:
    """One request's part of a budget, given back at the end of a ``with`` block."""

    def __init__(self, budget: ByteBudget, principal: str) -> None:
        self._budget = budget
        self._principal = principal
        self._asked = 0
        self._held = 0

    def take(self, count: int) -> None:
        due = max(0, self._asked + count - self._budget.free) - self._held
        self._budget.take(self._principal, due)
        self._asked += count
        self._held += due

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.give_back(self._principal, self._held)


def declared_length(scope: Scope) -> int | None:
    """Returns ``Content-Length``; None when the body is chunked."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            if not value.isdigit():
                raise BadRequest("Content-Length: must be a number")
            return int(value)
    return None


async def stream(scope: Scope, receive: Receive, maximum: int, pace: Pace = DEFAULT_PACE) -> AsyncGenerator[bytes]:
    """Yields the body's pieces. Raises PayloadTooLarge, SlowBody, and CallerGone when it breaks off."""
    body = _Body(scope, receive, maximum, pace)
    while body.more:
        if piece := await body.next():
            yield piece


async def read(scope: Scope, receive: Receive, maximum: int, lease: Lease, pace: Pace = DEFAULT_PACE) -> bytes:
    """Returns the whole body, taken from ``lease`` as it comes. Raises what :func:`stream` raises, and Unavailable."""
    body, pieces = _Body(scope, receive, maximum, pace), []
    while body.more:
        piece = await body.next()
        lease.take(len(piece))
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Body:
    """A body on its way. Raises PayloadTooLarge for one that announces too much."""

    def __init__(self, scope: Scope, receive: Receive, maximum: int, pace: Pace) -> None:
        if (declared_length(scope) or 0) > maximum:
            raise PayloadTooLarge(maximum)
        self.more = True
        self._receive = receive
        self._maximum = maximum
        self._pace = pace
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._received = 0

    async def next(self) -> bytes:
        """Raises PayloadTooLarge, SlowBody, CallerGone."""
        try:
            async with asyncio.timeout(self._pace.left(self._clock() - self._started, self._received)):
                message = await self._receive()
        except TimeoutError:
            raise SlowBody("the body came too slowly") from None
        if message["type"] == "http.disconnect":
            raise CallerGone("the client went away within its request")
        piece: bytes = message.get("body", b"")
        self.more = message.get("more_body", False)
        self._received += len(piece)
        if self._received > self._maximum:
            raise PayloadTooLarge(self._maximum)
        return piece


T = TypeVar("T")

SMALL_ANSWER = 64 * 1024
"""Bytes of one answer; a thousand connections may hold that much each."""


UNWATCHED_S = 0.05
"""How long a call works before its client is watched. Most runs have ended by then."""


class HttpCaller:
    """Ends a run or a transfer when its client disconnects or the server's grace period is over.

    Use as ``async with``; the body of the request has been read by then. ``lease`` pays for the answer.
    """

    def __init__(self, receive: Receive, lifecycle: Lifecycle, lease: Lease | None = None) -> None:
        self._receive = receive
        self._lifecycle = lifecycle
        self._lease = lease
        self._why: Exception | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HttpCaller:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._later is not None:
            self._later.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    @property
    def gone(self) -> bool:
        return isinstance(self._why, CallerGone)

    def hold(self, count: int) -> None:
        """Pays for a large answer; small ones, as of every run, are never refused."""
        if self._lease is not None and count > SMALL_ANSWER:
            self._lease.take(count)

    async def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Returns the call's result. Raises CallerGone, or Unavailable when the server stops, once the call ended.

        The call works in the caller's own task: another one and the wait for it are three turns of the loop.
        """
        why = self._why
        if why is not None:
            call.close()
            raise why
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(UNWATCHED_S, self._watch)
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._waiting = task
        try:
            with self._lifecycle.stoppable(self._stop):
                return await call
        except asyncio.CancelledError:
            if self._why is None or task.cancelling() > before + 1:  # somebody else cancels the task too
                raise
            raise self._why from None
        finally:
            self._waiting = None
            if self._why is not None:
                task.uncancel()

    def _watch(self) -> None:
        self._watcher = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._stop(CallerGone("the client went away"))

    def _stop(self, why: Exception) -> None:
        if self._why is None:
            self._why = why
            if self._waiting is not None:
                self._waiting.cancel()
