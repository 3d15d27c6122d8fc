"""The server's connection to the process of its gate, which it finds or starts.

It carries requests with answers, and reports of the gate's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import select
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skillyard.domain.errors import GateFault
from skillyard.gate.wire import MAX_MESSAGE, PROTOCOL
from skillyard.ipc.channel import Channel, Header
from skillyard.ipc.peers import peer
from skillyard.own_process import command_of, kill_own

_PROGRAM = "skillyard.gate.process"
_NEEDS = ("skillyard", "h11", "cryptography")
_ENVIRONMENT = {"LANG": "C.UTF-8", "LOCALDOMAIN": "."}
"""Without a search list (resolv.conf(5)): a lookup of ``wiki`` must not find ``wiki.corp.example``, which was not
judged."""
_SOCKET, _LOCK, _LOG = "gate.sock", "gate.lock", "gate.log"
_START_BOUND_S = 20.0
_LOOK_AGAIN_S = 0.02
_END_BOUND_S = 5.0
_NOBODY = 65534
_MOST_SAID = 2000
_ENDED = "its process ended"
_CLOSED = "it was closed"


def _ignore(_: str) -> None:
    """Ignores the end of a gate that nobody attends."""


class _Gone(GateFault):
    """The gate ended, or serves another server, before it said that it is ready."""


async def linked(
    directory: Path,
    uid: int,
    on_fault: Callable[[str], None],
    end_older: Callable[[Link], Awaitable[None]],
    *,
    start: bool,
) -> Link | None:
    """Returns a link to the gate of ``directory``. Where there is none, ``start`` has one started. Raises GateFault.

    ``uid`` is the user of a gate of root's. A gate of an earlier version is given to ``end_older``, which ends it. A
    gate that starts or ends holds the lock and takes no connection: it is waited for."""
    why = "it does not start in time"
    try:
        async with asyncio.timeout(_START_BOUND_S):
            while True:
                sock, started = _connect(directory, uid), False
                if sock is None and (lock := _lock(directory)) >= 0:
                    if not start:
                        os.close(lock)
                        _tidy(directory, (_SOCKET,))
                        return None
                    sock, started = await _start(directory, uid, lock), True
                if sock is not None:
                    link = Link(sock, directory, on_fault)
                    try:
                        await link.ready()
                        if link.version == PROTOCOL:
                            return link
                        await end_older(link)
                    except _Gone as gone:
                        why = link.why
                        if started:
                            raise GateFault(f"the gate cannot start: {why}") from gone
                    except BaseException:
                        link.drop()
                        raise
                await asyncio.sleep(_LOOK_AGAIN_S)
    except TimeoutError:
        raise GateFault(f"the gate of {directory} cannot be reached: {why}") from None


def _connect(directory: Path, uid: int) -> socket.socket | None:
    """Returns a connection to a gate of ours, None when nobody listens. Raises GateFault for another user's process."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(directory) as short:
            sock.connect(f"{short}/{_SOCKET}")
    except OSError:
        sock.close()
        return None
    if (found := peer(sock)[1]) not in (os.geteuid(), uid, _NOBODY):
        sock.close()
        raise GateFault(f"{directory}: the user {found} answers in place of the gate; remove {_SOCKET}")
    return sock


def _lock(directory: Path) -> int:
    """Returns a descriptor with the lock of the one gate, or -1 when it is taken."""
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return -1
    return lock


def _tidy(directory: Path, names: Iterable[str]) -> None:
    """Removes what a gate left that has ended, however it ended. A gate that lives holds the lock."""
    if (lock := _lock(directory)) >= 0:
        for name in names:
            (directory / name).unlink(missing_ok=True)
        os.close(lock)


async def _start(directory: Path, uid: int, lock: int) -> socket.socket:
    """Starts the gate, gives ``lock`` to it, and returns a connection. Raises GateFault."""
    log = -1
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            with _short(directory) as short:
                (directory / _SOCKET).unlink(missing_ok=True)
                listener.bind(f"{short}/{_SOCKET}")
            listener.listen()
            kind = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            log = os.open(directory / _LOG, kind, 0o600)
            config = {"listener": listener.fileno(), "lock": lock, "uid": uid, "directory": str(directory)}
            await _run(command_of(_PROGRAM, _NEEDS, config), (listener.fileno(), lock), log, directory)
    except OSError as error:
        raise GateFault(f"the gate cannot start: {error.filename or ''} {error.strerror or error}") from error
    finally:
        os.close(lock)
        if log >= 0:
            os.close(log)
    started = _connect(directory, uid)
    if started is None:
        raise GateFault(f"the gate cannot start: {_said(directory) or 'it ended at once'}")
    return started


async def _run(command: Sequence[str], descriptors: Sequence[int], log: int, directory: Path) -> None:
    """Runs the command until the gate that it leaves behind is ready. Raises OSError, GateFault."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        env=_ENVIRONMENT,
        cwd="/",
        pass_fds=descriptors,
        start_new_session=True,
    )
    try:
        said, _ = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if said != b"ready":
        raise GateFault(f"the gate cannot start: {_said(directory) or f'exit code {process.returncode}'}")


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """Yields a short path of ``directory``: its own may be longer than a socket address."""
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _said(directory: Path) -> str:
    """Returns the last line that the gate wrote before it ended, without line breaks."""
    try:
        with (directory / _LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _MOST_SAID))
            lines = log.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Link:
    """A connection to the gate; ``why`` says how it ended."""

    def __init__(self, sock: socket.socket, directory: Path, on_fault: Callable[[str], None]) -> None:
        self._on_fault = on_fault
        self.on_end: Callable[[str], None] = _ignore
        """Called once with the reason when the gate ended without having been closed."""
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self.pid = peer(sock)[0]
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._facts: asyncio.Future[Header] = self._loop.create_future()
        self.told: dict[str, Header] = {}
        """The latest log of each session, for when the gate answers no more."""
        self.hears: dict[str, Callable[[Header], None]] = {}
        """Called with each report about a kept session, by the session's id."""
        self.calls: dict[str, Callable[[int, bytes], None]] = {}
        """Called with the number and the text of each call of a tool, by the session's id."""
        self.why = ""
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Done with the reason when the gate ended without having been closed."""
        self._channel = Channel(self._loop, sock, self._message, self._lost, MAX_MESSAGE)

    @property
    def alive(self) -> bool:
        return self._channel.alive

    @property
    def facts(self) -> Mapping[str, Any]:
        """Returns its facts about its walls; empty before it is ready."""
        return self._facts.result() if self._facts.done() and self._facts.exception() is None else {}

    @property
    def version(self) -> int:
        """Returns the version that it speaks, once it is ready."""
        return int(self.facts["protocol"])

    @property
    def held(self) -> dict[str, str]:
        """Returns the kept sessions that the gate had when it was found: their ids by their keys."""
        held: dict[str, str] = self.facts.get("held", {})
        return held

    async def ready(self) -> None:
        """Waits for its facts. Raises _Gone when it ends first, GateFault for a newer version."""
        await asyncio.shield(self._facts)
        if self.version > PROTOCOL:
            raise GateFault(
                f"the gate of {self._directory} speaks version {self.version} of its protocol, and this server "
                f"{PROTOCOL}: go on with the release that started it until the runs that it serves have ended"
            )

    async def ask(self, message: Header, sockets: Sequence[socket.socket] = ()) -> Any:
        """Returns the answer; ``sockets`` are given away. Raises GateFault."""
        answer = await self.post(message, sockets)
        if "error" in answer:
            raise GateFault(answer["error"])
        return answer["ok"]

    def post(self, message: Header, sockets: Sequence[socket.socket] = ()) -> asyncio.Future[Header]:
        """Returns a future of the answer, ``ok`` or ``error``.

        It fails with GateFault when the gate ends before. ``sockets`` are given away. Raises GateFault."""
        number = next(self._numbers)
        future: asyncio.Future[Header] = self._loop.create_future()
        self._asked[number] = future
        future.add_done_callback(lambda _: self._asked.pop(number, None))
        self._send(number, message, sockets)
        if not self.alive:
            future.cancel()
            raise GateFault(f"the gate is gone: {self.why}")
        return future

    @property
    def behind(self) -> bool:
        """Whether sent messages have not left yet."""
        return self._channel.behind

    def tell(self, message: Header) -> None:
        """Sends without waiting for the answer."""
        self._send(next(self._numbers), message)

    def called(self, session: str, number: int, answer: bytes) -> None:
        """Sends the answer to a call of a tool."""
        self._channel.send({"op": "called", "session": session, "call": number}, answer)

    def drop(self) -> None:
        """Closes the connection. A gate without kept sessions ends with it. Idempotent."""
        self._gone(_CLOSED)

    async def close(self, *, keeps: bool) -> None:
        """Closes the connection, and waits for the end of a gate that has no kept session. Idempotent.

        ``keeps`` says that a gate which does not answer may have some: it is left alone."""
        process = -1
        with contextlib.suppress(GateFault, OSError):  # it ended already, or is in another pid namespace
            try:
                async with asyncio.timeout(_END_BOUND_S):
                    keeps = bool(await self.ask({"op": "held"}))
            except TimeoutError:
                pass
            process = -1 if keeps else os.pidfd_open(self.pid)
        self.drop()
        if process >= 0:
            try:
                if not await asyncio.to_thread(_has_ended, process):
                    await kill_own(process)
                    await asyncio.to_thread(_has_ended, process)
            finally:
                os.close(process)
        _tidy(self._directory, (_SOCKET, _LOG))

    def _send(self, number: int, message: Header, sockets: Sequence[socket.socket] = ()) -> None:
        self._channel.send({"id": number, **message}, sockets=sockets)

    def _message(self, message: Header, body: bytes, fds: list[int]) -> None:
        for fd in fds:  # a gate has none to give
            os.close(fd)
        operation = message.get("op")
        if operation == "ready":
            self._facts.set_result(message)
        elif operation == "trouble":
            self._on_fault(str(message["text"]))
        elif operation == "refused":
            self._gone(str(message["why"]))
        elif operation == "log":
            self.told[message["session"]] = message["log"]
            if (hear := self.hears.get(message["session"])) is not None:
                hear(message)
        elif operation == "call":
            if (answer := self.calls.get(message["session"])) is not None:
                answer(message["call"], body)
        elif (future := self._asked.get(message["id"])) is not None and not future.done():
            future.set_result(message)

    def _lost(self) -> None:
        said = _said(self._directory)
        self._gone(f"{_ENDED}: {said}" if said else _ENDED)

    def _gone(self, why: str) -> None:
        first, ready, self.why = not self.why, bool(self.facts), self.why or why
        self._channel.close()
        for future in (self._facts, *tuple(self._asked.values())):
            if not future.done():
                future.set_exception(_Gone(f"the gate is gone: {self.why}"))
                future.exception()  # nobody may be waiting
        self._asked.clear()
        if first and ready and why != _CLOSED:
            self.lost.set_result(self.why)
            self.on_end(why)


def _has_ended(process: int) -> bool:
    """Returns whether the process of a descriptor has ended, for which it waits a while."""
    watch = select.poll()
    watch.register(process, select.POLLIN)
    return bool(watch.poll(_END_BOUND_S * 1000))
