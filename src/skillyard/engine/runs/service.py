"""Runs from request to Run object: the same for every face."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from skillyard.domain.errors import IdempotencyConflict, InvalidInput, SkillyardError, StoreFault
from skillyard.domain.principal import Principal, agent_scope
from skillyard.domain.sandbox.spec import Owner
from skillyard.domain.work.record import Outcome, RunRecord
from skillyard.domain.work.session import check_alias
from skillyard.engine.driver import Driver, Tools
from skillyard.engine.lending import Order
from skillyard.engine.observer import RunEnded, RunQueued, RunRefused
from skillyard.engine.packages.environments import Environments
from skillyard.engine.runs.active import ActiveRun
from skillyard.engine.runs.detached import DetachedRuns
from skillyard.engine.runs.failure import Failure, LeftBehind, Refused
from skillyard.engine.runs.grant import Grant, Granter, job_of
from skillyard.engine.runs.plan import Plan, Planner
from skillyard.engine.runs.record import ended, first_record, run_object
from skillyard.engine.runs.request import RunRequest
from skillyard.engine.sessions.service import SessionService
from skillyard.engine.shares import Budget
from skillyard.ports.records import RecordStore
from skillyard.values import dataclass

Key = tuple[str, str]
_OF_SESSIONS, _OF_CALLS = ("restart", "wait_ms", "agent"), ("entrypoint", "args", "detach")
"""The parameters of ``run_code`` that only a cell has, and that no cell has."""
Start = Callable[[Principal, RunRequest], Awaitable[RunRecord]]


@dataclass(frozen=True, slots=True)
class _First:
    digest: str
    ended: asyncio.Future[None]


class Keys:
    """The idempotency keys that are being worked on. Within one server the second caller waits for the first; across
    restarts the record answers. Keys belong to a principal, and are bound to what was asked by its digest."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._first: dict[Key, _First] = {}

    @asynccontextmanager
    async def claim(self, key: Key, digest: str, *, live: bool) -> AsyncIterator[RunRecord | None]:
        """Yields the record of the first call with the key, or None when this is the first.

        It has ended, or outlives its server; with ``live`` it may be at work for the first caller. The first call does
        its work in the block. Raises IdempotencyConflict when the key stands for another request.
        """
        while (first := self._first.get(key)) is not None:
            _check(digest, first.digest)
            if live and (record := await self._begun(key, first)) is not None:
                yield record
                return
            await asyncio.shield(first.ended)
        mine = _First(digest, asyncio.get_running_loop().create_future())
        self._first[key] = mine
        try:
            record = await self._records.by_key(*key)
            if record is not None:
                _check(digest, record.request_digest)
            kept = record is not None and (record.owner is Owner.TASK or not record.status.live)
            yield record if kept else None
        finally:
            del self._first[key]
            mine.ended.set_result(None)

    async def _begun(self, key: Key, first: _First) -> RunRecord | None:
        """Returns the record of the first call as soon as there is one.

        None when that call ended without one.
        """
        stored: asyncio.Future[RunRecord] = asyncio.get_running_loop().create_future()

        def hear(record: RunRecord) -> None:
            if (record.principal, record.idempotency_key) == key and not stored.done():
                stored.set_result(record)

        self._records.listen(hear)
        try:
            record = await self._records.by_key(*key)
            if record is None:
                await asyncio.wait((stored, first.ended), return_when=asyncio.FIRST_COMPLETED)
                record = stored.result() if stored.done() else None
            return record
        finally:
            self._records.ignore(hear)


def _check(digest: str, first: str) -> None:
    if digest != first:
        raise IdempotencyConflict("idempotency_key", "was used before, with other parameters")


class RunService:
    """Plans, grants and executes runs, and ends those that somebody cancels. ``requests`` bounds the bytes of all that
    wait or work."""

    def __init__(
        self,
        planner: Planner,
        granter: Granter,
        environments: Environments,
        sessions: SessionService,
        requests: Budget,
        detached: DetachedRuns,
        tools: Tools,
    ) -> None:
        self._planner = planner
        self._granter = granter
        self._environments = environments
        self._sessions, self._lender = sessions, sessions.lender
        self._requests = requests
        self._detached = detached
        self._tools = tools
        self._keys = Keys(tools.records)

    async def run(self, principal: Principal, request: RunRequest) -> dict[str, Any]:
        """Returns the Run object of :meth:`record`, and raises what that raises."""
        record = await self.record(principal, request)
        if record.session is None:
            return run_object(record)
        return run_object(record) | await self._sessions.times(record.session, record.session_life)

    def in_session(self, principal: Principal, request: RunRequest, params: Mapping[str, Any]) -> RunRequest:
        """Returns the request for a cell, where ``params`` name its session. Raises InvalidInput, Forbidden."""
        alias, restart = params.get("session_id"), bool(params.get("restart"))
        if alias is None:
            if lonely := [name for name in _OF_SESSIONS if name in params]:
                raise InvalidInput(lonely[0], "belongs to a session; name one with session_id, or leave it out")
            return request
        if over := [name for name in _OF_CALLS if params.get(name)]:
            rule = "is not for a cell of a session; write the values and the call in its code, and wait for the answer"
            raise InvalidInput(over[0], rule)
        agent = agent_scope(principal, params.get("agent")).agent
        wait_ms = self._sessions.wait_ms_of(params.get("wait_ms"))
        return replace(request, session=check_alias(alias), wait_ms=wait_ms, restart=restart, agent=agent)

    async def record(self, principal: Principal, request: RunRequest, *, accepted: bool = False) -> RunRecord:
        """Returns the record of a run that has ended, or of a detached one that was taken on.

        A detached one that was ``accepted`` before, as part of something larger, is not turned away by a full queue.
        Cancelling the caller ends the run, unless it is detached. Raises what :meth:`Planner.plan` raises, Busy,
        ProtectionMissing, IdempotencyConflict.
        """
        if request.detach:
            take = partial(self._take, accepted=accepted)
            return await self._tools.tasks.shielded(self._keyed(principal, request, take), "detached run")
        with self._requests.holding(principal.name, request.weight):
            return await self._keyed(principal, request, self._run)

    async def _keyed(self, principal: Principal, request: RunRequest, start: Start) -> RunRecord:
        """Starts the run, or finds the one that was started before with the request's key."""
        if request.idempotency_key is None:
            return await start(principal, request)
        key = (principal.name, request.idempotency_key)
        async with self._keys.claim(key, request.digest(), live=request.detach) as before:
            record = before or await start(principal, request)
        return record if request.detach else await self._ended(record)

    async def _ended(self, record: RunRecord) -> RunRecord:
        """Returns the record when the run has ended, or this server leaves it to the next."""
        active = self._tools.active.get(record.run_id) if record.status.live else None
        if active is None:
            return record
        await active.ending()
        return await self._tools.records.get(record.run_id) or record

    async def _take(self, principal: Principal, request: RunRequest, *, accepted: bool) -> RunRecord:
        try:
            return await self._detached.take(principal, request, accepted=accepted)
        except SkillyardError as error:
            self._turned_away(principal, request, error)
            raise

    async def cancel(self, run_id: str, reason: str) -> bool:
        """End a run and wait until nothing of it is left. False when it had ended already."""
        active = self._tools.active.get(run_id)
        if active is None:
            return False
        ending = active.ending()
        try:
            await active.cancel(reason)
        except LeftBehind as left:
            record = await self._tools.records.get(run_id)
            if record is None or record.status.live:
                raise StoreFault(f"the run could not be cancelled: {left}; try again") from left
        else:
            await ending
            record = await self._tools.records.get(run_id)
        return record is not None and record.outcome is Outcome.CANCELLED

    async def close(self, grace_s: float = 0.0) -> None:
        """Ends the runs that this server owns, and leaves the others to the next server.

        It returns when all records are written. Runs at work may end by themselves for ``grace_s`` seconds; then they
        are cancelled.
        """
        await self._detached.leave()
        at_work = list(self._tools.active.values())
        endings = [active.ending() for active in at_work]
        if endings and grace_s > 0:
            await asyncio.wait(endings, timeout=grace_s)
        for active in list(self._tools.active.values()):
            await active.cancel("the server is shutting down")
        if endings:
            await asyncio.wait(endings)

    async def _run(self, principal: Principal, request: RunRequest) -> RunRecord:
        try:
            plan = await self._planner.plan(principal, request)
            try:
                grant = await self._granter.grant(plan)
            except Refused as refusal:
                return await self._refuse(plan, refusal)
        except SkillyardError as error:
            self._turned_away(principal, request, error)
            raise
        with self._environments.using(grant.digests["environment"]):
            return await self._lent(plan, grant)

    async def _lent(self, plan: Plan, grant: Grant) -> RunRecord:
        order = Order(plan.run_id, plan.principal.name, plan.offer, grant.spec, grant.network)
        queued, loan = partial(self._queued, plan), None
        kept = plan.request.session is not None
        try:
            async with (
                self._sessions.lend(plan, grant, order, queued) if kept else self._lender.lend(order, queued)
            ) as loan:
                # A record stands before code with a key, which is never done twice, and before code that sees files.
                # Others begin here, and their record is made meanwhile.
                if not (plan.request.idempotency_key or grant.spec.mounts):
                    with suppress(SkillyardError):  # the driver meets it too, and records it
                        loan.launch(self._tools.start(plan.run_id, grant.guest, plan.limits.timeout_ms))
                job = job_of(plan, grant, self._tools.network, loan.session)
                if loan.session is not None:
                    job = replace(job, redaction=await self._sessions.redaction(loan.session, grant.given))
                return await Driver(self._tools, job, loan, ActiveRun(plan.run_id, plan.principal.name)).run()
        except SkillyardError as error:
            if loan is None:
                self._turned_away(plan.principal, plan.request, error)
            raise

    def _turned_away(self, principal: Principal, request: RunRequest, error: SkillyardError) -> None:
        """Tells observers of a run that has no record."""
        self._tools.emit(RunRefused(request.kind, principal.name, error.type))

    def _queued(self, plan: Plan, waiting: int) -> None:
        self._tools.emit(RunQueued(plan.run_id, plan.principal.name, waiting))

    async def _refuse(self, plan: Plan, refusal: Refused) -> RunRecord:
        """A failed run that never had a sandbox; its record is written all the same."""
        tools = self._tools
        needs = self._granter.refused_needs(plan)
        record = first_record(plan, plan.environment, {}, needs)
        await tools.records.insert(record)
        final = ended(record, Failure(refusal.type, refusal.message), tools.clock.now())
        await tools.records.finish(final)
        total_ms = (tools.clock.monotonic() - plan.taken_at) * 1000
        tools.emit(RunEnded(final, total_ms, len(tools.active)))
        return final
