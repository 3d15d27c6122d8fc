"""Relays a connection through a guard.

The guard gets the bytes of each side; the bytes that it gives back are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skillyard.gate.failures import Refused, Unreachable
from skillyard.gate.relay.guard import Guard
from skillyard.gate.relay.stream import PIECE, Stream

_PAUSE_S = 0.05
"""Silence of the server after which bytes that its guard holds back go on."""


class GuardedRelay:
    """Relays both sides, each at its own pace.

    A side is not read while its bytes from before are not written."""

    def __init__(self, client: Stream, server: Stream, guard: Guard) -> None:
        self._client = client
        self._server = server
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._to_server, self._to_client = _Out(server, forgiving=True), _Out(client)
        self._answered = asyncio.Event()
        self.owing_since: float | None = self._loop.time()
        """The time since which the client has said nothing whole; None once something was passed on."""

    async def run(self) -> None:
        """Relays until the guard is raw or over, or both sides have ended.

        Everything that the guard gave back is written then. Raises Refused and Unreachable after the client was told,
        and what streams raise."""
        self._pass_on()  # what the guard has to say before either side does
        pending = {asyncio.create_task(self._client_side()), asyncio.create_task(self._server_side())}
        try:
            while pending and not self._finished:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                faults = [fault for side in done if (fault := side.exception()) is not None]
                if faults:
                    raise faults[0]
            await self._settled()
        except (Refused, Unreachable):
            await self._settled()
            raise
        finally:
            left = (*pending, *self._to_server.tasks, *self._to_client.tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    @property
    def _finished(self) -> bool:
        return self._guard.raw or self._guard.over

    async def _client_side(self) -> None:
        while not self._finished:
            if not self._guard.wants_client:
                self._answered.clear()
                await self._answered.wait()
                continue
            data = await self._client.read(patient=True)
            if self.owing_since is None:
                self.owing_since = self._loop.time()
            await self._hear(self._guard.client_says, data, self._to_server)
            if not data:
                return

    async def _server_side(self) -> None:
        while not self._finished:
            data = await self._server_bytes()
            await self._hear(self._guard.server_says, data, self._to_client)
            self._answered.set()
            if not data:
                return

    async def _server_bytes(self) -> bytes:
        try:
            if self._guard.holding and (data := await self._soon()) is not None:
                return data
            return await self._server.read(patient=True)
        except ConnectionResetError:
            if self._to_server.broken:
                return b""
            raise

    async def _soon(self) -> bytes | None:
        """Returns the server's next bytes if they come soon; otherwise passes on held bytes."""
        try:
            async with asyncio.timeout(_PAUSE_S) as moment:
                return await self._server.read(patient=True)
        except TimeoutError:
            if not moment.expired():
                raise
        self._guard.server_pauses()
        self._pass_on()
        await self._to_client.drained()
        return None

    async def _hear(self, says: Callable[[bytes], None], data: bytes, onward: _Out) -> None:
        try:
            says(data)
            while self._guard.busy:
                self._pass_on()
                await onward.drained()
                await asyncio.sleep(0)
                self._guard.go_on()
        finally:
            self._pass_on()
        await onward.drained()

    def _pass_on(self) -> None:
        for out, data in ((self._to_server, self._guard.for_server()), (self._to_client, self._guard.for_client())):
            if data:
                self.owing_since = None
                out.put(data)

    async def _settled(self) -> None:
        self._pass_on()
        await self._to_server.drained()
        await self._to_client.drained()


class _Out:
    """Bytes on their way to one side, in order.

    A ``forgiving`` one drops bytes for a side that reads no more: the answer of a server that ends early is still
    read."""

    def __init__(self, stream: Stream, *, forgiving: bool = False) -> None:
        self._stream = stream
        self._forgiving = forgiving
        self.broken = False
        self._left = bytearray()
        self.tasks: list[asyncio.Task[None]] = []

    def put(self, data: bytes) -> None:
        if self._left:
            self._left += data
            return
        sent = self._written(data)
        if sent < len(data):
            self._left += data[sent:]
            self.tasks = [asyncio.create_task(self._flush())]

    async def drained(self) -> None:
        for task in self.tasks:
            await asyncio.shield(task)
        self.tasks = []

    async def _flush(self) -> None:
        while self._left:
            await self._stream.writable()
            del self._left[: self._written(bytes(self._left[:PIECE]))]

    def _written(self, data: bytes) -> int:
        """Returns how many bytes need not be kept."""
        if not self.broken:
            try:
                return self._stream.write_some(data)
            except (BrokenPipeError, ConnectionResetError):
                if not self._forgiving:
                    raise
                self.broken = True
        return len(data)
