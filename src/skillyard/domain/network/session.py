"""One run's way out: the gate's orders, its answers and its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from enum import Enum
from secrets import token_hex
from typing import Any

from skillyard.domain.network.policy import Policy
from skillyard.domain.network.rule import Rule
from skillyard.values import dataclass

DNS_PORT = 53
PROXY_PORT = 3128
"""Where HTTP and SOCKS5 proxy clients find the gate, at 127.0.0.1 inside."""
TOOLS_PORT = 3129
"""Where programs inside find the tools that they may call, at 127.0.0.1."""
ENDPOINT_USER = "skillyard"
"""The user beside the credential of an endpoint."""
KNOCK = b"\0"
"""The first byte of a connection to an endpoint that shows the credential once, before all else."""
_LOCAL = "localhost,127.0.0.1,::1"
TRUST_FILE = "/run/egress/ca.pem"
"""Where a sandbox finds the certificates to trust, among them its session's authority."""
PLACEHOLDER_PREFIX = "skillyard-secret-"
MOST_REASON = 300
"""Characters that a session's log keeps of the reason for which a connection failed."""
MOST_PORTS = 256
"""Ports that one sandbox listens on for programs that know no proxy."""
USUAL_PORTS = (
    21, 22, 25, 80, 110, 143, 389, 443, 465, 587, 636, 993, 995, 1433, 1521, 1883, 2181, 3306, 3389, 4222, 5432, 5671,
    5672, 6379, 6443, 7687, 8443, 8883, 9042, 9092, 9200, 9418, 9443, 11211, 27017,
)  # fmt: skip
"""Ports listened on where a policy allows every port: others are reached through the proxy. None on which programs
usually serve others in the same sandbox while they are written (3000, 5000, 8000, 8080, …): a program cannot serve on
a port that is listened on."""


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """Limits of one run: connections, bytes each way, and seconds.

    Connections are counted at once and in all. Seconds bound connecting, the first bytes, and silence both ways."""

    connections: int = 128
    connections_total: int = 10_000
    sent_bytes: int = 4 << 30
    received_bytes: int = 16 << 30
    connect_s: float = 10.0
    header_s: float = 30.0
    idle_s: float = 300.0


@dataclass(frozen=True, slots=True)
class GateSecret:
    """A value that the gate puts in the place of ``placeholder``.

    It does so in header fields of requests to ``hosts`` alone; with ``reading``, of those that change nothing there."""

    name: str
    placeholder: str
    value: str = field(repr=False)
    hosts: tuple[Rule, ...] = ()
    reading: bool = False


def new_placeholder() -> str:
    """Returns a placeholder, which a sandbox holds in a secret's place.

    It has 128 random bits, in characters that no URL, JSON text, shell or header has to quote."""
    return PLACEHOLDER_PREFIX + token_hex(16)


@dataclass(frozen=True, slots=True)
class ToolBudget:
    """Bounds the calls of tools of one run: their number, and all bytes both ways."""

    calls: int = 1000
    bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class EgressPlan:
    """``tools`` is there for a run that may call tools."""

    policy: Policy
    limits: EgressLimits = EgressLimits()
    secrets: tuple[GateSecret, ...] = ()
    tools: ToolBudget | None = None


@dataclass(frozen=True, slots=True)
class Egress:
    """The part of a sandbox's specification that plugs it into a session of the gate.

    ``ports`` are TCP ports for programs that know no proxy."""

    session: str
    ports: tuple[int, ...] = ()


class EndpointKind(Enum):
    """The kinds of addresses at which an endpoint of the gate can listen."""

    UNIX = "unix"
    TCP = "tcp"
    VSOCK = "vsock"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A session's own proxy (HTTP, SOCKS5), for a sandbox whose namespace we cannot enter.

    ``address`` is a path, ``HOST:PORT`` of the loopback, or ``CID:PORT``. Every request needs ``credential``."""

    kind: EndpointKind
    address: str
    credential: str = field(repr=False)

    def knock(self) -> bytes:
        """Returns the first words of a connection whose requests show no credential."""
        return KNOCK + f"{ENDPOINT_USER}:{self.credential}\n".encode()

    def env(self, at: str) -> Mapping[str, str]:
        """Returns the variables for programs that find the endpoint at ``at`` (``HOST:PORT``)."""
        return proxy_env(f"http://{ENDPOINT_USER}:{self.credential}@{at}")


def proxy_env(url: str) -> dict[str, str]:
    """Returns the variables that name a proxy.

    ALL_PROXY is not among them: httpx fails on it without a SOCKS library. ftp clients and others take the transparent
    path."""
    names = (name for word in ("http_proxy", "https_proxy") for name in (word, word.upper()))
    return dict.fromkeys(names, url) | dict.fromkeys(("no_proxy", "NO_PROXY"), _LOCAL)


def ports_of(policy: Policy) -> tuple[int, ...]:
    """Returns the ports on which a sandbox listens for programs that know no proxy.

    :data:`PROXY_PORT` and :data:`DNS_PORT` come beside them."""
    named = policy.ports(MOST_PORTS)
    found = {*named, *USUAL_PORTS} if policy.every_port else set(named)
    return tuple(sorted(found - {DNS_PORT, PROXY_PORT, TOOLS_PORT})[:MOST_PORTS])


def host_and_port(host: str, port: int) -> str:
    """Returns ``api.x.com:443`` or ``[2001:db8::1]:443``.

    A name that was only asked for has no port."""
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port}" if port else shown


@dataclass(slots=True)
class Connection:
    """Connections of one kind, counted together.

    ``via`` is http, connect, socks5, direct, dns, tools, or gate for an event of the gate itself. ``host`` is a name or
    an address. Bytes are of bodies and all else on the wire beyond the gate; ``first_ms`` and ``last_ms`` count from
    the session's start."""

    via: str
    host: str
    port: int
    allowed: bool
    layer: str = ""
    rule: str = ""
    reason: str = ""
    count: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    secrets: tuple[str, ...] = ()
    first_ms: float = 0.0
    last_ms: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"secrets": list(self.secrets)}


@dataclass(frozen=True, slots=True)
class NetworkLog:
    """The connections of a session; ``dropped`` ones fell into kinds beyond the log's bound."""

    connections: tuple[Connection, ...] = ()
    dropped: int = 0

    def as_dict(self) -> Mapping[str, Any]:
        return {"connections": [c.as_dict() for c in self.connections], "dropped": self.dropped}
