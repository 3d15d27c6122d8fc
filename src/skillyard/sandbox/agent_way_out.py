"""The way out of a sandbox with an agent: it leads to the sandbox's session of the gate.

The sandbox has no network. Its agent listens on loopback, and this server asks for each connection (``accept`` of
:mod:`skillyard.guest.agent`), so an agent opens none by itself. A connection leads to the endpoint of the sandbox's
session and nowhere else: the gate judges, logs and bounds it as one of any other sandbox. Bytes are held within
windows, connections are few at once and paced, so a flood harms its own sandbox alone.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from skillyard.domain.errors import GateFault, SandboxFault, SandboxGone
from skillyard.domain.network.session import Egress, Endpoint
from skillyard.domain.sandbox.guarantees import Level, Protection
from skillyard.domain.sandbox.spec import Argv, Stream
from skillyard.guest.agent import wire
from skillyard.guest.agent.wire import BadFrame
from skillyard.ports.gate import Plug
from skillyard.ports.sandbox import Sandbox
from skillyard.sandbox.agent_channel import AgentRefused, Channel, ChannelLost, Exchange

MOST = 192
"""Connections of a sandbox at once, those that are waited for among them; the gate's own limit is usually below."""
READY = 8
"""Connections that are waited for at once: so many begin in one round trip."""
WINDOW = 64 * 1024
"""Bytes of one connection that wait here for the gate."""
A_SECOND = 250
"""Connections of a sandbox that begin in a second, beyond the first :data:`MOST`."""
_AGAIN_S, _MOST_AGAIN_S, _REFUSED_S = 0.2, 5.0, 1.0
_LOOK_MS = 20_000
_LOOK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10) as peer:
    peer.sendall(b"out")
    peer.shutdown(socket.SHUT_WR)
    sys.stdout.write(peer.makefile().read())
"""
NO_GATE = "the server has no gate to plug sandboxes into"
_BUSY_S, _TRIES = 0.02, 250
_LINGER_S = 300.0
"""How long a program may leave the last bytes of a connection unread."""


class Channels(Protocol):
    async def channel(self) -> Channel:
        """Returns a channel that is open. Raises SandboxGone, SandboxFault."""
        ...


class WayOut:
    """Carries the connections of one sandbox to ``port`` of its loopback.

    ``gate`` is None where the server has none."""

    def __init__(self, channels: Channels, gate: Plug | None, port: int) -> None:
        self._channels, self._gate, self._port = channels, gate, port
        self._endpoint: Endpoint | None = None
        self._task: asyncio.Task[None] | None = None
        self._plugging = asyncio.Lock()
        self._carried: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._free = float(MOST)
        self._counted_at = 0.0

    async def open(self, egress: Egress) -> None:
        """Leads all further connections to a session of the gate. Raises GateFault, SandboxGone, SandboxFault."""
        if self._gate is None:
            raise GateFault(NO_GATE)
        async with self._plugging:
            endpoint = await self._gate.way(egress.session)
            await self._listening()
            self._endpoint = endpoint
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run())

    async def look(self, sandbox: Sandbox, level: Level) -> Protection:
        """Returns whether a connection of a program inside arrives here, found by trying. Raises SandboxFault."""
        if self._gate is None:
            return Protection(Level.MISSING, why=NO_GATE)
        try:
            exchange = (await self._listening()).accept(self._port, WINDOW)
        except GateFault as fault:
            return Protection(Level.MISSING, why=fault.message)
        try:
            program = Argv(("python3", "-I", "-S", "-c", _LOOK, str(self._port)), cwd="/")
            process = await sandbox.start(program, id="look-out", timeout_ms=_LOOK_MS)
            async with asyncio.timeout(_LOOK_MS / 1000):
                async for piece in exchange.pieces():
                    await exchange.send(piece)
                exchange.end()
                said = b"".join([data async for data in process.output(Stream.STDOUT)])
        except (AgentRefused, TimeoutError):
            said = b""
        finally:
            exchange.give_up()
        if said != b"out":
            return Protection(Level.MISSING, why="a connection of a test sandbox did not arrive")
        return Protection(level, by="the agent listens inside, and the server carries connections to the gate")

    async def _listening(self) -> Channel:
        """Has the agent listen; returns the channel. Raises GateFault, SandboxGone, SandboxFault."""
        channel = await self._channels.channel()
        if channel.version < wire.WITH_A_WAY_OUT:
            raise GateFault("the sandbox's agent is of an earlier release, which has no way out")
        try:
            await channel.call("listen", {"port": self._port})
        except AgentRefused as refused:
            raise GateFault(f"the sandbox has no way out: {refused}") from None
        return channel

    async def close(self) -> None:
        """Ends all connections. The sandbox goes on to listen."""
        tasks = [*self._carried, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        again_s = _AGAIN_S
        while True:
            try:
                channel = await self._channels.channel()
                again_s = _AGAIN_S
                await self._serve(channel)
            except SandboxGone:
                return
            except SandboxFault:
                again_s = min(2 * again_s, _MOST_AGAIN_S)
            await asyncio.sleep(again_s)

    async def _serve(self, channel: Channel) -> None:
        """Waits for connections until the channel is lost."""
        while not channel.lost:
            self._changed.clear()
            if len(self._waiting) < READY and len(self._carried) < MOST:
                await self._pace()
                task = asyncio.create_task(self._carry(channel))
                self._waiting.add(task)
                self._carried.add(task)
                task.add_done_callback(self._over)
            else:
                await self._changed.wait()

    async def _pace(self) -> None:
        """Returns when one more connection may begin: programs can make them in a hurry."""
        now = asyncio.get_running_loop().time()
        self._free = min(float(MOST), self._free + (now - self._counted_at) * A_SECOND) - 1
        self._counted_at = now
        if self._free < 0:
            await asyncio.sleep(-self._free / A_SECOND)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._carried.discard(task)
        self._took(task)

    def _took(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            self._waiting.discard(task)
        self._changed.set()

    async def _carry(self, channel: Channel) -> None:
        """Waits for one connection and carries it to its end. Raises nothing."""
        with suppress(ChannelLost):
            exchange = channel.accept(self._port, WINDOW)
            try:
                pieces = exchange.pieces()
                if await anext(pieces, None) != b"":
                    raise BadFrame("a connection that did not begin")
                self._took(asyncio.current_task())
                await self._join(exchange, pieces)
            except* (AgentRefused, BadFrame):  # an agent that makes nothing of it is not asked in a hurry
                await asyncio.sleep(0 if channel.lost else _REFUSED_S)
            except* (SandboxFault, OSError):
                pass
            finally:
                exchange.give_up()

    async def _join(self, exchange: Exchange, pieces: AsyncIterator[bytes]) -> None:
        """Joins a connection with one of the gate's. Raises AgentRefused, SandboxFault, OSError, also in a group."""
        assert self._endpoint is not None, "it is opened before"
        reader, writer = await _connected(self._endpoint)
        try:
            writer.write(self._endpoint.knock())
            async with asyncio.TaskGroup() as ways:
                ways.create_task(_outward(pieces, writer))
                ways.create_task(_inward(reader, exchange))
            await exchange.result(_LINGER_S)
        finally:
            writer.transport.abort()


async def _outward(pieces: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    async for piece in pieces:
        writer.write(piece)
        await writer.drain()
    writer.write_eof()


async def _inward(reader: asyncio.StreamReader, exchange: Exchange) -> None:
    while data := await reader.read(wire.PIECE):
        await exchange.send(data, None)
        if exchange.over:  # nobody inside reads it any more
            return
    exchange.end()


async def _connected(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects through a descriptor: the path may be longer than a socket address. Raises OSError."""
    path = Path(endpoint.address)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        for _ in range(_TRIES):
            try:
                sock.connect(f"/proc/self/fd/{directory}/{path.name}")
                break
            except BlockingIOError:  # the gate's queue is full for a moment
                await asyncio.sleep(_BUSY_S)
        else:
            raise ConnectionRefusedError("the gate takes no more connections")
        return await asyncio.open_unix_connection(sock=sock, limit=WINDOW)
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(directory)
