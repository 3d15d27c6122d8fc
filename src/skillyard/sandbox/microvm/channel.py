"""Channels to the agent of a machine.

A machine has a few ports. Each is a socket that QEMU listens on and serves one connection of at a time, so the holder
of a port's lock has it. Bytes that an earlier connection left on the way come first; they are dropped up to the
banner by which the machine begins a channel.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from skillyard.domain.errors import SandboxGone
from skillyard.sandbox.agent_channel import ChannelLost, Opener
from skillyard.sandbox.microvm import machine
from skillyard.sandbox.microvm.first import CHANNELS
from skillyard.sandbox.microvm.inside import BANNER

_BEGINS_S = 6.0
_MOST_LEFT = 4 << 20
_READ = 256 * 1024


class Port:
    """An end of a channel. It reads and writes as asyncio's streams, and gives the port back when it is closed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lock: int) -> None:
        self._reader, self._writer, self._lock = reader, writer, lock
        self._early = b""

    async def begin(self) -> None:
        """Returns when the machine has begun a channel. Raises ChannelLost."""
        held = b""
        dropped = 0
        while (at := held.find(BANNER)) < 0:
            dropped += len(held)
            data = await self._reader.read(_READ)
            if not data:
                raise ChannelLost("the machine closed the port")
            if dropped > _MOST_LEFT:
                raise ChannelLost("the machine does not begin the channel")
            held = held[-len(BANNER) :] + data
        self._early = held[at + len(BANNER) :]

    async def read(self, n: int = -1, /) -> bytes:
        """Returns at most ``n`` bytes as soon as there are any; none at the end."""
        if self._early:
            most = len(self._early) if n < 0 else n
            piece, self._early = self._early[:most], self._early[most:]
            return piece
        return await self._reader.read(_READ if n < 0 else n)

    def write(self, data: bytes, /) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        """Returns when there is room for more."""
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def opener(place: Path) -> Opener:
    """Returns an opener of channels to the machine whose sockets are at ``place``."""
    turns = count()

    async def open_channel() -> tuple[Port, Port]:
        first = next(turns)  # each time another port, so that the machine has closed the one before
        for name, lock in _free(place, first):
            port = await _connected(place, name, lock)
            try:
                async with asyncio.timeout(_BEGINS_S):
                    await port.begin()
            except TimeoutError:
                port.close()
            except BaseException:
                port.close()
                raise
            else:
                return port, port
        raise ChannelLost("no port of the machine is free, or it answers on none")

    return open_channel


def _free(place: Path, first: int) -> Iterator[tuple[str, int]]:
    """Yields the ports that nobody has, each with its lock."""
    for number in range(CHANNELS):
        name = machine.channel((first + number) % CHANNELS)
        try:
            lock = os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise _gone(place) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            yield name, lock


async def _connected(place: Path, name: str, lock: int) -> Port:
    try:
        return Port(*await machine.connect(place, name), lock)
    except BaseException as error:
        os.close(lock)
        if isinstance(error, OSError):
            raise _gone(place) from None
        raise


def _gone(place: Path) -> SandboxGone:
    return SandboxGone(f"sandbox {place.name} is unknown here")
