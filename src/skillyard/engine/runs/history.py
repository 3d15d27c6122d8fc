"""Records and logs of runs, and the ends and networks of those at work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from skillyard.domain.errors import InvalidInput, RunNotFound, SandboxGone
from skillyard.domain.network.policy import is_open, parse_rules
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.sandbox.spec import Owner
from skillyard.domain.work.event import Event, told_by
from skillyard.domain.work.record import RunRecord
from skillyard.engine.network.run_network import RunNetwork
from skillyard.engine.observer import Fault, NetworkChanged, Observer
from skillyard.engine.runs.active import ActiveRun, ActiveRuns, Waiting
from skillyard.engine.runs.log_pages import FIRST_S, FOLLOW_S, IDLE_S, PAGE_S, LogPage, LogPages
from skillyard.engine.runs.service import RunService
from skillyard.ports.blobs import BlobStore
from skillyard.ports.clock import Clock
from skillyard.ports.records import RecordStore

_PRIVATE = ("idempotency_key", "request_digest", "revision", "owner", "lease", "deadline", "sandbox", "program",
            "offsets", "blob_prefix", "secrets", "network_session", "service", "stay",
            "session_life", "max_attempts", "attempts", "callback")  # fmt: skip

Find = Callable[[], Awaitable[RunRecord]]
"""Looks a run up; raises when it does not exist for the caller."""


class RunHistory:
    """Runs as their principals see them. A run of another principal is refused as one that does not exist.

    ``open_network`` is the operator's consent to a run that may reach every host.
    """

    def __init__(
        self,
        runs: RunService,
        active: ActiveRuns,
        records: RecordStore,
        blobs: BlobStore,
        clock: Clock,
        emit: Observer,
        waiting: Waiting,
        *,
        open_network: bool,
    ) -> None:
        self._runs = runs
        self._active = active
        self._records = records
        self._clock = clock
        self._emit = emit
        self._waiting = waiting
        self._pages = LogPages(blobs, records)
        self._open_network = open_network
        self._kept: dict[str, Any] = {}

    async def list(
        self, owner: str | None, *, limit: int, after: str | None, status: str | None, labels: Mapping[str, str]
    ) -> Sequence[RunRecord]:
        """Returns records, newest first; ``owner`` is None for everybody's. Raises InvalidInput for ``after``."""
        return await self._records.list(owner, limit=limit, after=after, status=status, labels=labels)

    async def owned(self, principal: Principal, run_id: str) -> RunRecord:
        """Returns the record when it exists and the principal may see it. Raises RunNotFound, alike for both."""
        record = await self._records.get(run_id)
        if record is None or not principal.sees(record.principal):
            raise RunNotFound("run_id", f"no run '{run_id}'", run_id=run_id)
        return record

    async def show(self, principal: Principal, run_id: str) -> dict[str, Any]:
        """Returns a record's view, with what a run at work has tried by now. Raises RunNotFound."""
        record = await self.owned(principal, run_id)
        run = view(record)
        active = self._active.get(run_id)
        if active is not None and active.network is not None and record.status.live:
            run["network"] = await active.network.so_far()
        return run

    async def wait(self, principal: Principal, run_id: str, wait_ms: int) -> RunRecord:
        """Returns the record when the run has ended, or as it is after ``wait_ms``. Raises RunNotFound, Busy."""

        async def ended() -> RunRecord | None:
            record = await self.owned(principal, run_id)
            return None if record.status.live else record

        found = await self._waiting.poll(principal.name, run_id, wait_ms, ended)
        return found or await self.owned(principal, run_id)

    async def events(self, principal: Principal, run_id: str, after: int, limit: int, wait_ms: int) -> dict[str, Any]:
        """Returns the events behind number ``after``; waits for one while there is none. Raises RunNotFound, Busy."""

        async def find() -> RunRecord:
            return await self.owned(principal, run_id)

        return await self.event_page(principal, run_id, find, after, limit, wait_ms)

    async def event_page(
        self, principal: Principal, run_id: str, find: Find, after: int, limit: int, wait_ms: int
    ) -> dict[str, Any]:
        """As :meth:`events`, of the run that ``find`` gives. Raises what that raises, and Busy."""

        async def told() -> dict[str, Any]:
            record = await find()
            events = await self._events(record, after, limit)
            return {
                "run_id": run_id,
                "events": [event.as_dict() for event in events],
                "next_after": events[-1].seq if events else after,
                "complete": not record.status.live and len(events) < limit,
            }

        async def news() -> dict[str, Any] | None:
            page = await told()
            return page if page["events"] or page["complete"] else None

        return await self._waiting.poll(principal.name, run_id, wait_ms, news) or await told()

    async def _events(self, record: RunRecord, after: int, limit: int) -> Sequence[Event]:
        if record.owner is Owner.TASK:
            return await self._records.events(record.run_id, after, limit)
        return [event for event in told_by(record) if event.seq > after][:limit]

    async def logs(
        self, principal: Principal, run_id: str, offset: int, max_bytes: int, wait_ms: int
    ) -> dict[str, Any]:
        """Returns a page of the log; of a live run it waits for something new. Raises RunNotFound, Busy."""

        async def find() -> RunRecord:
            return await self.owned(principal, run_id)

        page = await self.log_page(principal, find, offset, max_bytes, wait_ms)
        return {
            "run_id": run_id,
            "content": page.text(),
            "encoding": "utf-8",
            "offset": page.offset,
            "next_offset": page.next_offset,
            "dropped": page.dropped,
            "running": page.running,
            "complete": page.complete,
        }

    async def log_page(self, principal: Principal, find: Find, offset: int, max_bytes: int, wait_ms: int) -> LogPage:
        """Returns a page of the log of the run that ``find`` gives. Raises what that raises, and Busy."""
        clock = asyncio.get_running_loop().time
        end = clock() + wait_ms / 1000

        async def page(first_s: float, idle_s: float = FOLLOW_S) -> LogPage:
            record = await find()
            return await self._pages.page(self._active.get(record.run_id), record, offset, max_bytes, first_s, idle_s)

        async def more() -> LogPage | None:
            found = await page(max(0.0, end - clock()))
            return found if found.news or clock() >= end else None

        record = await find()
        if not wait_ms or not record.status.live:
            return await page(FIRST_S, IDLE_S)
        found = None
        async with self._waiting.bounded(principal.name, wait_ms / 1000 + PAGE_S):
            found = await self._waiting.until(record.run_id, more)
        return found or await page(0.0)

    async def cancel(self, principal: Principal, run_id: str, reason: str | None) -> bool:
        """Ends a run; returns whether that ended it. Raises RunNotFound."""
        await self.owned(principal, run_id)
        return await self._runs.cancel(run_id, reason or f"cancelled by {principal.name}")

    async def set_network(self, principal: Principal, run_id: str, texts: Sequence[str]) -> None:
        """Changes what a run at work may reach. Raises RunNotFound, InvalidInput, GateFault."""
        network = self._network_of(await self.owned(principal, run_id))
        rules = parse_rules(texts)
        if is_open(rules) and not self._open_network:
            consent = "and the operator has not consented to that (network.open)"
            raise InvalidInput("network", f"asks for every host, {consent}")
        replaces = Scope.ADMIN in principal.scopes
        try:
            change = await network.change(rules, by=principal.name, at=self._clock.now(), replaces=replaces)
        except SandboxGone:
            raise _ended() from None
        await self._keep(run_id, network)
        self._emit(NetworkChanged(run_id, principal.name, change.layer, change.rules))

    def _network_of(self, record: RunRecord) -> RunNetwork:
        active = self._active.get(record.run_id)
        if active is None or not record.status.live:
            raise _ended()
        if active.network is None:
            raise InvalidInput("run_id", "must be of a run that was started with a network: this one has none")
        return active.network

    async def keep_networks(self) -> None:
        """Stores new connections of runs at work, so that a crash keeps them."""
        at_work = [active for active in self._active.values() if active.network is not None]
        self._kept = {
            active.run_id: await self._keep_changed(active, self._kept.get(active.run_id)) for active in at_work
        }

    async def _keep_changed(self, active: ActiveRun, before: Any) -> Any:
        assert active.network is not None
        try:
            told = await active.network.so_far()
            if told != before:
                await self._keep(active.run_id, active.network)
        except Exception as error:  # noqa: BLE001 - the other runs' logs are kept all the same
            self._emit(Fault("network", error, active.run_id))
            return before
        return told

    async def _keep(self, run_id: str, network: RunNetwork) -> None:
        await self._records.keep_network(run_id, await network.so_far())


def _ended() -> InvalidInput:
    return InvalidInput("run_id", "must be of a run that is going on: this one has ended")


def line(record: RunRecord) -> dict[str, Any]:
    """Returns a record's view for a list, whose records come without what can be large."""
    shown = view(record)
    del shown["network"], shown["needs"], shown["guarantees"]
    return shown


def view(record: RunRecord) -> dict[str, Any]:
    """Returns a record's JSON form (skills-protocol §11), without what only we need."""
    record = record.seen()
    fields = record.as_dict()
    for name in _PRIVATE:
        del fields[name]
    return fields | {
        "detached": record.owner is Owner.TASK,
        "kind": record.kind.value,
        "status": record.status.value,
        "outcome": record.outcome.value if record.outcome else None,
    }
