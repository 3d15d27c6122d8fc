"""The words between ``skillyard jail`` and a server that runs its program.

The server says hello, or why it refuses. The command sends its order, with a descriptor of each directory beside it.
``begun`` brings three sockets, for the standard streams; ``refused`` says that nothing was started. Afterwards the
command may say ``end``, and the server says once how the program ``ended``.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from skillyard.domain.work.limits import MINIMUM, Limits
from skillyard.ipc.channel import BadMessage, Channel, Given, Header
from skillyard.values import dataclass

PROTOCOL = 1
"""The version of these words. A command and a server of different versions share nothing."""
SOCKET = "jails.sock"
"""Its name below the data directory's ``run``."""
PIECE = 256 * 1024
_MOST_WORDS = 100_000
MOST_DIRECTORIES = 64


@dataclass(frozen=True, slots=True)
class Ask:
    """A jail as its command asks for it.

    ``directories`` are paths, each with whether it may be written to; a descriptor of each comes beside. ``package``
    is the name of one that was added, and the digest of its files.
    """

    args: tuple[str, ...]
    limits: Limits
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    allow: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    directories: tuple[tuple[str, bool], ...] = ()
    package: tuple[str, str] | None = None
    isolation: str | None = None

    def told(self) -> Header:
        return asdict(self)

    @classmethod
    def read(cls, told: object) -> Ask:
        """Returns the order. Raises BadMessage for another form."""
        names = {"args", "limits", "cwd", "env", "allow", "secrets", "directories", "package", "isolation"}
        if not isinstance(told, dict) or told.keys() != names:
            raise BadMessage("its order has other fields")
        package, isolation, env = told["package"], told["isolation"], told["env"]
        args = _texts(told["args"])
        if not args or not (isolation is None or isinstance(isolation, str)) or not isinstance(env, dict):
            raise BadMessage("its order has a field of another form")
        return cls(
            args=args,
            limits=_limits(told["limits"]),
            cwd=_texts([told["cwd"]])[0],
            env=dict(zip(_texts(list(env)), _texts(list(env.values())), strict=True)),
            allow=_texts(told["allow"]),
            secrets=_texts(told["secrets"]),
            directories=_directories(told["directories"]),
            package=None if package is None else _pair(package),
            isolation=isolation,
        )


def _texts(told: object) -> tuple[str, ...]:
    if not isinstance(told, list) or len(told) > _MOST_WORDS:
        raise BadMessage("its order has a field of another form")
    if not all(isinstance(text, str) and "\0" not in text for text in told):
        raise BadMessage("its order has a word that no program can have")
    return tuple(told)


def _pair(told: object) -> tuple[str, str]:
    texts = _texts(told)
    if len(texts) != 2:
        raise BadMessage("its order has a field of another form")
    return texts[0], texts[1]


def _directories(told: object) -> tuple[tuple[str, bool], ...]:
    if not isinstance(told, list) or len(told) > MOST_DIRECTORIES:
        raise BadMessage(f"its order has more than {MOST_DIRECTORIES} directories")
    found = []
    for each in told:
        if not isinstance(each, list) or [type(part) for part in each] != [str, bool]:
            raise BadMessage("its order has a directory of another form")
        found.append((each[0], each[1]))
    return tuple(found)


def _limits(told: object) -> Limits:
    least = MINIMUM.as_dict()
    if not isinstance(told, dict) or told.keys() != least.keys():
        raise BadMessage("its order has other limits")
    for name, value in told.items():
        whole = type(value) is int or (name == "cpus" and type(value) is float)
        if not whole or not least[name] <= value < 1 << 53:
            raise BadMessage(f"its limit {name} is out of range")
    return Limits(**told)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended, as its record says."""

    outcome: str
    output: Mapping[str, Any]
    summary: str

    def told(self) -> Header:
        return asdict(self)

    @classmethod
    def read(cls, told: object) -> Ended:
        """Raises BadMessage for another form."""
        match told:
            case {"outcome": str(outcome), "output": dict(output), "summary": str(summary)}:
                return cls(outcome, output, summary)
        raise BadMessage("its last word has another form")


class Talk:
    """One end of a conversation. ``gone`` is done when the other end is, with a sentence."""

    def __init__(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[str] = loop.create_future()
        self._heard: deque[tuple[Header, list[int]]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._channel = Channel(loop, sock, self._hear, lambda: self.end("its client is gone"))

    def say(self, header: Header, beside: Sequence[Given] = ()) -> None:
        """Sends words, and descriptors that are given away."""
        self._channel.send(header, sockets=beside)

    async def next(self) -> tuple[Header, list[int]]:
        """Returns the next words with their descriptors, which the caller closes.

        Raises ConnectionError when none come any more.
        """
        while not self._heard:
            if self.gone.done():
                raise ConnectionError("the other end is gone")
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._heard.popleft()

    def end(self, reason: str) -> None:
        """Notes that the other end is gone, or asks for the end."""
        if not self.gone.done():
            self.gone.set_result(reason)
        self._wake()

    def close(self) -> None:
        """Closes the connection, and descriptors that nobody took. Idempotent."""
        self._channel.close()
        while self._heard:
            for fd in self._heard.popleft()[1]:
                os.close(fd)
        self.end("the conversation is over")

    def _hear(self, header: Header, _body: bytes, received: list[int]) -> None:
        self._heard.append((header, received))
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Passed:
    """A descriptor beside words, as :class:`Channel` takes sockets."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
