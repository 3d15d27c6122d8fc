"""The server's connection to its keeper: questions with answers, and endings."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from skillyard.domain.errors import SandboxCutOff, SandboxFault, SandboxGone
from skillyard.ipc.channel import Channel, Header, close_all, is_quiet
from skillyard.sandbox.native.protocol import mark_begun

TOLD_EACH = 64 * 1024
"""Bytes that a reader took, after which the keeper hears of it: a part of what it sends ahead."""

_CUT = {"gone": "the keeper is gone", "cut": True}
"""The answer to everything when the connection is over."""


def gone(told: Header) -> SandboxGone:
    """Returns the error for an answer that says ``gone``."""
    return (SandboxCutOff if "cut" in told else SandboxGone)(str(told["gone"]))


class Following:
    """The server's end of one stream that the keeper pushes. ``end`` says why no more comes, once it is set."""

    def __init__(self, link: Link, number: int, offset: int) -> None:
        self._link = link
        self._number = number
        self._pieces: deque[bytes] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._told = offset
        self.end: Header | None = None

    async def next(self) -> bytes:
        """Returns the next piece; none when :attr:`end` is set and all was given. One reader calls it."""
        while not self._pieces and self.end is None:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._pieces.popleft() if self._pieces else b""

    def took(self, offset: int) -> None:
        """Makes room for more, now and then: the reader has all before ``offset``."""
        if self.end is None and offset - self._told >= TOLD_EACH:
            self._told = offset
            self._link.tell({"op": "took", "follow": self._number, "offset": offset})

    def close(self) -> None:
        """Stops the pushing, unless it came to its end. Idempotent."""
        if self._link.forget(self._number) and self.end is None and self._link.alive:
            self._link.tell({"op": "took", "follow": self._number, "offset": None})

    def push(self, data: bytes, why: Header) -> None:
        """Takes a piece; ``why`` is empty but for the last one."""
        if data:
            self._pieces.append(data)
        if why and self.end is None:
            self.end = why
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Ready(NamedTuple):
    """A sandbox that the keeper offered: its worker waits at the other end of ``channel``."""

    handle: str
    channel: socket.socket

    def give(self, request: bytes) -> int:
        """Writes the request of its guest, before the keeper hears of it.

        Returns how many bytes were taken: fewer in a small channel, none where the worker has ended.
        """
        try:
            mark_begun(self.channel)
            taken = self.channel.send(request, socket.MSG_DONTWAIT)
            if taken == len(request):
                self.channel.shutdown(socket.SHUT_WR)
        except OSError:
            return 0
        return taken


class _Asked(NamedTuple):
    future: asyncio.Future[tuple[Header, bytes]]
    unwanted: Callable[[Header], None]
    comes: Callable[[Header], None]


class Link:
    """The server's end of a keeper's socket.

    It reports to four callbacks: ``on_end(header, body)`` for each program that ended or could not be started,
    ``on_lost()`` once when the keeper is gone, ``on_fault(text)`` for each fault of the keeper that did not end it, and
    ``on_gone(handle)`` when nothing is left of a sandbox that was parting.

    ``sockets`` in the header of an answer are socket objects; the caller of :meth:`ask` closes them."""

    def __init__(
        self,
        sock: socket.socket,
        on_end: Callable[[Header, bytes], None],
        on_lost: Callable[[], None],
        on_fault: Callable[[str], None] = lambda _: None,
        on_gone: Callable[[str], None] = lambda _: None,
    ):
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._on_lost = on_lost
        self._on_fault = on_fault
        self._on_gone = on_gone
        self._numbers = itertools.count(1)
        self._followings: dict[int, Following] = {}
        self._asked: dict[int, _Asked] = {}
        self._ready: dict[frozenset[tuple[str, Any]], dict[str, socket.socket]] = {}
        """Ends of channels of sandboxes that the keeper offered, by shape and handle."""
        self._hello: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.ended = asyncio.Event()
        """Set when the connection is over: a keeper that was told to stop has ended then."""
        self.alive = True
        self.refused: Mapping[str, str] = {}
        """Operations that an older keeper does not speak, each with the reason."""
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

    def ask(
        self,
        header: Header,
        body: bytes = b"",
        unwanted: Callable[[Header], None] = lambda _: None,
        comes: Callable[[Header], None] = lambda _: None,
    ) -> asyncio.Future[tuple[Header, bytes]]:
        """The answer, to be awaited through :meth:`answer`.

        ``comes`` gets it before anything else that the keeper says; ``unwanted`` gets that of a cancelled future.
        """
        number = next(self._numbers)
        header["q"] = number
        future: asyncio.Future[tuple[Header, bytes]] = self._loop.create_future()
        self._asked[number] = _Asked(future, unwanted, comes)
        self.tell(header, body)
        return future

    async def answer(self, header: Header, body: bytes = b"") -> tuple[Header, bytes]:
        """Asks and waits.

        Raises SandboxGone for what the keeper no longer has, SandboxCutOff when the connection broke, SandboxFault for
        what failed.
        """
        got, content = await self.ask(header, body)
        if "gone" in got:
            raise gone(got)
        if "error" in got:
            raise SandboxFault(str(got["error"]))
        return got, content

    def tell(self, header: Header, body: bytes = b"") -> None:
        """Send without waiting for an answer.

        Raises SandboxCutOff when the connection is over, SandboxFault for an operation that it does not speak.
        """
        if header["op"] in self.refused:
            self._asked.pop(header.get("q", 0), None)
            raise SandboxFault(self.refused[header["op"]])
        self._channel.send(header, body)
        if not self.alive:
            raise gone(_CUT)

    def follow(self, header: Header) -> Following:
        """Asks for a stream to be pushed from ``header["offset"]`` on."""
        number = next(self._numbers)
        following = Following(self, number, header["offset"])
        if "follow" in self.refused:
            following.push(b"", {"error": self.refused["follow"]})
            return following
        self._channel.send({**header, "op": "follow", "follow": number})
        if self.alive:
            self._followings[number] = following
        else:
            following.push(b"", _CUT)
        return following

    def take(self, shape: Header) -> Ready | None:
        """Returns a sandbox of a shape that waits. Its channel is the caller's to close."""
        key = frozenset(shape.items())
        while waiting := self._ready.get(key):
            ready = self._withdraw(key, next(iter(waiting)))
            if ready is not None and is_quiet(ready.channel):
                return ready
            if ready is not None:
                ready.channel.close()
        return None

    def _withdraw(self, key: frozenset[tuple[str, Any]], handle: str) -> Ready | None:
        """Drops an offer, and its shape with the last one: callers choose shapes without end."""
        waiting = self._ready.get(key, {})
        channel = waiting.pop(handle, None)
        if not waiting:
            self._ready.pop(key, None)
        return None if channel is None else Ready(handle, channel)

    def forget(self, number: int) -> bool:
        """Drops a following; returns whether it was there."""
        return self._followings.pop(number, None) is not None

    def close(self) -> None:
        if self.alive:
            self._channel.close()
            self._lost()

    def _heard(self, header: Header, body: bytes, received: list[int]) -> None:
        sockets = [socket.socket(fileno=fd) for fd in received]
        if "a" in header:
            if sockets:
                header["sockets"] = sockets
            asked = self._asked.pop(header["a"], None)
            if asked is not None and not asked.future.done():
                asked.comes(header)
                asked.future.set_result((header, body))
                return
            if asked is not None:
                asked.unwanted(header)
        elif header.get("event") == "end":
            self._on_end(header, body)
        elif header.get("event") == "output":
            following = self._followings.get(header.pop("follow"))
            if following is not None:
                del header["event"]
                following.push(body, header)
        elif header.get("event") == "ready":
            self._ready.setdefault(frozenset(header["shape"].items()), {})[str(header["handle"])] = sockets.pop()
        elif header.get("event") == "unready":
            withdrawn = self._withdraw(frozenset(header["shape"].items()), str(header["handle"]))
            sockets += [withdrawn.channel] if withdrawn is not None else []
        elif header.get("event") == "gone":
            self._on_gone(str(header["handle"]))
        elif header.get("event") == "fault":
            self._on_fault(str(header["text"]))
        elif header.get("event") == "hello":
            self._hello.set_result(header["facts"])
        elif header.get("event") == "refused":
            self._hello.set_exception(SandboxFault(str(header["why"])))
        close_all(sockets)

    def _lost(self) -> None:
        self.alive = False
        for asked in self._asked.values():
            if not asked.future.done():
                asked.future.set_result((_CUT, b""))
        self._asked.clear()
        for following in self._followings.values():
            following.push(b"", _CUT)
        for waiting in self._ready.values():
            close_all(waiting.values())
        self._ready.clear()
        if not self._hello.done():
            self._hello.set_exception(SandboxGone("the keeper ended before it said hello"))
            self._hello.exception()
        self.ended.set()
        self._on_lost()
