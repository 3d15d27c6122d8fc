"""Idle connections to ports of services, kept for the next request of the same principal.

Bytes that come while nobody asks are never an answer: such a connection is closed, as is one that the service ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from skillyard.engine.tasks import Tasks
from skillyard.ports.sandbox import ByteStream
from skillyard.values import dataclass

KEPT_S = 4.0
"""Common servers end an idle connection after five seconds."""
EACH = 8
"""Idle connections to one port."""
SLOW_S = 0.25
"""The wait for an answer after which idle connections are suspected to be in its way."""
ALONE_S = 10.0
"""The time for which a port then keeps none."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a service, and the principal whose connections to it are told apart."""

    task_id: str
    number: int
    principal: str

    @property
    def place(self) -> tuple[str, int]:
        return self.task_id, self.number


class IdleStreams:
    """At most ``most`` idle connections. A program that serves one connection at a time has none for long."""

    def __init__(self, tasks: Tasks, most: int) -> None:
        self._tasks = tasks
        self._most = most
        self._held: list[tuple[Port, ByteStream, float]] = []
        self._slow: Counter[tuple[str, int]] = Counter()
        self._alone: dict[tuple[str, int], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def enabled(self) -> bool:
        return self._most > 0

    def take(self, port: Port) -> ByteStream | None:
        """Returns the connection that was used last and is quiet; None when there is none."""
        for at in range(len(self._held) - 1, -1, -1):
            if self._held[at][0] == port:
                stream = self._held.pop(at)[1]
                if stream.quiet():
                    return stream
                self._close(stream)
        return None

    def give(self, port: Port, stream: ByteStream) -> bool:
        """Keeps a connection for a while; returns False when it is not kept."""
        now = asyncio.get_running_loop().time()
        blocked = self._slow[port.place] > 0 or self._alone.get(port.place, 0.0) > now
        if blocked or not self.enabled or not stream.quiet():
            return False
        mine = [held for held in self._held if held[0].place == port.place]
        if len(mine) >= EACH or len(self._held) >= self._most:
            oldest = (mine if len(mine) >= EACH else self._held)[0]
            self._held.remove(oldest)
            self._close(oldest[1])
        self._held.append((port, stream, now + KEPT_S))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_S, self._expire)
        return True

    def late(self, place: tuple[str, int]) -> None:
        """Tells of an overdue answer: the program may serve one connection, an idle one, at a time."""
        self._slow[place] += 1
        if self._drop(lambda port, _: port.place == place):
            now = asyncio.get_running_loop().time()
            self._alone = {each: until for each, until in self._alone.items() if until > now}
            self._alone[place] = now + ALONE_S

    def came(self, place: tuple[str, int]) -> None:
        """Tells that this answer has begun, or is not wanted any more."""
        self._slow[place] -= 1
        if not self._slow[place]:
            del self._slow[place]

    def close(self) -> None:
        """Closes all of them."""
        self._drop(lambda _, __: True)

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        self._timer = None
        self._drop(lambda _, until: until <= now)
        if self._held:
            self._timer = asyncio.get_running_loop().call_later(self._held[0][2] - now, self._expire)

    def _drop(self, which: Callable[[Port, float], bool]) -> bool:
        gone = [held for held in self._held if which(held[0], held[2])]
        for held in gone:
            self._held.remove(held)
            self._close(held[1])
        return bool(gone)

    def _close(self, stream: ByteStream) -> None:
        self._tasks.spawn(stream.close(), "idle connection")


class Connection:
    """A connection to a port for one request. ``used`` says that it served others of the same principal before."""

    def __init__(
        self,
        idle: IdleStreams,
        port: Port,
        dial: Callable[[], Awaitable[ByteStream]],
        stream: ByteStream,
        *,
        used: bool,
    ) -> None:
        self.stream = stream
        self.used = used
        self._idle = idle
        self._port = port
        self._dial = dial
        self._keep = False
        self._is_late = False
        self._timer = asyncio.get_running_loop().call_later(SLOW_S, self._late)

    @property
    def may_be_kept(self) -> bool:
        return self._idle.enabled

    async def renew(self) -> None:
        """Connects anew, since the service ended a used one. Raises NotListening."""
        stream, self.used = self.stream, False
        await stream.close()
        self.stream = await self._dial()

    def answered(self) -> None:
        """Tells that the answer has begun."""
        self._timer.cancel()
        if self._is_late:
            self._is_late = False
            self._idle.came(self._port.place)

    def keep(self) -> None:
        """Allows another request: this one and its answer are whole, and no side wants to end."""
        self._keep = True

    async def leave(self) -> None:
        self.answered()
        if not (self._keep and self._idle.give(self._port, self.stream)):
            await self.stream.close()

    def _late(self) -> None:
        self._is_late = True
        self._idle.late(self._port.place)
