"""The server's side: a socket at which commands of its own user order jails.

No network and no token leads here, and no other face has a part in it. A command's directories come as descriptors
that it opened by its own rights; they are looked at again from these, by the rules of this server's own settings.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from skillyard._version import __version__
from skillyard.domain.errors import Busy, InvalidInput, SkillyardError, shown
from skillyard.domain.network.policy import parse_rules
from skillyard.domain.principal import Principal
from skillyard.domain.sandbox.spec import Mount, Stream
from skillyard.domain.work.record import RunRecord
from skillyard.engine.commands.jail_order import JailOrder
from skillyard.engine.secrets.service import SecretBook
from skillyard.faces.cli.jail import home
from skillyard.faces.cli.jail.directories import received
from skillyard.faces.cli.jail.packages import store_of
from skillyard.faces.jails.peers import NotAdmitted, check_peer
from skillyard.faces.jails.wire import PIECE, PROTOCOL, SOCKET, Ask, Ended, Talk
from skillyard.ipc.channel import BadMessage
from skillyard.runtime import Runtime

logger = logging.getLogger("skillyard.server")
_ORDER_S = 30.0
"""Seconds in which an order has to come."""
_AT_ONCE = 64
"""Conversations beside those whose programs run."""
_RETRY_MS = 1000
_ALL_MB = 1 << 40
_SHARE = 2
"""Jails hold at most this part of the memory that sandboxes may be promised: they can stay for weeks."""


class JailListener:
    """Runs jails for commands, as ``principal``.

    ``refusal`` says why no more are taken; ``working`` counts one that is at work.
    """

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        refusal: Callable[[], str],
        working: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._runtime = runtime
        self._principal = principal
        self._refusal = refusal
        self._working = working
        self._most = runtime.settings.jail.places
        self._talks: dict[asyncio.Task[None], Talk] = {}
        self.held = 0
        """Jails that run here."""
        self._held_mb = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Takes orders within the block; at its end all jails are ended. Raises OSError."""
        if not self._most:
            yield
            return
        place = self._runtime.data_dir.run
        listener = _listen(place)
        loop = asyncio.get_running_loop()
        loop.add_reader(listener.fileno(), self._accept, listener)
        try:
            yield
        finally:
            loop.remove_reader(listener.fileno())
            listener.close()
            with suppress(OSError):
                (place / SOCKET).unlink()
            for talk in self._talks.values():
                talk.end("the server is stopping")
            while self._talks:
                await asyncio.wait(self._talks)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        if len(self._talks) - self.held >= _AT_ONCE:
            sock.close()
            return
        talk = Talk(sock)
        try:
            check_peer(sock)
        except NotAdmitted as why:
            logger.warning("a process was refused a jail: %s", why)
            talk.say({"refused": f"it takes no jail of this process: {why}"})
            talk.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(talk), name="a jail of a command")
        self._talks[task] = talk
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        talk = self._talks.pop(task)
        talk.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a jail of a command failed", exc_info=error)

    async def _serve(self, talk: Talk) -> None:
        talk.say({"hello": PROTOCOL, "release": __version__, "places": self._most, "held": self.held})
        try:
            async with asyncio.timeout(_ORDER_S):
                said, fds = await talk.next()
        except (TimeoutError, ConnectionError):
            return
        wires: _Wires | None = None
        try:
            ask = Ask.read(said.get("order"))
            with self._place(ask), self._working():
                order = await self._order(ask, fds)
                wires = _Wires(talk)
                record = await self._run(order, wires)
                talk.say({"ended": _ended(record)})
        except (SkillyardError, BadMessage, OSError) as error:
            begun = wires is not None and wires.begun
            talk.say({"failed" if begun else "refused": getattr(error, "message", "") or str(error)})
        finally:
            for fd in fds:
                os.close(fd)
            if wires is not None:
                wires.close_all()

    async def _run(self, order: JailOrder, wires: _Wires) -> RunRecord:
        watching = asyncio.create_task(wires.watch())
        try:
            return await self._runtime.app.jails.run(self._principal, order, wires)
        finally:
            watching.cancel()

    @contextmanager
    def _place(self, ask: Ask) -> Iterator[None]:
        """Holds a place of the jails of this server. Raises Busy."""
        if why := self._refusal():
            raise Busy(why, retry_after_ms=_RETRY_MS)
        admission = self._runtime.app.admission
        memory_mb = admission.most(ask.limits.memory_mb + ask.limits.disk_mb)
        if self.held >= self._most:
            raise Busy(f"it runs {self.held} jails already (jail.places)", retry_after_ms=_RETRY_MS)
        if (self._held_mb + memory_mb) * _SHARE > admission.most(_ALL_MB):
            raise Busy("its jails have half of the memory that it gives to sandboxes", retry_after_ms=_RETRY_MS)
        self.held += 1
        self._held_mb += memory_mb
        try:
            yield
        finally:
            self.held -= 1
            self._held_mb -= memory_mb

    async def _order(self, ask: Ask, fds: Sequence[int]) -> JailOrder:
        """Raises InvalidInput, StoreFault."""
        settings, ports = self._runtime.settings, self._runtime.app.ports
        closed = (*settings.closed_places, home.base(settings))
        directories = await asyncio.to_thread(received, fds, ask.directories, closed)
        book = SecretBook(ports.secrets, ports.secret_audit, ports.clock)
        mounts: tuple[Mount, ...] = ()
        if ask.package is not None:
            name, digest = ask.package
            store = store_of(settings)
            found = await asyncio.to_thread(store.find, name)
            if found.digest != digest:
                raise InvalidInput("name", "is another package where this server looks", shown(name))
            mounts = (store.mount(found),)
        return JailOrder(
            args=ask.args,
            limits=ask.limits,
            directories=directories,
            mounts=mounts,
            env=ask.env,
            rules=parse_rules(list(ask.allow), "allow"),
            secrets=await home.given(book, ask.secrets),
            cwd=ask.cwd,
            labels={} if ask.package is None else {"jail": ask.package[0]},
            isolation=ask.isolation,
            waits=False,
        )


def _ended(record: RunRecord) -> dict[str, object]:
    output = record.output if isinstance(record.output, dict) else {}
    ended = Ended(str(record.outcome or ""), output, record.summary)
    return ended.told()


def _listen(place: Path) -> socket.socket:
    """Binds through a descriptor of the directory: its path may be longer than a socket address."""
    place.mkdir(mode=0o700, exist_ok=True)
    directory = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=directory)
        sock.bind(f"/proc/self/fd/{directory}/{SOCKET}")
        os.chmod(SOCKET, 0o600, dir_fd=directory)  # before anybody can connect
        sock.setblocking(False)
        sock.listen(_AT_ONCE)
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(directory)
    return sock


class _Wires:
    """The server's ends of a program's standard streams. The command gets the others when the program runs."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._loop = asyncio.get_running_loop()
        self._ours: dict[str, socket.socket] = {}
        self._theirs: list[socket.socket] = []
        self.begun = False
        for name in ("stdin", *map(str, (Stream.STDOUT, Stream.STDERR))):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            self._ours[name] = ours
            self._theirs.append(theirs)

    @property
    def gone(self) -> asyncio.Future[str]:
        return self._talk.gone

    async def watch(self) -> None:
        """Hears when the command asks for the end."""
        with suppress(ConnectionError):
            said, fds = await self._talk.next()
            for fd in fds:
                os.close(fd)
            self._talk.end(str(said.get("end", "its client broke the rules"))[:200])

    async def read(self) -> bytes:
        if not self.begun:
            self.begun = True
            theirs, self._theirs = self._theirs, []
            self._talk.say({"begun": True}, theirs)
        try:
            return await self._loop.sock_recv(self._ours["stdin"], PIECE)
        except OSError:
            return b""

    async def write(self, stream: Stream, data: bytes) -> None:
        await self._loop.sock_sendall(self._ours[str(stream)], data)

    def close(self, stream: Stream) -> None:
        self._ours[str(stream)].close()

    def close_all(self) -> None:
        """Closes what is open. Idempotent."""
        for sock in (*self._ours.values(), *self._theirs):
            sock.close()
