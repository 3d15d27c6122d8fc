"""The server's connection to one process of the gate: questions with answers, and what it says by itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skillyard.domain.errors import GateFault
from skillyard.gate.channel import Channel, Message
from skillyard.gate.launch import last_words, launch

_START_BOUND_S = 20.0
_END_BOUND_S = 5.0
_ENDED = "its process ended"
_CLOSED = "it was closed"


def _nobody_hears(_: str) -> None:
    """Takes the end of a gate that nobody attends."""


async def start(uid: int, on_fault: Callable[[str], None] = _nobody_hears) -> Link:
    """A gate that is ready. Raises GateFault."""
    process, sock = await launch(uid)
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
    """``why`` says how it ended, once it has."""

    def __init__(
        self, process: asyncio.subprocess.Process, sock: socket.socket, on_fault: Callable[[str], None]
    ) -> None:
        self._on_fault = on_fault
        self.on_end: Callable[[str], None] = _nobody_hears
        """Called once with the reason when the gate ended without having been closed."""
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._channel = Channel(sock, self._message, self._lost)
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._facts: asyncio.Future[Message] = self._loop.create_future()
        self._end = self._loop.create_task(self._watch())
        self.told: dict[str, Message] = {}
        """The last that was said of each session's log, should nobody answer any more."""
        self.why = ""

    @property
    def alive(self) -> bool:
        return self._channel.alive

    @property
    def facts(self) -> Mapping[str, Any]:
        """What it said of itself when it was ready; empty before."""
        return self._facts.result() if self._facts.done() and self._facts.exception() is None else {}

    async def ready(self) -> None:
        """Raises GateFault when it ends first."""
        await asyncio.shield(self._facts)

    async def ask(self, message: Message, sockets: Sequence[socket.socket] = ()) -> Any:
        """The answer; ``sockets`` are given away. Raises GateFault."""
        answer = await self.post(message, sockets)
        if "error" in answer:
            raise GateFault(answer["error"])
        return answer["ok"]

    def post(self, message: Message, sockets: Sequence[socket.socket] = ()) -> asyncio.Future[Message]:
        """What will be answered, ``ok`` or ``error``; GateFault when the gate ends before. ``sockets`` are given away.
        Raises GateFault."""
        number = next(self._numbers)
        future: asyncio.Future[Message] = self._loop.create_future()
        self._asked[number] = future
        future.add_done_callback(lambda _: self._asked.pop(number, None))
        self._send(number, message, sockets)
        if not self.alive:
            future.cancel()
            raise GateFault(f"the gate is gone: {self.why}")
        return future

    @property
    def behind(self) -> bool:
        """Whether something that was sent has not left yet."""
        return self._channel.behind

    def tell(self, message: Message) -> None:
        """Without waiting for the answer."""
        self._send(next(self._numbers), message)

    async def close(self) -> None:
        """The process ends when its channel does. Idempotent."""
        self._gone(_CLOSED)
        try:
            async with asyncio.timeout(_END_BOUND_S):
                await asyncio.shield(self._end)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await asyncio.shield(self._end)

    def _send(self, number: int, message: Message, sockets: Sequence[socket.socket] = ()) -> None:
        self._channel.send({"id": number, **message}, sockets)

    def _message(self, message: Message, fds: list[int]) -> None:
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
        """Until the process has ended, which is then waited for."""
        said = await last_words(self._process)
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
