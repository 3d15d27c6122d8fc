"""The network of a run at work: its session of the gate, its policy and its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from skillyard.domain.errors import GateFault, InvalidInput, SandboxGone
from skillyard.domain.network.policy import OPERATOR, Layer, Policy
from skillyard.domain.network.rule import Rule
from skillyard.domain.network.session import MOST_REASON, Egress, EgressPlan, NetworkLog, ports_of
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.engine.network.grant import layers_of
from skillyard.engine.secrets.redact import Redaction
from skillyard.engine.tasks import Tasks
from skillyard.ports.gate import Gate, GateSession
from skillyard.ports.networked import Networked
from skillyard.ports.sandbox import Sandbox

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


@dataclass(frozen=True, slots=True)
class NetworkGrant:
    """The plan that ``gate`` gets, and the secrets that are removed from its answers."""

    gate: Gate
    plan: EgressPlan
    redaction: Redaction


class RunNetwork:
    """The network of one run: :meth:`begin`, :meth:`join`, :meth:`enter`, then :meth:`close`.

    Any number of :meth:`change` and :meth:`so_far` may stand before the last."""

    def __init__(self, run_id: str, grant: NetworkGrant) -> None:
        self._run_id = run_id
        self._gate = grant.gate
        self._plan = grant.plan
        self._redaction = grant.redaction
        self._granted = self._policy = grant.plan.policy
        self._changes: list[Change] = []
        self._opening: asyncio.Task[GateSession] | None = None
        self._sandbox: Sandbox | None = None
        self._ports: frozenset[int] = frozenset()
        self._closed: NetworkLog | None = None
        self._busy = asyncio.Lock()

    def begin(self, tasks: Tasks) -> None:
        """Ask for the session; other work goes on meanwhile."""
        self._opening = tasks.spawn(_bounded(self._gate.open(self._run_id, self._plan)), f"network of {self._run_id}")

    async def join(self, spec: SandboxSpec) -> SandboxSpec:
        """``spec`` with the way out. Raises GateFault."""
        session, ports = await self._session(), ports_of(self._policy)
        self._ports = frozenset(ports)
        return replace(spec, mounts=(*spec.mounts, *session.mounts), egress=Egress(session.id, ports))

    async def enter(self, sandbox: Sandbox, guest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns ``guest`` with the variables by which programs in ``sandbox`` find the gate.

        Variables that a skill declares go before those. Raises GateFault, SandboxGone."""
        session = await self._session()
        async with self._busy:
            self._sandbox = sandbox
            await self._plug(session)
        return {**guest, "env": {**session.env, **guest["env"]}}

    async def change(self, rules: Sequence[Rule], *, by: str, at: float, replaces: bool) -> Change:
        """Changes the policy: ``rules`` are one more layer, or ``replaces`` the granted ones.

        The operator's layer stays. The change is in force when this returns. Raises GateFault, InvalidInput, and
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
        return replace(self._granted, layers=tuple(x for x in self._granted.layers if x.name == OPERATOR))

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
        egress = Egress(session.id, ports_of(self._policy))
        if self._sandbox is None or self._ports.issuperset(egress.ports):
            return
        if not isinstance(self._sandbox, Networked):
            raise GateFault("this isolation cannot give a running sandbox more ports")
        await _bounded(self._sandbox.plug(egress))
        self._ports |= frozenset(egress.ports)

    async def so_far(self) -> dict[str, Any]:
        """Returns what a record says of it now; without connections while the gate does not answer."""
        log = self._closed
        if log is None and self._opening is not None and self._opening.done():
            with suppress(GateFault):
                log = await _bounded((await self._session()).log())
        return self._told(log, complete=self._closed is not None)

    async def close(self) -> dict[str, Any]:
        """End it; the whole of it. Can be repeated. Raises GateFault: :meth:`so_far` then says what there is."""
        async with self._busy:
            if self._closed is None:
                self._closed = await self._close()
        return self._told(self._closed, complete=True)

    async def _close(self) -> NetworkLog:
        if self._opening is None:
            return NetworkLog()
        try:
            session = await asyncio.shield(self._opening)
        except GateFault:  # it never was
            return NetworkLog()
        return await _bounded(session.close())

    async def _session(self) -> GateSession:
        assert self._opening is not None, "begin comes first"
        return await asyncio.shield(self._opening)

    def _told(self, log: NetworkLog | None, *, complete: bool) -> dict[str, Any]:
        told = first_record(self._plan.policy)
        if self._changes:
            told["changes"] = [change.as_dict() for change in self._changes]
            told["in_force"] = layers_of(self._policy)
        log = log or NetworkLog()
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


async def _bounded(work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work
    except TimeoutError:
        raise GateFault("the gate does not answer") from None
