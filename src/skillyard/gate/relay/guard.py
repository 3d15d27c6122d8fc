"""What is said on one relayed connection, held to the host that it was allowed for. Guards do no input or output:
whoever relays tells them what each side said, and passes on what they give back, which is all that they have judged."""

from __future__ import annotations

from typing import Protocol

ROOM = 1 << 16
"""Bytes of the client's that a guard holds before it wants no more."""


class Guard(Protocol):
    """After each call there may be something for both sides, also when it raised."""

    @property
    def raw(self) -> bool:
        """Whether the rest is passed on as it comes, in both directions: the guard is needed no longer once what it
        holds was taken."""
        ...

    @property
    def wants_client(self) -> bool:
        """Whether the client is to be read: no while it sent ahead (pipelining) more than is held."""
        ...

    @property
    def over(self) -> bool:
        """Whether the connection ends, on both sides, once what is held was written."""
        ...

    @property
    def busy(self) -> bool:
        """Whether :meth:`go_on` is to be called, before either side is read again and after others had their turn."""
        ...

    def client_says(self, data: bytes) -> None:
        """``data`` is empty at the end of what the client says. Raises Refused; what is then for the client is the
        refusal in its own protocol, or nothing, and nothing is for the server."""
        ...

    def server_says(self, data: bytes) -> None:
        """``data`` is empty at the end. Raises Refused as above (for a request that waited for this answer to end), or
        Unreachable where the server does not speak its protocol."""
        ...

    def go_on(self) -> None:
        """Work that was left over; raises as the others do."""
        ...

    @property
    def holding(self) -> bool:
        """Whether something of the server's waits for what follows, or for :meth:`server_pauses`."""
        ...

    def server_pauses(self) -> None:
        """Nothing more came of the server for a moment."""
        ...

    def for_server(self) -> bytes:
        """Takes what is to be written to the server; perhaps empty."""
        ...

    def for_client(self) -> bytes:
        """Takes what is to be written to the client; perhaps empty."""
        ...


class Outbox:
    """The two ways out that every guard has; nothing waits in it."""

    def __init__(self) -> None:
        self._to_server = bytearray()
        self._to_client = bytearray()

    @property
    def holding(self) -> bool:
        return False

    def server_pauses(self) -> None:
        """Nothing."""

    def for_server(self) -> bytes:
        taken = bytes(self._to_server)
        self._to_server.clear()
        return taken

    def for_client(self) -> bytes:
        taken = bytes(self._to_client)
        self._to_client.clear()
        return taken


class Prompt(Outbox):
    """Never has work left over."""

    @property
    def busy(self) -> bool:
        return False

    def go_on(self) -> None:
        """Nothing."""


class Open(Prompt):
    """A guard that asks nothing."""

    raw = True
    wants_client = True
    over = False

    def client_says(self, data: bytes) -> None:
        self._to_server += data

    def server_says(self, data: bytes) -> None:
        self._to_client += data
