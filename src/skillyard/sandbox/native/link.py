"""The server's connection to its keeper: questions with answers, and endings."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any

from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.ipc.channel import Channel, Header, close_all


class Link:
    """The server's end of a keeper's socket.

    It reports to three callbacks: ``on_end(header, body)`` for each program that ended or could not be started,
    ``on_lost()`` once when the keeper is gone, ``on_fault(text)`` for each fault of the keeper that did not end it.

    ``sockets`` in the header of an answer are socket objects; the caller of :meth:`ask` closes them."""

    def __init__(
        self,
        sock: socket.socket,
        on_end: Callable[[Header, bytes], None],
        on_lost: Callable[[], None],
        on_fault: Callable[[str], None] = lambda _: None,
    ):
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._on_lost = on_lost
        self._on_fault = on_fault
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[tuple[Header, bytes]]] = {}
        self._hello: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.ended = asyncio.Event()
        """Set when the connection is over: a keeper that was told to stop has ended then."""
        self.alive = True
        self._channel = Channel(self._loop, sock, self._heard, self._lost)

    async def facts(self) -> dict[str, Any]:
        """Returns the keeper's findings about its host.

        Raises SandboxFault when it turns us away, SandboxGone when it ended.
        """
        return await asyncio.shield(self._hello)

    @property
    def told(self) -> dict[str, Any]:
        """:meth:`facts`, once they have come."""
        return self._hello.result()

    def ask(self, header: Header, body: bytes = b"") -> asyncio.Future[tuple[Header, bytes]]:
        """The answer, to be awaited through :meth:`answer`."""
        number = next(self._numbers)
        header["q"] = number
        future: asyncio.Future[tuple[Header, bytes]] = self._loop.create_future()
        self._asked[number] = future
        self.tell(header, body)
        return future

    async def answer(self, header: Header, body: bytes = b"") -> tuple[Header, bytes]:
        """Ask and wait. Raises SandboxGone for what the keeper no longer has, SandboxFault for what failed."""
        got, content = await self.ask(header, body)
        if "gone" in got:
            raise SandboxGone(str(got["gone"]))
        if "error" in got:
            raise SandboxFault(str(got["error"]))
        return got, content

    def tell(self, header: Header, body: bytes = b"") -> None:
        """Send without waiting for an answer. Raises SandboxGone when the keeper is gone."""
        self._channel.send(header, body)
        if not self.alive:
            raise SandboxGone("the keeper is gone")

    def close(self) -> None:
        if self.alive:
            self._channel.close()
            self._lost()

    def _heard(self, header: Header, body: bytes, received: list[int]) -> None:
        sockets = [socket.socket(fileno=fd) for fd in received]
        if "a" in header:
            if sockets:
                header["sockets"] = sockets
            future = self._asked.pop(header["a"], None)
            if future is not None and not future.done():
                future.set_result((header, body))
                return
        elif header.get("event") == "end":
            self._on_end(header, body)
        elif header.get("event") == "fault":
            self._on_fault(str(header["text"]))
        elif header.get("event") == "hello":
            self._hello.set_result(header["facts"])
        elif header.get("event") == "refused":
            self._hello.set_exception(SandboxFault(str(header["why"])))
        close_all(sockets)

    def _lost(self) -> None:
        self.alive = False
        for future in self._asked.values():
            if not future.done():
                future.set_result(({"gone": "the keeper is gone"}, b""))
        self._asked.clear()
        if not self._hello.done():
            self._hello.set_exception(SandboxGone("the keeper ended before it said hello"))
            self._hello.exception()
        self.ended.set()
        self._on_lost()
