"""Runs that outlive their server, and that the next one resumes.

Each step is written down before it is taken: QUEUED with the request before the caller is answered, STARTING before
there is a sandbox, RUNNING with the sandbox before the program is started in it, and its end before the sandbox is
destroyed. So a later server knows what to do. A run that is not RUNNING surely never started: it is planned again under
its id. The program of one that is RUNNING is attached.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial

from skillyard.domain.errors import BackendAway, SkillyardError, StoreFault
from skillyard.domain.principal import Principal
from skillyard.domain.sandbox.frames import FrameFamilies
from skillyard.domain.sandbox.spec import Owner, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Lease, Outcome, RunRecord, RunStatus
from skillyard.domain.work.session import SessionKey
from skillyard.engine.backends import Backends
from skillyard.engine.driver import Driver, Tools
from skillyard.engine.lending import Order
from skillyard.engine.network.run_network import RunNetwork
from skillyard.engine.observer import Fault, LeaseLost, RunEnded, RunQueued, RunResumed
from skillyard.engine.packages.environments import Environments
from skillyard.engine.runs.active import ActiveRun
from skillyard.engine.runs.failure import Failure, LeftBehind, Refused, cancelled
from skillyard.engine.runs.grant import Grant, Granter, Job, job_of, offline, outputs_of
from skillyard.engine.runs.plan import Plan, Planner
from skillyard.engine.runs.record import CutOff, NeverStarted, ended, first_record
from skillyard.engine.runs.request import RunRequest
from skillyard.engine.runs.task_record import Brief, TaskLedger
from skillyard.engine.secrets.redact import NOTHING, Blackout, Redaction, of_hosts
from skillyard.engine.secrets.service import RunSecrets
from skillyard.engine.sessions.service import SessionService
from skillyard.engine.shares import Budget, Place
from skillyard.ports.gate import Gate

LEASE_S = 90.0
"""How long a server that tells nothing is taken for alive. Only a shared store needs it: on one data directory the lock
tells at once."""
RENEW_S = 30.0
ATTEMPTS = 5
"""How often a run whose connection breaks is attached at once. Then the next renewal of the leases does it."""


class DetachedRuns:
    """Takes runs on and drives them, under leases of ``holder``. ``requests`` bounds the bytes of all requests."""

    def __init__(
        self,
        planner: Planner,
        granter: Granter,
        environments: Environments,
        backends: Backends,
        sessions: SessionService,
        requests: Budget,
        secrets: RunSecrets,
        gate: Gate | None,
        frames: FrameFamilies,
        tools: Tools,
        holder: str,
    ) -> None:
        self._planner = planner
        self._granter = granter
        self._environments = environments
        self._backends = backends
        self._sessions, self._lender = sessions, sessions.lender
        self._requests = requests
        self._secrets = secrets
        self._gate = gate
        self._frames = frames
        self._tools = tools
        self._holder = holder
        self._driving: dict[str, asyncio.Task[None]] = {}
        self._places: dict[str, Place] = {}
        """The places of sandboxes that an earlier server made."""
        self._left: set[str] = set()
        """Runs that could not be driven on, to be tried again soon."""
        self._cuts: Counter[str] = Counter()
        """Connections that broke since the last renewal, by run."""
        self._leaving = False
        self._leased_until = 0.0

    async def take(self, principal: Principal, request: RunRequest, *, accepted: bool = False) -> RunRecord:
        """Returns the record of a run that is queued, with its promise written down.

        One that was ``accepted`` before is taken however much waits.
        Raises what :meth:`Planner.plan` raises, Busy, IdempotencyConflict, StoreFault.
        """
        tools = self._tools
        with ExitStack() as hold:
            hold.enter_context(self._requests.holding(principal.name, request.weight, accepted=accepted))
            plan = await self._planner.plan(principal, request)
            task = request.command is not None
            if task:
                promised = self._promised(request)
                if not accepted:
                    self._planner.check_tasks(principal, promised.held_by(principal.name))
                hold.enter_context(promised.holding(principal.name, accepted=accepted))
            self._lender.check(principal.name, plan.limits, accepted=task)
            plan = replace(plan, blob_prefix=tools.ids.blob() + "-")
            record = self._queued_record(plan)
            brief = _brief(plan, tools)
            active = self._active(record)
            try:
                await tools.records.insert(record, brief.encoded())
            except BaseException:
                tools.active.forget(active)
                raise
            self._spawn(active, brief, hold.pop_all(), plan)
        return record

    async def resume(self, records: Iterable[RunRecord], *, alone: bool) -> int:
        """Goes on with runs that nobody drives; returns their number.

        ``alone`` says that no other server lives, whatever the leases say.
        """
        return sum([await self._resume(record, alone=alone) for record in records])

    async def _resume(self, record: RunRecord, *, alone: bool) -> bool:
        tools, lease = self._tools, record.lease
        if self._leaving or record.run_id in tools.active:
            return False
        others = lease is not None and lease.holder != self._holder
        if others and not alone and lease is not None and lease.held(tools.clock.boot(), tools.clock.boottime()):
            return False
        text = await tools.records.request(record.run_id)
        mine = await tools.records.change(replace(record, lease=self._lease()), tools.clock.now(), "resumed")
        if mine is None:
            return False
        active = self._active(mine)
        active.cancel_reason = mine.cancel_requested
        if text is None:
            await self._end(active, Failure("SandboxLost", "its request is not kept any more", Outcome.LOST))
            tools.active.forget(active)
            return False
        brief, hold = Brief.decoded(text, mine), ExitStack()
        hold.enter_context(self._requests.holding(mine.principal, brief.request.weight, accepted=True))
        if brief.request.command is not None:
            hold.enter_context(self._promised(brief.request).holding(mine.principal, accepted=True))
        if mine.status is RunStatus.RUNNING:
            limits, in_session = Limits(**mine.limits), _session_of(mine) is not None
            self._places[mine.run_id] = self._lender.retake(mine.principal, limits, in_session=in_session)
        tools.emit(RunResumed(mine.run_id, mine.principal, mine.status.value))
        self._spawn(active, brief, hold)
        return True

    async def renew(self) -> None:
        """Prolongs the leases of all runs that are driven here. A server that cannot stops driving when they lapse.

        Runs that could not be driven on are tried again.
        """
        tools = self._tools
        self._cuts.clear()
        await self._try_again()
        if not self._driving:
            return
        try:
            lease = self._lease()
            if await tools.records.renew(self._holder, lease.until) < len(self._driving):
                await self._stop_lost()
        except SkillyardError as error:
            tools.emit(Fault("lease", error))
            if tools.clock.boottime() >= self._leased_until:
                for run_id in list(self._driving):
                    self._stop(run_id, "its lease could not be renewed")
            return
        self._leased_until = lease.until

    async def _try_again(self) -> None:
        """Goes on with the runs that were left, but for those whose last driving is not over yet."""
        for run_id in self._left - self._driving.keys():
            self._left.discard(run_id)  # before anything is awaited: several of these may be at work
            try:
                record = await self._tools.records.get(run_id)
                if record is not None and record.status.live and not await self._resume(record, alone=False):
                    self._left.add(run_id)
            except SkillyardError as error:
                self._left.add(run_id)
                self._tools.emit(Fault("resume", error, run_id))
                return

    def leave_waiting(self) -> None:
        """Leaves runs that have no sandbox yet to the next server, and takes none on."""
        self._leaving = True
        for run_id, task in self._driving.items():
            active = self._tools.active.get(run_id)
            if active is None or active.interrupt is not None:
                task.cancel()

    async def leave(self) -> None:
        """Leaves all runs at work to the next server; returns when none is driven any more."""
        self._leaving = True
        driving = list(self._driving.values())
        for task in driving:
            task.cancel()
        if driving:
            await asyncio.wait(driving)

    async def _stop_lost(self) -> None:
        for run_id in list(self._driving):
            found = await self._tools.records.get(run_id)
            if found is not None and found.status.live and (found.lease is None or found.lease.holder != self._holder):
                self._stop(run_id, "another server has it")

    def _stop(self, run_id: str, why: str) -> None:
        if (task := self._driving.get(run_id)) is not None:
            self._tools.emit(LeaseLost(run_id, why))
            task.cancel()

    def _lease(self) -> Lease:
        clock = self._tools.clock
        return Lease(self._holder, clock.boot(), clock.boottime() + LEASE_S)

    def _queued_record(self, plan: Plan) -> RunRecord:
        lease = self._lease()
        self._leased_until = max(self._leased_until, lease.until)
        able = plan.offer.probe.able("terminals"), plan.offer.probe.able("forwarding")
        return replace(
            first_record(plan, plan.environment, {}, None),
            status=RunStatus.QUEUED,
            owner=Owner.TASK,
            lease=lease,
            blob_prefix=plan.blob_prefix,
            stay=None if (stay := plan.request.stay) is None else stay.begun(self._tools.clock.boottime(), *able),
        )

    def _active(self, record: RunRecord) -> ActiveRun:
        tools = self._tools
        ledger = TaskLedger(tools.records, tools.clock, record)
        active = tools.active[record.run_id] = ActiveRun(record.run_id, record.principal, ledger)
        return active

    def _spawn(self, active: ActiveRun, brief: Brief, hold: ExitStack, plan: Plan | None = None) -> None:
        run_id = active.run_id
        task = self._tools.tasks.spawn(self._drive(active, brief, plan), f"run {run_id}")
        self._driving[run_id] = task

        def over(_: object) -> None:
            hold.close()
            self._give_back(run_id)
            del self._driving[run_id]
            self._tools.active.forget(active)
            if run_id in self._left and 0 < self._cuts[run_id] <= ATTEMPTS and not self._leaving:
                self._tools.tasks.spawn(self._try_again(), f"attach {run_id}")

        task.add_done_callback(over)

    async def _drive(self, active: ActiveRun, brief: Brief, plan: Plan | None) -> None:
        ledger = _ledger(active)
        attempts = len(ledger.record.attempts)
        try:
            if not await self._attached(active, brief):
                await self._start(active, brief, plan)
            while len(ledger.record.attempts) > attempts:
                attempts += 1
                self._give_back(active.run_id)
                await self._start(active, brief, None)
            await self._secrets.forget(active.run_id)
        except LeftBehind as left:
            self._left.add(active.run_id)
            if isinstance(left, CutOff):
                self._cuts[active.run_id] += 1
            self._tools.emit(LeaseLost(active.run_id, str(left)))
        except Exception as error:  # noqa: BLE001 - a sweep finds the run, and goes on with it
            self._tools.emit(Fault("run", error, active.run_id))

    async def _attached(self, active: ActiveRun, brief: Brief) -> bool:
        """Goes on with an earlier server's program up to its end; returns whether there is one."""
        if _ledger(active).record.status is not RunStatus.RUNNING:
            return False
        try:
            await self._attach(active, brief)
        except NeverStarted:
            self._give_back(active.run_id)
            return False
        return True

    def _give_back(self, run_id: str) -> None:
        if (place := self._places.pop(run_id, None)) is not None:
            self._lender.give_back(place)

    async def _start(self, active: ActiveRun, brief: Brief, plan: Plan | None) -> None:
        """Starts a run that surely never started; ``plan`` is None for one of an earlier server."""
        task = asyncio.current_task()
        assert task is not None, "it runs in a task of its own"
        active.interrupt = task.cancel
        try:
            if plan is None:
                await self._clear(active)
            if active.cancel_reason is not None:
                await self._end(active, cancelled(active.cancel_reason))
                return
            plan = plan or await self._planner.plan(brief.principal, brief.request, _ledger(active).record)
            grant = await self._granter.grant(plan)
            with self._environments.using(grant.digests["environment"]):
                await self._lent(active, plan, grant)
        except Refused as refusal:
            await self._end(active, Failure(refusal.type, refusal.message))
        except SkillyardError as error:  # the driver may have written why already
            if self._leaving:
                raise LeftBehind(error.message) from error
            await self._end(active, Failure(error.type, error.message))
        except asyncio.CancelledError:
            if self._leaving or active.interrupt is None or active.cancel_reason is None:
                raise
            await self._end(active, cancelled(active.cancel_reason))

    async def _lent(self, active: ActiveRun, plan: Plan, grant: Grant) -> None:
        tools = self._tools
        secrets = await self._secrets.keep(plan, grant.given)
        spec = replace(grant.spec, owner=Owner.TASK)
        network = None if grant.network is None else replace(grant.network, kept=True)
        order = Order(plan.run_id, plan.principal.name, plan.offer, spec, network, accepted=True)
        # A step's place is its job's while that holds the session: others with places may wait for that session.
        turn = self._turn(plan.principal.name, plan.request, held=self._sessions.holds(plan))
        async with turn, self._sessions.lend(plan, grant, order, partial(self._queued, plan)) as loan:
            active.interrupt = None
            job = job_of(plan, grant, tools.network, loan.session)
            if loan.session is not None:
                job = replace(job, redaction=await self._sessions.redaction(loan.session, grant.given))
            session = None if grant.network is None else plan.run_id
            record = replace(job.record, secrets=secrets, network_session=session)
            await Driver(tools, replace(job, record=record), loan, active).run()

    async def _attach(self, active: ActiveRun, brief: Brief) -> None:
        record = _ledger(active).record
        offer = await self._backends.named(record.isolation)
        if offer is None:
            gone = f"the isolation '{record.isolation}' that it had is not configured any more"
            await self._end(active, Failure("SandboxLost", gone, Outcome.LOST))
            return
        job, hosts = await self._resumed_job(record, brief)
        spec = SandboxSpec(limits=job.limits, owner=Owner.TASK)
        network = self._network(record, hosts)
        order = Order(record.run_id, record.principal, offer, spec, network, handle=record.sandbox)
        turn = self._turn(record.principal, brief.request, held=True)
        async with turn, self._sessions.resume(order, _session_of(record), record.idempotency_key) as loan:
            await Driver(self._tools, job, loan, active).resume()

    def _turn(self, owner: str, request: RunRequest, *, held: bool = False) -> AbstractAsyncContextManager[None]:
        """Returns the turn of a task. It waits apart from runs, so that long work leaves them places."""
        waits = request.command is not None and request.command.service is None
        return self._lender.commands.place(owner, held=held) if waits else nullcontext()

    def _promised(self, request: RunRequest) -> Budget:
        """Returns the places of services, or the number of other tasks."""
        serves = request.command is not None and request.command.service is not None
        return self._lender.services if serves else self._lender.promised

    async def _resumed_job(self, record: RunRecord, brief: Brief) -> tuple[Job, Redaction]:
        """Returns the job, and the redaction of the hosts that the run tried to reach."""
        clock, withheld = self._tools.clock, ""
        redaction = hosts = NOTHING
        try:
            known = await self._secrets.again(record.run_id, record.secrets) if record.secrets else ()
            if record.session_life is not None:
                known += await self._sessions.known_secrets(record.session_life)
            if known:
                redaction, hosts = Redaction(known), of_hosts(known)
        except (Refused, StoreFault) as refusal:
            redaction = hosts = Blackout()
            withheld = refusal.message
        job = Job(
            record=record,
            guest={},
            limits=Limits(**record.limits),
            redaction=redaction,
            blob_prefix=record.blob_prefix,
            frames=self._frames.of(brief.request.command),
            taken_at=clock.monotonic() - max(0.0, clock.now() - record.created_at),
            outputs=brief.outputs,
            why_offline=lambda: brief.offline,
            withheld=withheld,
            command=brief.request.command,
        )
        return job, hosts

    def _network(self, record: RunRecord, redaction: Redaction) -> RunNetwork | None:
        if record.network_session is None or record.network is None or self._gate is None:
            return None
        return RunNetwork.of_record(record.network_session, self._gate, redaction, record.network)

    async def _clear(self, active: ActiveRun) -> None:
        """Destroys a sandbox in which nothing was started. Its server ended in between."""
        mine = _ledger(active).record.isolation
        for backend in self._backends:
            try:
                for held in await backend.survey():
                    if held.key == active.run_id:
                        await backend.destroy(held.handle)
            except SkillyardError as error:
                if backend.name != mine and isinstance(error, BackendAway):
                    continue  # its record names the one that it was made in
                raise LeftBehind(error.message) from error

    async def _end(self, active: ActiveRun, failure: Failure) -> None:
        """Writes the last record of a run that has no sandbox."""
        tools, ledger = self._tools, _ledger(active)
        if self._gate is not None and ledger.record.network_session is not None:
            await self._gate.discard(ledger.record.network_session)
        final = ended(ledger.record, failure, tools.clock.now())
        if await ledger.finish(final):
            total_ms = max(0.0, tools.clock.now() - final.created_at) * 1000
            tools.emit(RunEnded(final, total_ms, len(tools.active)))

    def _queued(self, plan: Plan, waiting: int) -> None:
        self._tools.emit(RunQueued(plan.run_id, plan.principal.name, waiting))


def _session_of(record: RunRecord) -> SessionKey | None:
    """Returns the session in whose sandbox a run's program was started."""
    alias = record.session
    return None if record.session_life is None or alias is None else SessionKey(record.project, record.agent, alias)


def _ledger(active: ActiveRun) -> TaskLedger:
    assert isinstance(active.ledger, TaskLedger), "it outlives its server"
    return active.ledger


def _brief(plan: Plan, tools: Tools) -> Brief:
    """Returns the brief. It names the version of the skill that was found now."""
    request = plan.request if plan.of is None else replace(plan.request, version=plan.of.version)
    return Brief(plan.principal, request, outputs_of(plan), offline(plan, tools.network))
