"""A gate that decides as the real one does, when a test's script asks it, and says when it was asked what."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skillyard.domain.errors import GateFault
from skillyard.domain.network.address import parse_address
from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import Connection, EgressPlan, Endpoint, EndpointKind, NetworkLog
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Mount
from skillyard.ports.gate import Answer

PROXY = "http://127.0.0.1:3128"
TRUST = Mount(Content("trust", Path(__file__)), "/run/egress/ca.pem")


@dataclass
class FakeSession:
    gate: FakeGate
    id: str
    plan: EgressPlan
    policy: Policy
    connections: list[Connection] = field(default_factory=list)
    closes: int = 0
    plug: Callable[[], Awaitable[None]] | None = None
    answer: Answer | None = None

    @property
    def env(self) -> Mapping[str, str]:
        return {"HTTPS_PROXY": PROXY, "SSL_CERT_FILE": TRUST.target}

    @property
    def mounts(self) -> Sequence[Mount]:
        return [TRUST]

    def connect(self, host: str, port: int, sent: int = 0, received: int = 0) -> bool:
        """What a program inside would get."""
        address = parse_address(host)
        said = self.policy.ask(None if address else host, address, port)
        one = Connection("http", host, port, said.allowed, said.layer, said.rule, said.reason, 1, sent, received)
        one.last_ms = float(len(self.connections))
        self.connections.append(one)
        return said.allowed

    def answer_calls(self, answer: Answer) -> None:
        self.answer = answer

    def attend(self, plug: Callable[[], Awaitable[None]]) -> None:
        self.plug = plug

    async def lost(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def change(self, policy: Policy) -> None:
        self.gate.check()
        self.policy = policy

    async def log(self) -> NetworkLog:
        self.gate.check()
        return NetworkLog(tuple(self.connections))

    async def close(self) -> NetworkLog:
        self.closes += 1
        self.gate.order.append(f"close {self.id}")
        self.gate.check()
        return NetworkLog(tuple(self.connections))


class FakeGate:
    """``down`` makes everything fail; ``hold`` keeps sessions from opening; ``order`` is what happened in turn."""

    def __init__(self) -> None:
        self.sessions: dict[str, FakeSession] = {}
        self.order: list[str] = []
        self.kept: set[str] = set()
        self.down = False
        self.hold: asyncio.Event | None = None

    def check(self) -> None:
        if self.down:
            raise GateFault("the gate is gone")

    @property
    def last(self) -> FakeSession:
        return list(self.sessions.values())[-1]

    async def attach(self, key: str) -> FakeSession:
        self.check()
        if key not in self.kept:
            raise GateFault(f"the gate keeps no session '{key}'")
        return self.sessions[key]

    async def held(self) -> Collection[str]:
        self.check()
        return frozenset(self.kept)

    async def discard(self, key: str) -> None:
        self.check()
        self.kept.discard(key)

    async def endpoint(self, key: str, kind: EndpointKind) -> Endpoint:
        raise GateFault(f"the fake gate has no {kind.value} endpoint for {key}")

    async def way(self, session: str) -> Endpoint:
        raise GateFault(f"the fake gate has no way for {session}")

    def served(self, session: str) -> Collection[int]:
        return ()

    async def open(self, key: str, plan: EgressPlan, kept: bool = False) -> FakeSession:
        if kept:
            self.kept.add(key)
        if self.hold is not None:
            await self.hold.wait()
        self.check()
        session = self.sessions[key] = FakeSession(self, f"session-of-{key}", plan, plan.policy)
        self.order.append(f"open {session.id}")
        return session

    async def plug(self, session: str, sockets: Sequence[socket.socket]) -> None:
        raise GateFault("the sandbox twin has no sockets")

    async def close(self) -> None:
        return
