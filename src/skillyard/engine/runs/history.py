"""Records and logs of runs, and the ends and networks of those at work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from skillyard.domain.errors import InvalidInput, RunNotFound, SandboxGone
from skillyard.domain.network.policy import is_open, parse_rules
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.work.record import RunRecord
from skillyard.engine.network.run_network import RunNetwork
from skillyard.engine.observer import Fault, NetworkChanged, Observer
from skillyard.engine.runs.execution import ActiveRun, ActiveRuns
from skillyard.engine.runs.service import RunService
from skillyard.engine.text import cut_head
from skillyard.ports.blobs import BlobStore
from skillyard.ports.clock import Clock
from skillyard.ports.records import RecordStore

FIRST_S = 0.5
"""How long a page of a running run waits for something new: on a busy host, what is there takes a while to come."""
IDLE_S = 0.05
"""How long it waits for more once it has something."""
PAGE_S = 1.0
"""How long a page takes at most, however the run goes on writing: what is not read by then is for the next page."""

_PRIVATE = ("idempotency_key", "request_digest", "sandbox", "owner", "lease", "deadline", "program", "offsets",
            "blob_prefix", "secrets", "network_session")  # fmt: skip


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
        *,
        open_network: bool,
    ) -> None:
        self._runs = runs
        self._active = active
        self._records = records
        self._blobs = blobs
        self._clock = clock
        self._emit = emit
        self._open_network = open_network
        self._kept: dict[str, Any] = {}

    async def list(
        self, owner: str | None, *, limit: int, after: str | None, status: str | None
    ) -> Sequence[RunRecord]:
        """Returns records, newest first; ``owner`` is None for everybody's. Raises InvalidInput for ``after``."""
        return await self._records.list(owner, limit=limit, after=after, status=status)

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

    async def logs(self, principal: Principal, run_id: str, offset: int, max_bytes: int) -> dict[str, Any]:
        """Returns a page of the log. Raises RunNotFound."""
        record = await self.owned(principal, run_id)
        return await _page(self._active.get(run_id), self._blobs, record, offset, max_bytes)

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
    fields = record.as_dict()
    for name in _PRIVATE:
        del fields[name]
    return fields | {
        "kind": record.kind.value,
        "status": record.status.value,
        "outcome": record.outcome.value if record.outcome else None,
    }


async def _page(
    active: ActiveRun | None, blobs: BlobStore, record: RunRecord, offset: int, max_bytes: int
) -> dict[str, Any]:
    """Returns a page: from the sandbox while the run works, from its blob when it has ended.

    At most ``max_bytes`` of the log from ``offset`` on, ending between characters where there is more to
    come. Offsets count bytes of the redacted log."""
    if active is not None:
        data, last = await _live(active, offset, max_bytes), False
    else:
        data, last = await _stored(blobs, record, offset, max_bytes)
    if not last:
        data = cut_head(data)
    running = active is not None or record.status.live
    return {
        "run_id": record.run_id,
        "content": data.decode("utf-8", "replace"),
        "encoding": "utf-8",
        "offset": offset,
        "next_offset": offset + len(data),
        "running": running,
        "complete": last and not running,
    }


async def _stored(blobs: BlobStore, record: RunRecord, offset: int, max_bytes: int) -> tuple[bytes, bool]:
    """The bytes, and whether they are the last ones."""
    info = await blobs.stat(record.logs_blob) if record.logs_blob else None
    if info is None or offset >= info.size:
        return b"", True
    length = min(max_bytes, info.size - offset)
    data = b"".join([chunk async for chunk in blobs.read(info.blob_id, offset, length)])
    return data, offset + length == info.size


async def _live(active: ActiveRun, offset: int, max_bytes: int) -> bytes:
    """Returns what the process has written up to now: read until it pauses. Empty when it is silent for a while."""
    if active.process is None:
        return b""
    redactor = active.redactor()
    kept, seen = bytearray(), 0
    source = active.process.output(Stream.STDOUT)
    clock = asyncio.get_running_loop().time
    end = clock() + PAGE_S
    try:
        while len(kept) < max_bytes:
            async with asyncio.timeout_at(min(end, clock() + (IDLE_S if kept else FIRST_S))):
                piece = redactor.feed(await anext(source))
            start = max(0, offset - seen)
            kept += piece[start:]
            seen += len(piece)
    except (TimeoutError, StopAsyncIteration):
        pass
    return bytes(kept[:max_bytes])
