"""The server's connection to one process of the gate.

It carries requests with answers, and reports of the gate's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skillyard.domain.errors import GateFault
from skillyard.gate.wire import MAX_MESSAGE
from skillyard.ipc.channel import Channel, Header
from skillyard.own_process import start_own

_PROGRAM = "skillyard.gate.process"
_NEEDS = ("skillyard", "h11", "cryptography")
_ENVIRONMENT = {"LANG": "C.UTF-8", "LOCALDOMAIN": "."}
"""Without a search list (resolv.conf(5)): a lookup of ``wiki`` must not find ``wiki.corp.example``, which was not
judged."""
_START_BOUND_S = 20.0
_END_BOUND_S = 5.0
_ENDED = "its process ended"
_CLOSED = "it was closed"


def _ignore(_: str) -> None:
    """Ignores the end of a gate that nobody attends."""


async def start(uid: int, on_fault: Callable[[str], None] = _ignore) -> Link:
    """Returns a gate that is ready. Raises GateFault."""
    process, sock = await _launch(uid)
    link = Link(process, sock, on_fault)
    try:
        async with asyncio.timeout(_START_BOUND_S):
            await link.ready()
    except TimeoutError:
        await link.close()
        raise GateFault("the gate does not start in time") from None
    except GateFault:
        await link.close()
        raise GateFault(f"the gate cannot start: {link.why}") from None
    except asyncio.CancelledError:
        await link.close()
        raise
    return link


class Link:
    """Starts with :func:`start`; ``why`` says how it ended."""

    def __init__(
        self, process: asyncio.subprocess.Process, sock: socket.socket, on_fault: Callable[[str], None]
    ) -> None:
        self._on_fault = on_fault
        self.on_end: Callable[[str], None] = _ignore
        """Called once with the reason when the gate ended without having been closed."""
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._channel = Channel(self._loop, sock, self._message, self._lost, MAX_MESSAGE)
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._facts: asyncio.Future[Header] = self._loop.create_future()
        self._end = self._loop.create_task(self._watch())
        self.told: dict[str, Header] = {}
        """The latest log of each session, for when the gate answers no more."""
        self.why = ""

    @property
    def alive(self) -> bool:
        return self._channel.alive

    @property
    def facts(self) -> Mapping[str, Any]:
        """Returns its facts about its walls; empty before it is ready."""
        return self._facts.result() if self._facts.done() and self._facts.exception() is None else {}

    async def ready(self) -> None:
        """Waits for its facts. Raises GateFault when it ends first."""
        await asyncio.shield(self._facts)

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

    async def close(self) -> None:
        """Closes the channel, with which the process ends. Idempotent."""
        self._gone(_CLOSED)
        try:
            async with asyncio.timeout(_END_BOUND_S):
                await asyncio.shield(self._end)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await asyncio.shield(self._end)

    def _send(self, number: int, message: Header, sockets: Sequence[socket.socket] = ()) -> None:
        self._channel.send({"id": number, **message}, sockets=sockets)

    def _message(self, message: Header, _: bytes, fds: list[int]) -> None:
        for fd in fds:  # a gate has none to give
            os.close(fd)
        operation = message.get("op")
        if operation == "ready":
            self._facts.set_result(message)
        elif operation == "trouble":
            self._on_fault(str(message["text"]))
        elif operation == "log":
            self.told[message["session"]] = message["log"]
        elif (future := self._asked.get(message["id"])) is not None and not future.done():
            future.set_result(message)

    def _lost(self) -> None:
        self._gone(_ENDED)

    async def _watch(self) -> None:
        """Waits for the end of the process and says why it ended."""
        said = await _error_output(self._process)
        code = await self._process.wait()
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        lines = said.splitlines()
        self._gone(why := f"its process ended with {end}{': ' + lines[-1] if lines else ''}")
        if self.why == _ENDED:
            self.why = why

    def _gone(self, why: str) -> None:
        first, self.why = not self.why, self.why or why
        self._channel.close()
        for future in (self._facts, *tuple(self._asked.values())):
            if not future.done():
                future.set_exception(GateFault(f"the gate is gone: {self.why}"))
                future.exception()  # nobody may be waiting
        self._asked.clear()
        if first and why != _CLOSED:
            self.on_end(why)


async def _launch(uid: int) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Starts the process; returns it and our end of its channel. Raises GateFault."""
    try:
        return await start_own(_PROGRAM, _NEEDS, {"uid": uid}, _ENVIRONMENT, asyncio.subprocess.PIPE)
    except OSError as error:
        raise GateFault(f"the gate cannot start: {error.filename or ''} {error.strerror or error}") from error


async def _error_output(process: asyncio.subprocess.Process, most: int = 2000) -> str:
    """Returns the end of its standard error, once it has ended."""
    said = b""
    assert process.stderr is not None
    with contextlib.suppress(OSError):
        while data := await process.stderr.read(most):
            said = (said + data)[-most:]
    return said.decode("utf-8", "replace").strip()
