"""The run engine: one for every face, over ports only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skillyard.config.sections import Sections
from skillyard.domain.errors import SkillyardError
from skillyard.domain.principal import Principal
from skillyard.domain.work.outcome import Outcome
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine import recovery
from skillyard.engine.backends import Backends
from skillyard.engine.network import live
from skillyard.engine.observer import Observer, RunEnded, RunQueued, RunRefused, ignore
from skillyard.engine.packages.ahead import Ahead
from skillyard.engine.packages.builder import Builder
from skillyard.engine.packages.making import make_environments
from skillyard.engine.parts import Parts
from skillyard.engine.runs.active import ActiveRun
from skillyard.engine.runs.execution import Execution
from skillyard.engine.runs.failure import Failure, Refused
from skillyard.engine.runs.grant import Grant, make_grant, make_spec
from skillyard.engine.runs.idempotency import Keys
from skillyard.engine.runs.plan import DEFAULT_ENVIRONMENT, Plan, make_plan, run_facts
from skillyard.engine.runs.record import run_object
from skillyard.engine.runs.request import RunRequest
from skillyard.engine.secrets.book import SecretBook
from skillyard.engine.shares import Admission, Budget, LargeReads, Place
from skillyard.engine.skills.diff import Diffs
from skillyard.engine.skills.registry import Registry
from skillyard.engine.skills.review import Reviews
from skillyard.engine.skills.run_needs import Given, run_needs
from skillyard.engine.tasks import Tasks
from skillyard.ports.approvals import ApprovalStore
from skillyard.ports.blobs import BlobStore
from skillyard.ports.bundles import BundleStore
from skillyard.ports.clock import Clock, Ids
from skillyard.ports.environments import EnvironmentStore
from skillyard.ports.gate import Gate
from skillyard.ports.publications import PublicationStore
from skillyard.ports.records import RecordStore
from skillyard.ports.sandbox import Backend
from skillyard.ports.schemas import SchemaChecker
from skillyard.ports.secrets import SecretAudit, SecretReader, SecretStore
from skillyard.ports.skills import SkillStore


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside that the use cases need."""

    backends: Mapping[str, Backend]
    blobs: BlobStore
    skills: SkillStore
    records: RecordStore
    secrets: SecretStore
    secret_audit: SecretAudit
    clock: Clock
    ids: Ids
    approvals: ApprovalStore
    publications: PublicationStore
    bundles: BundleStore
    environments: EnvironmentStore
    schemas: SchemaChecker
    gate: Gate | None = None
    """The way out of sandboxes; without one, runs that need a network are refused."""
    secret_readers: Sequence[SecretReader] = ()


class Engine:
    """Made once for a data directory, used from one event loop: :meth:`start`, any number of calls of
    :func:`skillyard.engine.table.invoke`, :meth:`close`."""

    def __init__(
        self,
        ports: Ports,
        config: Sections | None = None,
        emit: Observer = ignore,
        builder: Builder | None = None,
    ) -> None:
        """``builder`` makes environments; in sandboxes when there is none."""
        self.blobs = ports.blobs
        self.skills = ports.skills
        self.approvals = ports.approvals
        self.records = ports.records
        self.secret_book = SecretBook(ports.secrets, ports.secret_audit, ports.clock, ports.secret_readers)
        self.clock = ports.clock
        self.ids = ports.ids
        self.gate = ports.gate
        self.tasks = Tasks()
        self.config = config or Sections()
        self.backends = Backends(ports.backends, self.config.policy)
        self.emit = emit
        self.frame_limits = self.config.blobs.frames
        self.cursor_key = os.urandom(32)
        self.active: dict[str, ActiveRun] = {}
        self.admission = Admission(self.config.admission)
        total = self.config.admission.request_bytes
        each = int(total * (1 - self.config.admission.reserve))
        self.requests = Budget(total, each, "too many large requests at once; send bulk data as a blob")
        self.large_reads = LargeReads()
        self.reviews = Reviews()
        self.diffs = Diffs()
        self.schemas = ports.schemas
        self.registry = Registry(ports.publications, ports.bundles, ports.skills, ports.clock, self.tasks, emit)
        self.ahead = Ahead(emit, enabled=self.config.native.preloads)
        self.environments = make_environments(self, ports.environments, builder)
        self._keys = Keys(ports.records)
        self._background = Tasks()
        parts = [*ports.backends.values(), *([ports.gate] if ports.gate is not None else [])]
        self.parts = Parts(parts, emit, ports.clock, self._background)

    async def start(self) -> None:
        """Probe for the default isolation, settle what a dead server left, and begin to sweep."""
        await self.environments.clean()
        await self.backends.start()
        await recovery.recover(self)
        self._background.spawn(recovery.sweep_forever(self), "sweeper")
        self._background.spawn(self._warm_up(), "warm-up")
        if self.gate is not None:
            self._background.spawn(live.keep_forever(self), "network keeper")

    async def _warm_up(self) -> None:
        """Tell the default backend which sandbox most runs will ask for."""
        offer = self.backends.default
        if offer is None or offer.refusal is not None:
            return
        environment = await self.environments.get(DEFAULT_ENVIRONMENT)
        await offer.backend.prepare(make_spec(offer, self.config.limits.family.defaults, environment.ref))

    async def run(self, principal: Principal, request: RunRequest) -> dict[str, Any]:
        """One run from request to Run object. Cancelling the caller ends it, unless it is detached.

        Raises what :func:`make_plan` raises, Busy, ProtectionMissing, IdempotencyConflict.
        """
        if request.detach:
            work = self._held(principal, request)
            return await self.tasks.shielded(work, "detached run")
        return await self._held(principal, request)

    async def _held(self, principal: Principal, request: RunRequest) -> dict[str, Any]:
        with self.requests.holding(principal.name, request.weight()):
            return await self._keyed(principal, request)

    async def _keyed(self, principal: Principal, request: RunRequest) -> dict[str, Any]:
        if request.idempotency_key is None:
            return run_object(await self._run(principal, request))
        key = (principal.name, request.idempotency_key)
        async with self._keys.claim(key, request.digest()) as record:
            return run_object(record or await self._run(principal, request))

    async def _run(self, principal: Principal, request: RunRequest) -> RunRecord:
        try:
            plan = await make_plan(self, principal, request)
            grant = await self._granted(plan)
            if isinstance(grant, Refused):
                return await self._refuse(plan, grant)
        except SkillyardError as error:
            self.emit(RunRefused(request.kind, principal.name, error.type))
            raise
        with self.environments.using(grant.digests["environment"]):
            return await self._placed(plan, grant)

    async def _placed(self, plan: Plan, grant: Grant) -> RunRecord:
        try:
            place = await self._enter(plan, plan.limits.memory_mb + plan.limits.disk_mb)
        except SkillyardError as error:
            self.emit(RunRefused(plan.request.kind, plan.principal.name, error.type))
            raise
        try:
            facts = run_facts(plan, grant.environment, grant.digests, grant.needs)
            return await Execution(self, plan, grant, facts).run()
        finally:
            self.admission.leave(place)

    async def _granted(self, plan: Plan) -> Grant | Refused:
        try:
            return await make_grant(self, plan)
        except Refused as refusal:
            return refusal

    async def _enter(self, plan: Plan, memory_mb: int) -> Place:
        if self.admission.would_wait(plan.principal.name, memory_mb):
            self.emit(RunQueued(plan.run_id, plan.principal.name, self.admission.waiting + 1))
        return await self.admission.enter(plan.principal.name, memory_mb)

    async def _refuse(self, plan: Plan, refusal: Refused) -> RunRecord:
        """A failed run that never had a sandbox; its record is written all the same."""
        failure = Failure(refusal.type, refusal.message)
        needs = run_needs(self.config, plan, Given(refused=True))
        record = RunRecord(status=RunStatus.RUNNING, **run_facts(plan, plan.environment, {}, needs))
        await self.records.insert(record)
        final = recovery.ended(record, failure, self.clock.now())
        await self.records.finish(final)
        total_ms = (self.clock.monotonic() - plan.taken_at) * 1000
        self.emit(RunEnded(final, total_ms, len(self.active)))
        return final

    async def cancel(self, run_id: str, reason: str) -> bool:
        """End a run and wait until nothing of it is left. False when it had ended already."""
        active = self.active.get(run_id)
        if active is None:
            return False
        ending = active.ending()
        await active.cancel(reason)
        await ending
        record = await self.records.get(run_id)
        return record is not None and record.outcome is Outcome.CANCELLED

    def forget(self, active: ActiveRun) -> None:
        """The run's last record is written."""
        self.active.pop(active.run_id, None)
        active.wake()

    def close_admission(self) -> None:
        """Refuse new runs, and those that wait, with Busy; those at work go on. Builds end, since what they are for
        would not be admitted."""
        self.admission.close()
        self.environments.building.stop()

    async def close(self, grace_s: float = 0.0) -> None:
        """Take no more runs, let those at work end for ``grace_s`` seconds, cancel the rest, and wait until
        every record is written and every sandbox is gone."""
        self.close_admission()
        endings = [active.ending() for active in self.active.values()]
        if endings and grace_s > 0:
            await asyncio.wait(endings, timeout=grace_s)
        for active in list(self.active.values()):
            await active.cancel("the server is shutting down")
        if endings:
            await asyncio.wait(endings)
        await self.environments.close()
        await self.ahead.close()
        await self.tasks.drain()
        await self.parts.close()
        await self._background.close()
