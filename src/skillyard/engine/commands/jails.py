"""Runs a jail from its order to its record.

The record is written before the sandbox exists and again when nothing of it is left, as that of every run. It names the
directories, variables, secrets and hosts that the program had, and has no byte of its streams.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from skillyard.config.network import NetworkSettings
from skillyard.domain.errors import Busy, InvalidInput, SandboxGone, SkillyardError
from skillyard.domain.network.policy import OPERATOR, Layer, Policy
from skillyard.domain.network.session import EgressPlan, GateSecret, new_placeholder
from skillyard.domain.principal import Principal
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import Argv, AtCap, SandboxSpec, Stream, StreamLimits
from skillyard.domain.secret import Delivery
from skillyard.domain.work.record import Ending, Outcome, RunKind, RunRecord, RunStatus
from skillyard.engine.backends import Backends, Offer
from skillyard.engine.commands.jail_order import JailOrder, Wires
from skillyard.engine.lending import PATIENCE_S, Lender, Loan, Order
from skillyard.engine.network.grant import ability, layers_of, listed
from skillyard.engine.network.refusals import used, with_network
from skillyard.engine.network.run_network import NetworkGrant
from skillyard.engine.observer import Observer, RunEnded, RunStarted
from skillyard.engine.runs.active import ActiveRun, ActiveRuns
from skillyard.engine.runs.failure import Failure, cancelled, ended_by
from skillyard.engine.runs.record import Findings, ended
from skillyard.engine.secrets.redact import NOTHING, of_hosts
from skillyard.engine.tasks import Tasks
from skillyard.ports.clock import Clock, Ids
from skillyard.ports.gate import Gate
from skillyard.ports.records import RecordStore
from skillyard.ports.sandbox import Process
from skillyard.values import dataclass

_STREAMS = StreamLimits(at_cap=AtCap.WAIT)


_RETRY_MS = 1000
_OUT = (Stream.STDOUT, Stream.STDERR)
NOBODY_READS = "its client reads its output no more"
_MENDS = {
    Outcome.SIGNAL: "see its last words on standard error",
    Outcome.TIMEOUT: "ask for more with jail.timeout_s",
    Outcome.MEMORY: "ask for more with jail.memory_mb",
    Outcome.PROCESSES: "ask for more with jail.pids",
    Outcome.DISK: "ask for more with jail.disk_mb",
    Outcome.LOST: "start it again",
}
"""The remedies in the words of the settings."""


@dataclass(frozen=True, slots=True)
class Around:
    """Everything that each jail works with."""

    records: RecordStore
    gate: Gate | None
    network: NetworkSettings
    active: ActiveRuns
    tasks: Tasks
    clock: Clock
    ids: Ids
    emit: Observer


class JailService:
    """Runs programs for operators. It has no row in the method table: directories of the host come by no call."""

    def __init__(self, backends: Backends, lender: Lender, around: Around) -> None:
        self._backends = backends
        self._lender = lender
        self._around = around

    async def run(self, principal: Principal, order: JailOrder, wires: Wires) -> RunRecord:
        """Returns the record of a program that has ended, with nothing left of it.

        Raises Busy, InvalidInput, ProtectionMissing, SandboxFault, GateFault; no program was started then.
        """
        offer = await self._offer(order)
        run_id = self._around.ids.run()
        env, grant = self._given(order)
        record = self._first(principal, order, run_id, offer, grant)
        wish = Order(run_id, principal.name, offer, _spec(order, offer), grant, trimmed=True)
        if not order.waits:
            self._check_room(principal, order)
        began = self._around.clock.monotonic()
        async with self._lender.lend(wish) as loan:
            return await _Work(self._around, order, wires, record, loan, env, began).run()

    def _check_room(self, principal: Principal, order: JailOrder) -> None:
        """Raises Busy where it would wait for a place."""
        admission = self._lender.admission
        memory_mb = admission.most(order.limits.memory_mb + order.limits.disk_mb)
        if admission.would_wait(principal.name, memory_mb):
            raise Busy("no place is free", retry_after_ms=_RETRY_MS)

    async def _offer(self, order: JailOrder) -> Offer:
        offer = await self._backends.choose(order.isolation)
        if order.rules and (able := ability(offer, self._around.gate is not None)).level is Level.MISSING:
            said = "; ".join(filter(None, (able.why, able.mend)))
            raise InvalidInput(
                "allow", f"isolation '{offer.name}' cannot give the network{f': {said}' if said else ''}"
            )
        return offer

    def _given(self, order: JailOrder) -> tuple[dict[str, str], NetworkGrant | None]:
        """Returns the variables with the secrets, and the network. Raises InvalidInput for a secret without a host."""
        env, gated = dict(order.env), list(order.gated)
        for secret in order.secrets:
            env[secret.name] = secret.value
            if secret.delivery is Delivery.GATE:
                env[secret.name] = placeholder = new_placeholder()
                gated.append(GateSecret(secret.name, placeholder, secret.value, secret.hosts))
        if gated and not order.rules:
            raise InvalidInput("secret", f"'{gated[0].name}' is delivered at the gate: allow its host with --allow")
        if not order.rules or self._around.gate is None:
            return env, None
        policy = Policy((Layer(OPERATOR, order.rules),), self._around.network.hosts, self._around.network.nat64)
        values = [*(secret.value for secret in order.secrets), *(secret.value for secret in order.gated)]
        hidden = of_hosts(values) if values else NOTHING
        return env, NetworkGrant(
            self._around.gate, EgressPlan(policy, self._around.network.limits.egress, tuple(gated)), hidden
        )

    def _first(
        self, principal: Principal, order: JailOrder, run_id: str, offer: Offer, grant: NetworkGrant | None
    ) -> RunRecord:
        digests: dict[str, Any] = {"command": hashlib.sha256(json.dumps(order.args).encode()).hexdigest()}
        if order.secrets:
            digests["secrets"] = {secret.name: secret.version for secret in order.secrets}
        if grant is not None:
            digests["network"] = hashlib.sha256(json.dumps(layers_of(grant.plan.policy)).encode()).hexdigest()
        return RunRecord(
            run_id=run_id,
            kind=RunKind.JAIL,
            principal=principal.name,
            status=RunStatus.RUNNING,
            project=principal.project,
            created_at=self._around.clock.now(),
            isolation=offer.name,
            limits=order.limits.as_dict(),
            digests=digests,
            labels=dict(order.labels),
            notes=tuple(_sentences(order)),
        )


def _spec(order: JailOrder, offer: Offer) -> SandboxSpec:
    return SandboxSpec(
        limits=order.limits,
        mounts=order.mounts,
        single=True,
        command=True,
        kernel_only=offer.demand.kernel_only,
        allow_degraded=offer.demand.allow_degraded,
        directories=order.directories,
        language=order.language,
    )


def _sentences(order: JailOrder) -> list[str]:
    """Returns what the program had of the host, for its record."""
    told = [f"{'wrote to' if each.writable else 'read'} {each.path} of the host" for each in order.directories]
    if order.rules:
        told.append(f"might reach {listed(order.rules)}")
    if names := sorted([*order.env, *(secret.name for secret in order.secrets)]):
        told.append(f"had the variables {', '.join(names)}")
    return told


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _but_for(guarantees: Mapping[str, Any], order: JailOrder) -> dict[str, Any]:
    """Returns the guarantees with the directories that host files are open for."""
    told = dict(guarantees)
    if order.directories and "host_files" in told:
        paths = ", ".join(each.path for each in order.directories)
        files = told["host_files"]
        told["host_files"] = {**files, "evidence": [*files["evidence"], f"but for {paths}"]}
    return told


class _Work:
    """One jail at work."""

    def __init__(
        self,
        around: Around,
        order: JailOrder,
        wires: Wires,
        record: RunRecord,
        loan: Loan,
        env: Mapping[str, str],
        began: float,
    ) -> None:
        self._around = around
        self._order = order
        self._wires = wires
        self._record = record
        self._loan = loan
        self._env = env
        self._began = began
        self._passed = dict.fromkeys(("stdin", "stdout", "stderr"), 0)
        self._found = Findings()
        self._active = ActiveRun(record.run_id, record.principal)
        self._code: int | None = None
        self._signal: int | None = None
        self._lost = ""
        """Why its way out is lost."""

    async def run(self) -> RunRecord:
        around, run_id = self._around, self._record.run_id
        around.active[run_id] = self._active
        self._found.queued_ms = self._elapsed_ms()
        try:
            await around.records.insert(self._record)
            failure = self._judge(await self._to_its_end())
            return await around.tasks.shielded(self._settle(failure), f"end of {run_id}")
        except asyncio.CancelledError:
            await around.tasks.shielded(self._settle(cancelled("its caller went away")), f"end of {run_id}")
            raise
        except BaseException as error:
            told = (error.type, error.message) if isinstance(error, SkillyardError) else ("SandboxError", str(error))
            await around.tasks.shielded(self._settle(Failure(*told)), f"end of {run_id}")
            raise
        finally:
            around.active.forget(self._active)

    async def _to_its_end(self) -> Ending:
        found, loan, order = self._found, self._loan, self._order
        await loan.begin()
        sandbox, guest = await loan.open({"env": {}})
        found.created_ms, found.started_at = self._elapsed_ms(), self._around.clock.now()
        program = Argv(order.args, env={**guest["env"], **self._env}, cwd=order.cwd, stdin=True)
        process = await sandbox.start(
            program, id=self._record.run_id, timeout_ms=order.limits.timeout_ms, streams=_STREAMS
        )
        self._active.begin(process, sandbox)
        record = self._record
        by = record.kind, record.principal, None
        self._around.emit(RunStarted(record.run_id, *by, queued_ms=found.queued_ms, created_ms=found.created_ms))
        ending = await self._pass_on(process)
        found.usage = ending.usage
        return ending

    async def _pass_on(self, process: Process) -> Ending:
        """Passes the streams through until the program has ended.

        It returns when the client has the last byte, or is gone.
        """
        spawn = self._around.tasks.spawn
        watching = spawn(self._watch(process), "client of a jail")
        minding = spawn(self._mind_network(process), "network of a jail")
        feeding = spawn(self._feed(process), "stdin of a jail")
        draining = [spawn(self._drain(process, stream), f"{stream} of a jail") for stream in _OUT]
        try:
            ending = await process.wait()
            written = spawn(_all(draining), "last bytes of a jail")
            await asyncio.wait([written, watching], return_when=asyncio.FIRST_COMPLETED)
            return ending
        finally:
            for task in (watching, minding, feeding, *draining):
                task.cancel()
            await asyncio.gather(watching, minding, feeding, *draining, return_exceptions=True)

    async def _watch(self, process: Process) -> None:
        """Ends the tree when the client is gone."""
        reason = await asyncio.shield(self._wires.gone)
        self._active.cancel_reason = self._active.cancel_reason or reason
        await process.kill(reason)

    async def _mind_network(self, process: Process) -> None:
        """Ends the tree when its gate died.

        It would reach nothing for weeks, and its client would not know why.
        """
        if (network := self._loan.network) is not None:
            self._lost = f"its way out is lost ({await network.lost()})"
            await process.kill(self._lost)

    async def _feed(self, process: Process) -> None:
        with suppress(SandboxGone):  # nobody reads it any more
            while data := await self._wires.read():
                await process.send(data)
                self._passed["stdin"] += len(data)
            await process.close_stdin()

    async def _drain(self, process: Process, stream: Stream) -> None:
        try:
            async for data in process.output(stream):
                await self._wires.write(stream, data)
                self._passed[stream.value] += len(data)
        except OSError:
            await process.kill(NOBODY_READS)
        except SandboxGone:
            return  # the ending tells it
        finally:
            self._wires.close(stream)

    def _judge(self, ending: Ending) -> Failure | None:
        if ending.outcome is Outcome.CANCELLED:
            if self._lost and self._active.cancel_reason is None:
                return Failure("SandboxError", f"{self._lost}; {_MENDS[Outcome.LOST]}", Outcome.LOST)
            return cancelled(self._active.cancel_reason or ending.reason)
        if ending.outcome is Outcome.EXIT:
            self._code = ending.code
            return None
        self._signal = ending.signal
        return ended_by(ending, self._order.limits, _MENDS)

    async def _settle(self, failure: Failure | None) -> RunRecord:
        """Returns the last record, when nothing of the sandbox is left and the store has it."""
        around, found, loan = self._around, self._found, self._loan
        with suppress(SkillyardError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await loan.finish_creating()
        seen = await loan.end()
        found.ended_ms = self._elapsed_ms()
        now = around.clock.now()
        output = {"exit_code": self._code, "signal": self._signal, "bytes": self._passed}
        final = replace(
            self._record,
            started_at=found.started_at,
            ended_at=now,
            enforced=loan.enforced,
            guarantees=_but_for(loan.guarantees, self._order),
            usage=found.usage_dict(),
            output={name: value for name, value in output.items() if value is not None},
        )
        if failure is None:
            said = f"Ended with code {self._code}"
            final = replace(final, status=RunStatus.COMPLETED, outcome=Outcome.EXIT, summary=said)
        else:
            final = ended(final, failure, now)
        if seen is not None:
            final = with_network(final, seen)
        if await around.records.finish(final):
            if final.network is not None:
                around.emit(used(final))
            around.emit(RunEnded(final, self._elapsed_ms(), len(around.active)))
        return final

    def _elapsed_ms(self) -> float:
        return (self._around.clock.monotonic() - self._began) * 1000
