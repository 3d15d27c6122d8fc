"""Relays bytes between a sandbox and a server until both have ended or one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from skillyard.gate.relay.first_bytes import FirstBytes
from skillyard.gate.relay.guard import Failure, Guard, Refused, Unreachable
from skillyard.gate.relay.stream import PIECE, TURN, Stream
from skillyard.gate.session import Session
from skillyard.gate.upstream import Upstream

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


_PIECE = 1 << 18
_BUFFER = bytearray(_PIECE)
_VIEW = memoryview(_BUFFER)


async def tunnel(session: Session, client: Stream, upstream: Upstream) -> None:
    """Relays a connection that is held to the host that was allowed.

    Returns and raises as :func:`relay` does."""
    await relay(client, upstream, _guard_of(session, upstream))


def _guard_of(session: Session, upstream: Upstream) -> Guard:
    """Returns a guard that holds the connection to its host.

    It ends TLS to the hosts that secrets are bound to, and refuses placeholders in plain text."""
    interception, name, port = session.interception, upstream.name, upstream.port
    if interception is None:
        return FirstBytes(upstream.host, port)
    tls = None
    if name is not None and interception.has(name, port):
        tls = partial(interception.guard, name, port, upstream.carries)
    return FirstBytes(upstream.host, port, content=interception.plain_content(), tls=tls)


async def relay(client: Stream, upstream: Upstream, guard: Guard | None = None) -> None:
    """Relays until both have ended. ``guard`` judges what is said until it is raw.

    Both streams are closed when this returns or raises: OSError, Refused, Unreachable or Ended, after the client was
    told."""
    guarded = None if guard is None else GuardedRelay(client, upstream, guard)
    watch = _Watch(client, upstream, guarded)
    try:
        if guarded is not None:
            await guarded.run()
        if guard is None or guard.raw:
            watch.guarded = None
            await RawRelay(client, upstream).over
        await client.finish()
    except Refused as refused:
        upstream.refuse(refused.reason)
        await client.finish()
        raise
    except Unreachable as unreachable:
        upstream.abort(unreachable)
        await client.finish()
        raise
    except BaseException:
        client.reset()
        raise
    finally:
        watch.stop()
        upstream.close()


async def relay_exchange(client: Stream, upstream: Upstream, guard: Guard) -> None:
    """Relays one exchange, until ``guard`` is raw or over or both have ended.

    Both streams stay open. Raises as :func:`relay` does, after the client was told what the guard had to say."""
    guarded = GuardedRelay(client, upstream, guard)
    watch = _Watch(client, upstream, guarded)
    try:
        await guarded.run()
    finally:
        watch.stop()


class RawRelay:
    """Passes bytes both ways as they come.

    All connections share one buffer: bytes that the other side does not take yet are kept, and nothing is read
    meanwhile. Measured, it is as fast as splice(2), and needs no pipe. ``over`` is done when both sides have ended; it
    has the fault of the stream that failed or was closed."""

    def __init__(self, client: Stream, server: Stream) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._streams = (client, server)
        if client.closed or server.closed:
            self.over.set_exception(client.fault or server.fault or ConnectionAbortedError("closed"))
            return
        self._ways = (_Way(self, client, server), _Way(self, server, client))
        for stream in self._streams:
            stream.watch(self._closed)
        for way in self._ways:
            way.begin()

    def way_is_done(self) -> None:
        if all(way.done for way in self._ways):
            self.finish(None)

    def finish(self, fault: Exception | None) -> None:
        if self.over.done():
            return
        for way in self._ways:
            way.stop()
        for stream in self._streams:
            stream.unwatch(self._closed)
        if fault is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(fault)

    def _closed(self) -> None:
        fault = next((stream.fault for stream in self._streams if stream.fault is not None), None)
        self.finish(fault or ConnectionAbortedError("closed"))


class _Way:
    """One direction: ``source`` is read or, with something ``left``, ``target`` is written."""

    def __init__(self, pump: RawRelay, source: Stream, target: Stream) -> None:
        self._pump = pump
        self._source = source
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._in, self._out = source.sock.fileno(), target.sock.fileno()
        self._left = memoryview(b"")
        self.done = False

    def begin(self) -> None:
        self._left = memoryview(self._source.take_held())
        if self._left:
            self._loop.add_writer(self._out, self._writable)
        else:
            self._loop.add_reader(self._in, self._readable)

    def stop(self) -> None:
        self.done = True
        self._left = memoryview(b"")
        self._loop.remove_reader(self._in)
        self._loop.remove_writer(self._out)

    def _readable(self) -> None:
        try:
            for _ in range(TURN // _PIECE):
                count = self._source.read_into(_BUFFER)
                if count is None:
                    return
                if not count:
                    self._end()
                    return
                sent = self._target.write_some(_VIEW[:count])
                if sent < count:
                    self._left = memoryview(bytes(_VIEW[sent:count]))
                    self._loop.remove_reader(self._in)
                    self._loop.add_writer(self._out, self._writable)
                    return
        except (OSError, Failure) as fault:
            self._pump.finish(fault)

    def _writable(self) -> None:
        try:
            self._left = self._left[self._target.write_some(self._left) :]
        except (OSError, Failure) as fault:
            self._pump.finish(fault)
            return
        if not self._left:
            self._loop.remove_writer(self._out)
            self._loop.add_reader(self._in, self._readable)

    def _end(self) -> None:
        self.done = True
        self._loop.remove_reader(self._in)
        self._target.end()
        self._pump.way_is_done()


class _Watch:
    """Ends a connection on which nothing moves: one timer, set on while bytes go by."""

    def __init__(self, client: Stream, upstream: Upstream, guarded: GuardedRelay | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._upstream = upstream
        self._limits = upstream.limits
        self.guarded = guarded
        self._timer = self._loop.call_soon(self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        limits, reason = self._limits, "no byte"
        due = max(self._client.moved, self._upstream.moved) + limits.idle_s
        within = limits.idle_s
        owing = self.guarded.owing_since if self.guarded is not None else None
        if owing is not None and owing + limits.header_s < due:
            due, within, reason = owing + limits.header_s, limits.header_s, "no whole request or greeting"
        if self._loop.time() >= due:
            self._upstream.stop(f"{reason} within {within:g} s")
        else:
            again = min(due, self._loop.time() + limits.header_s) if self.guarded is not None else due
            self._timer = self._loop.call_at(again, self._look)
