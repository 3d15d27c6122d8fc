"""The network of a run at work: its session of the gate, its policy and its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from skillyard.domain.errors import GateFault, InvalidInput, SandboxGone
from skillyard.domain.network.policy import OPERATOR, PROFILE, Layer, Policy
from skillyard.domain.network.rule import Rule
from skillyard.domain.network.session import (
    MOST_REASON,
    PROXY_PORT,
    TOOLS_PORT,
    Connection,
    Egress,
    EgressPlan,
    NetworkLog,
    ports_of,
    proxy_env,
)
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.engine.network.grant import layers_of
from skillyard.engine.secrets.redact import Redaction
from skillyard.engine.tasks import Tasks
from skillyard.ports.gate import Gate, GateSession
from skillyard.ports.sandbox import Networked, Sandbox
from skillyard.values import dataclass

T = TypeVar("T")

LIVE, ADMIN = "live", "admin"
GATE = "gate"
"""The channel of an entry that tells of the gate's own end: its last observations are lost."""
PATIENCE_S = 10.0
"""How long the gate may take for anything."""
MOST_CHANGES, MOST_CHANGED = 1000, 256 * 1024
"""Changes that a run's record holds, and characters of their rules."""


@dataclass(frozen=True, slots=True)
class Change:
    """``at`` is UTC seconds; ``layer`` is whose ``rules`` they are."""

    at: float
    by: str
    layer: str
    rules: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"at": self.at, "by": self.by, "layer": self.layer, "rules": list(self.rules)}


Calls = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class NetworkGrant:
    """The plan that ``gate`` gets, and the secrets that are removed from its answers.

    A ``kept`` network outlives its server: that of a run that does."""

    gate: Gate
    plan: EgressPlan
    redaction: Redaction
    kept: bool = False
    calls: Calls | None = None
    """Answers the calls of tools of a run that may make some."""


class RunNetwork:
    """The network of one run: :meth:`begin`, :meth:`join`, :meth:`enter`, then :meth:`close`.

    Any number of :meth:`change` and :meth:`so_far` may stand before the last. That of a run which an earlier server
    began starts with :meth:`of_record` and :meth:`resume` instead."""

    def __init__(self, run_id: str, grant: NetworkGrant) -> None:
        self._run_id = run_id
        self._gate = grant.gate
        self._plan = grant.plan
        self._kept = grant.kept
        self._redaction = grant.redaction
        self._calls = grant.calls
        self._answering = Tasks()
        self._first = first_record(grant.plan.policy)
        self._granted = self._policy = grant.plan.policy
        self._changes: list[Change] = []
        self._opening: asyncio.Task[GateSession] | None = None
        self._resumed: GateSession | None = None
        self._unplugged = ""
        """Why the sandbox could not be plugged into another gate."""
        self._sandbox: Sandbox | None = None
        self._ports: frozenset[int] | None = None
        """Ports that the sandbox listens on for its gate; None while nobody knows."""
        self._closed: NetworkLog | None = None
        self._busy = asyncio.Lock()

    @classmethod
    def of_record(cls, run_id: str, gate: Gate, redaction: Redaction, told: Mapping[str, Any]) -> RunNetwork:
        """Returns the kept network of a run whose record says ``told`` of it, to be resumed."""
        network = cls(run_id, NetworkGrant(gate, EgressPlan(Policy()), redaction, kept=True))
        network._first = {**network._first, "layers": told["layers"]}
        network._changes = [Change(c["at"], c["by"], c["layer"], tuple(c["rules"])) for c in told["changes"]]
        return network

    async def resume(self, sandbox: Sandbox) -> None:
        """Goes on with the session of an earlier server, or of a gate that died.

        ``sandbox`` is plugged in again where the gate lost its sockets. Raises GateFault, also for a session that
        nobody has; SandboxGone."""
        session = await _bounded(self._gate.attach(self._run_id))
        async with self._busy:
            self._resumed = session
            self._policy = session.policy
            self._granted = replace(self._policy, layers=tuple(x for x in self._policy.layers if x.name != LIVE))
            await self._take(session, sandbox)

    @property
    def resumed(self) -> bool:
        """Returns whether :meth:`resume` succeeded."""
        return self._resumed is not None

    async def discard(self) -> None:
        """Erases the session of a sandbox that is gone, unseen. Raises GateFault."""
        await _bounded(self._gate.discard(self._run_id))

    def begin(self, tasks: Tasks) -> None:
        """Ask for the session; other work goes on meanwhile."""
        opening = self._gate.open(self._run_id, self._plan, self._kept)
        self._opening = tasks.spawn(_bounded(opening), f"network of {self._run_id}")

    async def join(self, spec: SandboxSpec) -> SandboxSpec:
        """``spec`` with the way out. Raises GateFault."""
        session, ports = await self._session(), self._wanted_ports()
        self._ports = frozenset(ports)
        return replace(spec, mounts=(*spec.mounts, *session.mounts), egress=Egress(session.id, ports))

    async def enter(self, sandbox: Sandbox, guest: Mapping[str, Any], *, reused: bool = False) -> Mapping[str, Any]:
        """Returns ``guest`` with the variables by which programs in ``sandbox`` find the gate.

        Variables that a skill declares go before those. A ``reused`` sandbox was made for another run and is plugged in
        now. Raises GateFault, SandboxGone."""
        session = await self._session()
        if self._calls is not None:
            session.answer_calls(self._answer)
        async with self._busy:
            if reused:
                self._ports = None
            await self._take(session, sandbox)
        return {**guest, "env": {**_env(session, sandbox), **guest["env"]}}

    async def variables(self, sandbox: Sandbox) -> Mapping[str, str]:
        """Returns the variables by which further programs in ``sandbox`` find the gate. Raises GateFault."""
        return _env(await self._session(), sandbox)

    def _wanted_ports(self) -> tuple[int, ...]:
        """Returns the ports that the sandbox is to listen on, with the one for calls of tools."""
        return (*ports_of(self._policy), *([] if self._calls is None else [TOOLS_PORT]))

    def _answer(self, request: bytes, tell: Callable[[bytes], None]) -> None:
        calls = self._calls
        assert calls is not None, "it answers calls"

        async def answer() -> None:
            tell(await calls(request))

        self._answering.spawn(answer(), f"call of {self._run_id}")

    async def _take(self, session: GateSession, sandbox: Sandbox) -> None:
        """Takes the sandbox of the run, and keeps it plugged in when a kept session is opened again."""
        self._sandbox = sandbox
        if self._kept:  # the gate may have died since the sandbox was made
            session.attend(self._plug_again)
            self._ports = None
        await self._plug(session)

    async def _plug_again(self) -> None:
        async with self._busy:
            if self._closed is None:
                self._ports = None
                try:
                    await self._plug(await self._session())
                except SandboxGone:
                    return
                except GateFault as error:
                    self._unplugged = error.message
                    raise
                self._unplugged = ""

    async def change(self, rules: Sequence[Rule], *, by: str, at: float, replaces: bool) -> Change:
        """Changes the policy: ``rules`` are one more layer, or ``replaces`` the granted ones.

        The layers of the settings stay. The change is in force when this returns. Raises GateFault, InvalidInput, and
        SandboxGone when the run has ended."""
        layer = Layer(ADMIN if replaces else LIVE, tuple(rules))
        change = Change(at, by, layer.name, tuple(layer.texts()))
        async with self._busy:
            if self._closed is not None:
                raise SandboxGone("the run has ended")
            base = self._below_operator() if replaces else self._granted
            policy = replace(base, layers=(*base.layers, layer))
            if policy != self._policy:
                self._check_room(change)
                await self._enforce(policy)
                self._granted = policy if replaces else base
                self._changes.append(change)
            await self._plug(await self._session())
        return change

    def _below_operator(self) -> Policy:
        return replace(self._granted, layers=tuple(x for x in self._granted.layers if x.name in (OPERATOR, PROFILE)))

    def _check_room(self, change: Change) -> None:
        """Taking everything away is always possible."""
        held = sum(len(rule) for held in (*self._changes, change) for rule in held.rules)
        if change.rules and (held > MOST_CHANGED or len(self._changes) >= MOST_CHANGES):
            most = f"at most {MOST_CHANGES} times, by rules of {MOST_CHANGED} characters in all"
            raise InvalidInput("network", f"one run's can be changed {most}")

    async def _enforce(self, policy: Policy) -> None:
        await _bounded((await self._session()).change(policy))
        self._policy = policy

    async def _plug(self, session: GateSession) -> None:
        """Listen on the ports that the policy in force names and the sandbox lacks."""
        egress = Egress(session.id, self._wanted_ports())
        if self._sandbox is None or (self._ports is not None and self._ports.issuperset(egress.ports)):
            return
        if not isinstance(self._sandbox, Networked):
            raise GateFault("this isolation cannot give a running sandbox more ports")
        await _bounded(self._sandbox.plug(egress))
        self._ports = (self._ports or frozenset()).union(egress.ports)

    async def lost(self) -> str:
        """Returns why its gate is gone, once it is. One that is kept goes on in another gate, and waits for ever."""
        return await (await self._session()).lost()

    async def so_far(self) -> dict[str, Any]:
        """Returns what a record says of it now; without connections while the gate does not answer."""
        log, opening = self._closed, self._opening
        if log is None and (self._resumed is not None or (opening is not None and opening.done())):
            with suppress(GateFault):
                log = await _bounded((await self._session()).log())
        return self._told(log, complete=self._closed is not None)

    async def close(self) -> dict[str, Any]:
        """End it; the whole of it. Can be repeated. Raises GateFault: :meth:`so_far` then says what there is.

        Calls of tools at work are cancelled: nobody waits for them."""
        await self._answering.close()
        async with self._busy:
            if self._closed is None:
                self._closed = await self._close()
        return self._told(self._closed, complete=True)

    async def _close(self) -> NetworkLog:
        if self._opening is None and self._resumed is None:
            return NetworkLog()
        try:
            session = await self._session()
        except GateFault:  # it never was
            return NetworkLog()
        return await _bounded(session.close())

    async def _session(self) -> GateSession:
        if self._resumed is not None:
            return self._resumed
        assert self._opening is not None, "begin comes first"
        return await asyncio.shield(self._opening)

    def _told(self, log: NetworkLog | None, *, complete: bool) -> dict[str, Any]:
        told = dict(self._first)
        told["changes"] = [change.as_dict() for change in self._changes]
        if (in_force := layers_of(self._policy)) != told["layers"] or self._changes:
            told["in_force"] = in_force
        log = log or NetworkLog()
        if self._unplugged:
            event = Connection(GATE, "", 0, False, GATE, "", f"another gate has no way in: {self._unplugged}", 1)
            log = replace(log, connections=(*log.connections, event))
        lost = any(connection.via == GATE for connection in log.connections)
        told |= {**log.as_dict(), "complete": complete and not lost}
        for connection in told["connections"] if self._redaction else ():
            connection["host"] = self._redaction.text(connection["host"])
            reason = connection["reason"]
            connection["reason"] = self._redaction.text(reason, whole=len(reason) < MOST_REASON)
        return told


def first_record(policy: Policy) -> dict[str, Any]:
    """Returns what a record says before anything was tried: what is left of a run that is lost. ``complete`` says that
    nothing can be missing of ``connections``. Of a policy that was changed, ``in_force`` are the layers since."""
    return {"layers": layers_of(policy), "changes": [], "connections": [], "dropped": 0, "complete": False}


def _env(session: GateSession, sandbox: Sandbox) -> Mapping[str, str]:
    """Returns the variables by which programs of a sandbox find the gate."""
    if not isinstance(sandbox, Networked) or sandbox.proxy_port == PROXY_PORT:
        return session.env
    return {**session.env, **proxy_env(f"http://127.0.0.1:{sandbox.proxy_port}")}


async def _bounded(work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work
    except TimeoutError:
        raise GateFault("the gate does not answer") from None
