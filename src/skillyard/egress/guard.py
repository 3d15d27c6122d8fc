"""What is said on one relayed connection, held to the host that it was allowed for. Guards do no input or output:
whoever relays tells them what each side said, and passes on what they give back, which is all that they have judged."""

from __future__ import annotations

from typing import Protocol

ROOM = 1 << 16
"""Bytes of the client's that a guard holds before it wants no more."""


class Guard(Protocol):
    """After each ``client_says`` and ``server_says`` there may be something for both sides, also when it raised."""

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

    def client_says(self, data: bytes) -> None:
        """``data`` is empty at the end of what the client says. Raises Refused; what is then for the client is the
        refusal in its own protocol, or nothing, and nothing is for the server."""
        ...

    def server_says(self, data: bytes) -> None:
        """``data`` is empty at the end. Raises Refused as above (a request that waited for this answer to end)."""
        ...

    def for_server(self) -> bytes:
        """Takes what is to be written to the server; perhaps empty."""
        ...

    def for_client(self) -> bytes:
        """Takes what is to be written to the client; perhaps empty."""
        ...


class Outbox:
    """The two ways out that every guard has."""

    def __init__(self) -> None:
        self._to_server = bytearray()
        self._to_client = bytearray()

    def for_server(self) -> bytes:
        taken = bytes(self._to_server)
        self._to_server.clear()
        return taken

    def for_client(self) -> bytes:
        taken = bytes(self._to_client)
        self._to_client.clear()
        return taken


class Open(Outbox):
    """A guard that asks nothing."""

    raw = True
    wants_client = True
    over = False

    def client_says(self, data: bytes) -> None:
        self._to_server += data

    def server_says(self, data: bytes) -> None:
        self._to_client += data
