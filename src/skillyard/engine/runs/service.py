"""Runs from request to Run object: the same for every face."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from skillyard.domain.errors import IdempotencyConflict, SkillyardError
from skillyard.domain.principal import Principal
from skillyard.domain.work.record import Outcome, RunRecord, RunStatus
from skillyard.engine.lending import Lender, Order
from skillyard.engine.observer import RunEnded, RunQueued, RunRefused
from skillyard.engine.packages.environments import Environments
from skillyard.engine.runs.execution import Execution, Tools
from skillyard.engine.runs.failure import Failure, Refused
from skillyard.engine.runs.grant import Grant, Granter
from skillyard.engine.runs.plan import Plan, Planner
from skillyard.engine.runs.record import ended, run_facts, run_object
from skillyard.engine.runs.request import RunRequest
from skillyard.engine.shares import Budget
from skillyard.ports.records import RecordStore

Key = tuple[str, str]


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
    async def claim(self, key: Key, digest: str) -> AsyncIterator[RunRecord | None]:
        """Yields the finished record of the first call with the key, or None when this is the first.

        The first call does its work in the block. Raises IdempotencyConflict when the key stands for another request.
        """
        while (first := self._first.get(key)) is not None:
            _check(digest, first.digest)
            await asyncio.shield(first.ended)
        mine = _First(digest, asyncio.get_running_loop().create_future())
        self._first[key] = mine
        try:
            record = await self._records.by_key(*key)
            if record is not None:
                _check(digest, record.request_digest)
            yield record if record is not None and not record.status.live else None
        finally:
            del self._first[key]
            mine.ended.set_result(None)


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
        lender: Lender,
        requests: Budget,
        tools: Tools,
    ) -> None:
        self._planner = planner
        self._granter = granter
        self._environments = environments
        self._lender = lender
        self._requests = requests
        self._tools = tools
        self._keys = Keys(tools.records)

    async def run(self, principal: Principal, request: RunRequest) -> dict[str, Any]:
        """One run from request to Run object. Cancelling the caller ends it, unless it is detached.

        Raises what :meth:`Planner.plan` raises, Busy, ProtectionMissing, IdempotencyConflict.
        """
        if request.detach:
            return await self._tools.tasks.shielded(self._held(principal, request), "detached run")
        return await self._held(principal, request)

    async def cancel(self, run_id: str, reason: str) -> bool:
        """End a run and wait until nothing of it is left. False when it had ended already."""
        active = self._tools.active.get(run_id)
        if active is None:
            return False
        ending = active.ending()
        await active.cancel(reason)
        await ending
        record = await self._tools.records.get(run_id)
        return record is not None and record.outcome is Outcome.CANCELLED

    async def close(self, grace_s: float = 0.0) -> None:
        """Ends all runs and waits until every record is written.

        Runs at work may end by themselves for ``grace_s`` seconds; then they are cancelled.
        """
        at_work = self._tools.active
        endings = [active.ending() for active in at_work.values()]
        if endings and grace_s > 0:
            await asyncio.wait(endings, timeout=grace_s)
        for active in list(at_work.values()):
            await active.cancel("the server is shutting down")
        if endings:
            await asyncio.wait(endings)

    async def _held(self, principal: Principal, request: RunRequest) -> dict[str, Any]:
        with self._requests.holding(principal.name, request.weight):
            if request.idempotency_key is None:
                return run_object(await self._run(principal, request))
            key = (principal.name, request.idempotency_key)
            async with self._keys.claim(key, request.digest()) as record:
                return run_object(record or await self._run(principal, request))

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
        loan = None
        try:
            async with self._lender.lend(order, partial(self._queued, plan)) as loan:
                return await Execution(self._tools, plan, grant, loan).run()
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
        record = RunRecord(status=RunStatus.RUNNING, **run_facts(plan, plan.environment, {}, needs))
        await tools.records.insert(record)
        final = ended(record, Failure(refusal.type, refusal.message), tools.clock.now())
        await tools.records.finish(final)
        total_ms = (tools.clock.monotonic() - plan.taken_at) * 1000
        tools.emit(RunEnded(final, total_ms, len(tools.active)))
        return final
