"""The gate port: the only way out of a sandbox with a network policy.

A session ends with its server, or is *kept*: then it outlives its server, and is opened again when its gate dies. Its
state is sealed in a :class:`SessionStore` for that.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import EgressPlan, Endpoint, EndpointKind, NetworkLog
from skillyard.domain.sandbox.spec import Mount

Answer = Callable[[bytes, Callable[[bytes], None]], None]
"""Gets a call of a tool that the gate passed on, and a function for its answer, to be called at most once."""


class GateSession(Protocol):
    """One run's: open before its sandbox is made, closed after it is gone."""

    @property
    def id(self) -> str: ...

    @property
    def env(self) -> Mapping[str, str]:
        """Variables by which programs inside find the gate and trust its authority. No secret values."""
        ...

    @property
    def mounts(self) -> Sequence[Mount]:
        """Files that the sandbox needs, such as the certificates to trust."""
        ...

    @property
    def policy(self) -> Policy:
        """Returns the rules in force."""
        ...

    async def change(self, policy: Policy) -> None:
        """Changes the rules of a session, which are in force when this returns.

        They hold for new connections; open ones that they do not allow are ended. A kept session has them again after
        its gate died.
        """
        ...

    def attend(self, plug: Callable[[], Awaitable[None]]) -> None:
        """Calls ``plug`` when a kept session was opened again, to plug its sandbox in again."""
        ...

    def answer_calls(self, answer: Answer) -> None:
        """Has ``answer`` called with each call of a tool by the run.

        It is called on the event loop, and must not block."""
        ...

    async def lost(self) -> str:
        """Returns why its gate is gone, once it is. A kept session goes on in another gate, and waits here for ever."""
        ...

    async def log(self) -> NetworkLog:
        """Returns what was decided so far."""
        ...

    async def close(self) -> NetworkLog:
        """End every connection, forget every secret, erase what was sealed; the whole log. Idempotent."""
        ...


class Plug(Protocol):
    """The gate as a backend uses it, to plug a sandbox in.

    The sockets listen in the sandbox's own network namespace, at each of its addresses. Each shows its use: datagrams
    and streams on port 53 are for names, :data:`PROXY_PORT` is for proxy clients, streams on other ports are for
    programs that know no proxy. They are non-blocking, of AF_INET6 with IPV6_V6ONLY off (AF_INET where the host has no
    IPv6); datagrams tell the address that was asked (IPV6_PKTINFO).
    """

    async def plug(self, session: str, sockets: Sequence[socket.socket]) -> None:
        """The gate serves them from here on; ours are closed. Raises GateFault for an unknown session or a gate that is
        gone: the sandbox must then not be used. A gate that cannot take them later closes them, and says so in the
        session's log."""
        ...

    async def way(self, session: str) -> Endpoint:
        """Returns the endpoint of a session for a backend that carries connections to it.

        It is of the kind UNIX, and the same one for as long as the session lives, also after a restart. Each connection
        begins with :meth:`Endpoint.knock`. Raises GateFault for an unknown session and a gate that is gone."""
        ...

    def served(self, session: str) -> Collection[int]:
        """Returns the ports of streams on which the gate listens for a session, if it is open."""
        ...


class Gate(Plug, Protocol):
    async def open(self, key: str, plan: EgressPlan, kept: bool = False) -> GateSession:
        """A session for one run, ``key`` its id. Raises GateFault.

        A kept session whose key is open goes on under the new plan: placeholders, certificates, names and log of
        before stay valid, since the sandbox may have them already.
        """
        ...

    async def attach(self, key: str) -> GateSession:
        """Returns the kept session of an earlier server, or of a gate that died.

        Raises GateFault when there is none."""
        ...

    async def held(self) -> Collection[str]:
        """Returns the keys of all kept sessions, also of those that are left as sealed state.

        Raises GateFault."""
        ...

    async def discard(self, key: str) -> None:
        """Ends a kept session whose sandbox is gone, and erases it. Idempotent. Raises GateFault."""
        ...

    async def endpoint(self, key: str, kind: EndpointKind) -> Endpoint:
        """Returns a new endpoint of the open session ``key``, which lasts as long as the session.

        Raises GateFault for a session that is not open and a kind that this host does not have."""
        ...

    async def close(self) -> None:
        """End every session that is not kept. Idempotent."""
        ...


class SessionStore(Protocol):
    """The sealed state of kept sessions.

    Without the store's key, nobody can read it, change it or give it to another session."""

    async def put(self, key: str, state: bytes) -> None:
        """Seals the state of a session in the place of an earlier one.

        It survives the end of processes, not of the host, as sandboxes do. Raises StoreFault without a key."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Returns a session's state, None when there is none. Raises StoreFault for one that cannot be opened."""
        ...

    async def erase(self, key: str) -> None:
        """Erases a session's state, also without a key. Idempotent. Raises StoreFault."""
        ...

    async def keys(self) -> Collection[str]:
        """Returns the keys of all sessions, also without a key. Raises StoreFault."""
        ...
