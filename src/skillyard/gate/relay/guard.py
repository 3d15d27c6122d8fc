"""The interface of guards, and the failures of a connection.

A guard holds one relayed connection to its host.
"""

from __future__ import annotations

from typing import Protocol


class Failure(Exception):
    """A connection is not made or does not go on because of ``reason``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Refused(Failure):
    """The policy, or a rule for every connection, does not allow it."""


class Unreachable(Failure):
    """It was allowed, but the name does not exist or no server answers."""


class TimedOut(Unreachable):
    """No server answers in time."""


class Ended(Failure):
    """A limit, a narrower policy or the end of its session ended it."""


ROOM = 1 << 16
"""Bytes of the client that a guard holds before it wants no more."""


class Guard(Protocol):
    """Judges the bytes of both sides.

    After each call, also one that raised, there may be bytes for both."""

    @property
    def raw(self) -> bool:
        """Returns whether the rest passes as it comes, both ways; the guard is needed no longer."""
        ...

    @property
    def wants_client(self) -> bool:
        """Returns whether to read the client.

        It is not read while it sent ahead more than is held (pipelining)."""
        ...

    @property
    def over(self) -> bool:
        """Returns whether the connection ends, on both sides, once the held bytes are written."""
        ...

    @property
    def busy(self) -> bool:
        """Returns whether to call :meth:`go_on` before either side is read again.

        Others have a turn first."""
        ...

    def client_says(self, data: bytes) -> None:
        """Takes bytes of the client, none at its end.

        Raises Refused; then the client gets the refusal in its own protocol, or nothing, and the server gets nothing.
        """
        ...

    def server_says(self, data: bytes) -> None:
        """Takes bytes of the server, none at its end.

        Raises Refused for a request that waited for this answer to end, and Unreachable for a server that does not
        speak its protocol."""
        ...

    def go_on(self) -> None:
        """Does work that was left over; raises as the others do."""
        ...

    @property
    def holding(self) -> bool:
        """Returns whether bytes of the server wait for the next ones, or for :meth:`server_pauses`."""
        ...

    def server_pauses(self) -> None:
        """Takes that the server sent nothing more for a moment."""
        ...

    def for_server(self) -> bytes:
        """Returns bytes to write to the server, once; perhaps none."""
        ...

    def for_client(self) -> bytes:
        """Returns bytes to write to the client, once; perhaps none."""
        ...


class Outbox:
    """Collects bytes for both sides; holds nothing back."""

    def __init__(self) -> None:
        self._to_server = bytearray()
        self._to_client = bytearray()

    @property
    def holding(self) -> bool:
        return False

    def server_pauses(self) -> None:
        """Does nothing."""

    def for_server(self) -> bytes:
        taken = bytes(self._to_server)
        self._to_server.clear()
        return taken

    def for_client(self) -> bytes:
        taken = bytes(self._to_client)
        self._to_client.clear()
        return taken


class Prompt(Outbox):
    """A guard that never has work left over."""

    @property
    def busy(self) -> bool:
        return False

    def go_on(self) -> None:
        """Does nothing."""


class Open(Prompt):
    """A guard that passes everything."""

    raw = True
    wants_client = True
    over = False

    def client_says(self, data: bytes) -> None:
        self._to_server += data

    def server_says(self, data: bytes) -> None:
        self._to_client += data
