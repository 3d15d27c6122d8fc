"""The gate port: the only way out of a sandbox with a network policy."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import EgressPlan, NetworkLog
from skillyard.domain.sandbox.spec import Mount


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

    async def change(self, policy: Policy) -> None:
        """Changes the rules of a session, which are in force when this returns.

        They hold for new connections; open ones that they do not allow are ended.
        """
        ...

    async def log(self) -> NetworkLog:
        """Returns what was decided so far."""
        ...

    async def close(self) -> NetworkLog:
        """End every connection, forget every secret; the whole log. Idempotent."""
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


class Gate(Plug, Protocol):
    async def open(self, key: str, plan: EgressPlan) -> GateSession:
        """A session for one run, ``key`` its id. Raises GateFault."""
        ...

    async def close(self) -> None:
        """End every session. Idempotent."""
        ...
