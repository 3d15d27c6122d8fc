"""Starts MCP servers, with their secrets, sandboxes, ways out and connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import field
from typing import Any
from urllib.parse import urlsplit

from skillyard.config.gateway.places import check_no_sockets
from skillyard.config.gateway.servers import McpServer
from skillyard.config.network import NetworkSettings
from skillyard.domain.errors import OutputDropped, SkillyardError, ToolServerFault
from skillyard.domain.network.policy import OPERATOR, Layer, Policy, parse_rules
from skillyard.domain.network.session import (
    ENDPOINT_USER,
    EgressLimits,
    EgressPlan,
    EndpointKind,
    GateSecret,
    new_placeholder,
)
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import Argv, AtCap, Mount, SandboxSpec, Stream, StreamLimits
from skillyard.domain.secret import Delivery, SecretAct, SecretEvent, bound_hosts
from skillyard.domain.work.record import Outcome
from skillyard.engine.backends import Backends
from skillyard.engine.lending import Lender, Order
from skillyard.engine.network.grant import ability
from skillyard.engine.network.run_network import NetworkGrant, first_record
from skillyard.engine.packages.environments import Environments
from skillyard.engine.secrets.redact import NOTHING, Redaction
from skillyard.engine.secrets.service import LEAST_AT_GATE, SecretBook
from skillyard.engine.tasks import Tasks
from skillyard.engine.text import clean
from skillyard.ports.gate import Gate, GateSession
from skillyard.ports.sandbox import Process
from skillyard.ports.tools import LinkBounds, Remote, ToolServer, ToolServers
from skillyard.values import dataclass

SERVER = "server"
"""The layer of a server's own rules."""
_ROOM = 1 << 20
"""Bytes of a message beside those of a tool's answer."""
_SAID = 400
_SKILLS = "/skills"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose process a server is: that of one principal, or of all where ``name`` is empty."""

    name: str
    project: str


@dataclass(slots=True)
class Standing:
    """A server at work. ``isolation``, ``enforced`` and ``guarantees`` are of its sandbox; empty for a remote one."""

    isolation: str = ""
    enforced: Mapping[str, str] = field(default_factory=dict)
    guarantees: Mapping[str, Any] = field(default_factory=dict)
    process: Process | None = None
    network: Any = None
    """Its :class:`~skillyard.engine.network.run_network.RunNetwork`, or a session of the gate; None without one."""
    redaction: Redaction = NOTHING
    link: ToolServer = field(init=False)

    async def connections(self) -> dict[str, Any] | None:
        """Returns what a record says of its network now."""
        return None if self.network is None else await self.network.so_far()


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts servers, each for one owner."""

    backends: Backends
    lender: Lender
    environments: Environments
    gate: Gate | None
    book: SecretBook
    network: NetworkSettings
    servers: ToolServers
    tasks: Tasks
    separate: bool = False
    """Whether principals share no warm interpreter."""

    def open(self, name: str, section: McpServer, owner: Owner, key: str) -> AbstractAsyncContextManager[Standing]:
        """Has the server stand for as long as the context lasts; nothing of it is left behind that.

        ``key`` names its sandbox. Raises ToolServerFault, Busy, ProtectionMissing and what sandboxes raise.
        """
        return self._remote(name, section, owner, key) if section.url else self._program(name, section, owner, key)

    @asynccontextmanager
    async def _program(self, name: str, section: McpServer, owner: Owner, key: str) -> AsyncIterator[Standing]:
        offer = self.backends.default
        if offer is None:
            raise ToolServerFault("no isolation stands yet")
        offer.check_ready()
        secrets, values = await self._secrets(name, section, owner, key)
        grant = self._grant(section.network, secrets, values)
        if grant is not None and (able := ability(offer, self.gate is not None)).level is Level.MISSING:
            raise ToolServerFault(f"it needs the network, and isolation '{offer.name}' cannot give it: {able.why}")
        environment = await self.environments.get(section.environment, offer)
        source = section.source_directory
        if section.source is not None:
            await asyncio.to_thread(check_no_sockets, f"mcp.servers.{name}.source", section.source)
        mounts = () if source is None else (Mount(source, f"{_SKILLS}/{name}"),)
        spec = SandboxSpec(
            limits=section.limits,
            environment=environment.ref,
            mounts=mounts,
            group=owner.name if self.separate else "",
            tenant=owner.name,
            single=True,
            command=True,
            kernel_only=offer.demand.kernel_only,
            allow_degraded=offer.demand.allow_degraded,
        )
        async with self.lender.lend(Order(key, owner.name or f"\0{SERVER}s", offer, spec, grant)) as loan:
            try:
                await loan.begin()
                env = {**section.env, **{secret.name: secret.placeholder for secret in secrets}}
                sandbox, guest = await loan.open({"env": env})
                cwd = f"{_SKILLS}/{name}" if section.source is not None else "/workspace"
                program = Argv(section.command, env=guest["env"], cwd=cwd, stdin=True)
                kept = StreamLimits(4 * _bounds(section).message_bytes, at_cap=AtCap.RING, stderr_bytes=_ROOM)
                life_ms = section.limits.timeout_ms
                process = await sandbox.start(program, id=key, timeout_ms=life_ms, streams=kept)
                standing = Standing(
                    offer.name,
                    loan.enforced,
                    loan.guarantees,
                    process,
                    loan.network,
                    Redaction(values) if values else NOTHING,
                )
                try:
                    async with self.servers.of_process(process, _bounds(section)) as link:
                        standing.link = link
                        yield standing
                except ToolServerFault as fault:
                    why, _ = await told(standing, standing.redaction.text(fault.message))
                    raise ToolServerFault(why) from None
            finally:
                await self.tasks.shielded(loan.end(), f"end of {key}")

    @asynccontextmanager
    async def _remote(self, name: str, section: McpServer, owner: Owner, key: str) -> AsyncIterator[Standing]:
        gate = self.gate
        if gate is None:
            raise ToolServerFault("it is behind HTTP, and this server has no gate")
        secrets, values = await self._secrets(name, section, owner, key)
        rules = parse_rules([_target(section.url)], "mcp.servers.url")
        grant = self._grant(rules, secrets, values)
        assert grant is not None, "it has a rule"
        session = await gate.open(key, grant.plan)
        try:
            endpoint = await gate.endpoint(key, EndpointKind.TCP)
            proxy = f"http://{ENDPOINT_USER}:{endpoint.credential}@{endpoint.address}"
            fields = section.fields({secret.name: secret.placeholder for secret in secrets})
            trust = next((mount.source.path for mount in session.mounts), self.network.ca_file)
            remote = Remote(section.url, fields, proxy, trust)
            network = _RemoteNetwork(session, grant)
            async with self.servers.remote(remote, _bounds(section)) as link:
                standing = Standing(network=network, redaction=grant.redaction)
                standing.link = link
                yield standing
        except ToolServerFault as fault:  # it may repeat a header field, in which the gate put a secret
            raise ToolServerFault(grant.redaction.text(fault.message)) from None
        finally:
            await self.tasks.shielded(session.close(), f"end of {key}")

    def _grant(self, rules: Any, secrets: tuple[GateSecret, ...], values: tuple[str, ...]) -> NetworkGrant | None:
        if not rules or self.gate is None:
            return None
        layers = (Layer(OPERATOR, self.network.rules), Layer(SERVER, tuple(rules)))
        policy = Policy(layers, self.network.hosts, self.network.nat64)
        limits: EgressLimits = self.network.limits.egress
        return NetworkGrant(self.gate, EgressPlan(policy, limits, secrets), Redaction(values) if values else NOTHING)

    async def _secrets(
        self, name: str, section: McpServer, owner: Owner, key: str
    ) -> tuple[tuple[GateSecret, ...], tuple[str, ...]]:
        """Returns the secrets of a server, and their values. Their use is in the audit then. Raises ToolServerFault."""
        found, events = [], []
        for wanted in section.secret_names:
            secret = await self.book.find(wanted, owner.project, "")
            if secret is None:
                missing = f"the secret '{wanted}' is not stored for the project '{owner.project}'"
                raise ToolServerFault(f"{missing}: `skillyard secret set {wanted}`")
            hosts = bound_hosts(secret.hosts or ())
            if secret.delivery is not Delivery.GATE or not hosts or len(secret.value) < LEAST_AT_GATE:
                mend = f"`skillyard secret bind {wanted} --delivery gate --host HOST`"
                rule = f"is not bound to hosts, or shorter than {LEAST_AT_GATE} characters"
                raise ToolServerFault(f"the secret '{wanted}' {rule}; MCP servers hold no secrets: {mend}")
            found.append(GateSecret(wanted, new_placeholder(), secret.value, hosts))
            events.append(
                SecretEvent(
                    at=self.book.clock.now(),
                    act=SecretAct.USED,
                    name=wanted,
                    principal=owner.name or SERVER,
                    project=owner.project,
                    skill="",
                    run_id=key,
                    scope=str(secret.scope),
                    version=secret.version,
                    delivery=Delivery.GATE.value,
                    reason=f"the MCP server '{name}'",
                )
            )
        if events:
            await self.book.audit.record(events)
        return tuple(found), tuple(secret.value for secret in found)


@dataclass(frozen=True, slots=True)
class _RemoteNetwork:
    """The network of a server that has no sandbox here."""

    session: GateSession
    grant: NetworkGrant

    async def lost(self) -> str:
        return await self.session.lost()

    async def so_far(self) -> dict[str, Any]:
        log = await self.session.log()
        return {**first_record(self.grant.plan.policy), **log.as_dict()}


def _bounds(section: McpServer) -> LinkBounds:
    return LinkBounds(section.result_bytes + _ROOM, patience_s=section.start_s)


def _target(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


_HOW = {
    Outcome.MEMORY: "it used more than its memory",
    Outcome.PROCESSES: "it started more processes than it may",
    Outcome.DISK: "it wrote more files than it may",
    Outcome.TIMEOUT: "its process reached the end of its life",
    Outcome.SIGNAL: "its program was ended by a signal",
    Outcome.LOST: "its sandbox was lost",
    Outcome.CANCELLED: "its program was ended",
}
_ENDING_S = 10.0


async def told(standing: Standing, why: str) -> tuple[str, Outcome]:
    """Returns ``why`` a server is gone with its last words, and how it ended. ``why`` has no secret.

    A program that goes on without its connection is ended.
    """
    process = standing.process
    if process is None:
        return why, Outcome.LOST
    try:
        async with asyncio.timeout(_ENDING_S):
            await process.kill("its connection is over")
            ending = await process.wait()
            last = standing.redaction.text(await _last_words(process))
    except (SkillyardError, TimeoutError):
        return why, Outcome.LOST
    how = _HOW.get(ending.outcome, f"its program ended with code {ending.code}")
    if ending.outcome is Outcome.CANCELLED:
        how = why
    outcome = ending.outcome if ending.outcome in (Outcome.MEMORY, Outcome.PROCESSES, Outcome.DISK) else Outcome.LOST
    return (f"{how}; it said: {last}" if last else how), outcome


async def _last_words(process: Process) -> str:
    """Returns the end of its standard error, in one line. It is written by others."""
    said, offset = b"", 0
    for _ in range(2):
        try:
            async for chunk in process.output(Stream.STDERR, offset):
                said = (said + chunk)[-4 * _SAID :]
        except OutputDropped as dropped:
            offset = dropped.first
            continue
        except SkillyardError:
            break
        break
    text = clean(said.decode("utf-8", "replace"))
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[-_SAID:]
