"""The command's side of a jail on a server: it keeps the standard streams.

The server is asked before a byte of them is read. When it cannot take the jail, nothing was started, and the command
makes a keeper of its own. When it is lost afterwards the jail has ended with it, and is not started again.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillyard.client.discovery import recorded_url
from skillyard.data_dir import DataDir
from skillyard.domain.sandbox.spec import Stream
from skillyard.faces.cli.jail.directories import opened
from skillyard.faces.jails.wire import PIECE, PROTOCOL, SOCKET, Ask, Ended, Passed, Talk
from skillyard.ipc.channel import BadMessage
from skillyard.ipc.peers import peer
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.domain.sandbox.content import JailDirectory
    from skillyard.faces.cli.jail.wires import StandardWires

_HELLO_S = 10.0
_STREAMS = (Stream.STDOUT, Stream.STDERR)


class NotShared(Exception):
    """Says why a server does not take the jail; empty without a server. Nothing of the jail was started."""


class ServerLost(Exception):
    """The jail has ended, with the server or by a fault of it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A jail for a server. ``closed`` are the places that it may not see."""

    args: tuple[str, ...]
    read: Sequence[Path]
    write: Sequence[Path]
    allow: tuple[str, ...]
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    package: tuple[str, str] | None
    isolation: str | None
    closed: Sequence[Path]

    def ask(self, settings: Settings, directories: Sequence[JailDirectory], cwd: str) -> Ask:
        shown = tuple((each.path, each.writable) for each in directories)
        return Ask(
            self.args,
            settings.jail.limits,
            cwd,
            self.env,
            self.allow,
            self.secrets,
            shown,
            self.package,
            self.isolation,
        )


@asynccontextmanager
async def greeted(settings: Settings) -> AsyncIterator[tuple[Talk, int]]:
    """Yields a conversation with the server of the data directory, and how many jails it runs. Raises NotShared."""
    talk = Talk(_connected(settings))
    try:
        try:
            async with asyncio.timeout(_HELLO_S):
                said, _ = await talk.next()
        except (TimeoutError, ConnectionError):
            raise NotShared("the server does not answer") from None
        if "refused" in said:
            raise NotShared(f"the server refuses: {said['refused']}")
        if said.get("hello") != PROTOCOL:
            rule = f"speaks version {said.get('hello')} about jails, and this command {PROTOCOL}"
            raise NotShared(f"the server is of another release ({said.get('release')}): it {rule}")
        yield talk, int(said["held"])
    finally:
        talk.close()


def _connected(settings: Settings) -> socket.socket:
    """Returns a connection to the server's door. Raises NotShared."""
    place = DataDir(settings.data_dir).run
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        directory = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock.settimeout(_HELLO_S)
            sock.connect(f"/proc/self/fd/{directory}/{SOCKET}")
        finally:
            os.close(directory)
    except OSError as error:
        sock.close()
        if recorded_url(settings.data_dir) is None:
            raise NotShared("") from None
        reason = "an earlier release, or jail.places is 0 there"
        if isinstance(error, PermissionError):
            reason = "another user"
        raise NotShared(f"the server of {settings.data_dir} takes no jails: it is of {reason}") from None
    if (uid := peer(sock)[1]) != os.geteuid():
        sock.close()
        raise NotShared(f"the server of {settings.data_dir} is of the user {uid}")
    return sock


async def run(settings: Settings, wish: Wish, wires: StandardWires) -> Ended | None:
    """Returns how a jail on the server ended; None when its client was gone before it began.

    Raises NotShared, ServerLost, and InvalidInput for a directory that no jail may see.
    """
    async with greeted(settings) as (talk, _):
        with ExitStack() as stack:
            found = opened(wish.read, wish.write, wish.closed, stack)
            directories = [directory for directory, _ in found]
            order = wish.ask(settings, directories, cwd_in(directories)).told()
            talk.say({"order": order}, [Passed(fd) for _, fd in found])
        begun = await _begun(talk, wires)
        return None if begun is None else await _Pump(talk, wires, begun).run()


def cwd_in(directories: Sequence[JailDirectory]) -> str:
    """Returns this command's working directory where the jail shows it, else the jail's."""
    here = Path.cwd()
    return str(here) if any(here.is_relative_to(each.path) for each in directories) else "/workspace"


async def _begun(talk: Talk, wires: StandardWires) -> list[socket.socket] | None:
    """Returns the sockets of the program's streams. Raises NotShared."""
    asking = asyncio.create_task(talk.next())
    await _first(asking, wires.gone)
    if not asking.done():
        asking.cancel()
        return None
    try:
        said, fds = asking.result()
    except ConnectionError:
        raise NotShared("the server ended before the jail began") from None
    sockets = [socket.socket(fileno=fd) for fd in fds]
    if said.get("begun") is not True or len(sockets) != 1 + len(_STREAMS):
        for sock in sockets:
            sock.close()
        raise NotShared(f"the server refuses: {said.get('refused', 'its answer has another form')}")
    for sock in sockets:
        sock.setblocking(False)
    return sockets


async def _first(*awaited: asyncio.Future[Any]) -> None:
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)


class _Pump:
    """Passes the streams on until the program has ended."""

    def __init__(self, talk: Talk, wires: StandardWires, sockets: list[socket.socket]) -> None:
        self._talk = talk
        self._wires = wires
        self._sockets = sockets
        self._loop = asyncio.get_running_loop()

    async def run(self) -> Ended:
        """Raises ServerLost."""
        stdin, *outs = self._sockets
        draining = [asyncio.create_task(self._drain(*pair)) for pair in zip(_STREAMS, outs, strict=True)]
        others = [asyncio.create_task(self._feed(stdin)), asyncio.create_task(self._watch())]
        try:
            ended = await self._ended()
            await _first(asyncio.gather(*draining, return_exceptions=True), self._wires.gone)
            return ended
        finally:
            for task in (*draining, *others):
                task.cancel()
            await asyncio.gather(*draining, *others, return_exceptions=True)
            for sock in self._sockets:
                sock.close()

    async def _ended(self) -> Ended:
        try:
            said, _ = await self._talk.next()
            if "failed" in said:
                raise ServerLost(f"the server that ran it says: {said['failed']}")
            return Ended.read(said.get("ended"))
        except (ConnectionError, BadMessage) as error:
            raise ServerLost("the server that ran it is gone, and it has ended with it; start it again") from error

    async def _watch(self) -> None:
        """Has the server end the tree when the client is gone."""
        self._talk.say({"end": await asyncio.shield(self._wires.gone)})

    async def _feed(self, sock: socket.socket) -> None:
        with suppress(OSError):  # nobody reads it any more
            while data := await self._wires.read():
                await self._loop.sock_sendall(sock, data)
            sock.shutdown(socket.SHUT_WR)

    async def _drain(self, stream: Stream, sock: socket.socket) -> None:
        try:
            while data := await self._loop.sock_recv(sock, PIECE):
                await self._wires.write(stream, data)
        except OSError:
            sock.close()  # the server hears of it when it writes
        finally:
            self._wires.close(stream)
