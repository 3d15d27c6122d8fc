"""The record of a run that outlives its server, and the brief that is kept beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from skillyard.domain.errors import SkillyardError
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine.runs.record import LeftBehind, OutputSchema
from skillyard.engine.runs.request import RunRequest, from_stored
from skillyard.ports.clock import Clock
from skillyard.ports.records import RecordStore

T = TypeVar("T")

_TRIES = 10


class TaskLedger:
    """The record of one run that outlives its server.

    Every write raises LeftBehind when another server has the run, or the store fails: so nothing is done that is not
    written down.
    """

    def __init__(self, records: RecordStore, clock: Clock, record: RunRecord) -> None:
        self._records = records
        self.record = record
        self._clock = clock
        self._writing = asyncio.Lock()

    async def begin(self, record: RunRecord) -> RunRecord:
        return await self._change(lambda held: replace(_onto(record, held), status=RunStatus.STARTING))

    async def running(self, record: RunRecord) -> RunRecord:
        return await self._change(lambda held: replace(_onto(record, held), status=RunStatus.RUNNING))

    async def cancel(self, reason: str) -> None:
        def asked(held: RunRecord) -> RunRecord:
            return replace(held, cancel_requested=held.cancel_requested or reason)

        await self._change(asked, "cancel_requested", {"reason": reason})

    async def conclude(self, final: RunRecord) -> None:
        await self._change(lambda held: replace(_onto(final, held), status=RunStatus.RUNNING))

    async def finish(self, final: RunRecord) -> bool:
        async with self._writing:
            for _ in range(_TRIES):
                if await self._written(self._records.finish(replace(_onto(final, self.record), lease=None))):
                    return True
                found = await self._written(self._records.get(final.run_id))
                if found is None or not found.status.live:
                    return False
                self._take(found)
        raise LeftBehind("its record changes all the time")

    async def _change(
        self, wanted: Callable[[RunRecord], RunRecord], kind: str = "", data: Mapping[str, Any] | None = None
    ) -> RunRecord:
        async with self._writing:
            for _ in range(_TRIES):
                changing = self._records.change(wanted(self.record), self._clock.now(), kind, data)
                if (changed := await self._written(changing)) is not None:
                    self.record = changed
                    return changed
                self._take(await self._written(self._records.get(self.record.run_id)))
        raise LeftBehind("its record changes all the time")

    async def _written(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except SkillyardError as error:
            raise LeftBehind(error.message) from error

    def _take(self, found: RunRecord | None) -> None:
        """Goes on from what somebody else wrote, as long as the run is ours."""
        mine = self.record.lease
        if found is None or not found.status.live or mine is None or found.lease is None:
            raise LeftBehind("another server has it")
        if found.lease.holder != mine.holder:
            raise LeftBehind("another server has it")
        self.record = found


def _onto(record: RunRecord, held: RunRecord) -> RunRecord:
    """Returns ``record`` as the next state of ``held``, with the fields that no driver changes."""
    return replace(
        record,
        revision=held.revision,
        owner=held.owner,
        labels=held.labels,
        lease=held.lease,
        cancel_requested=held.cancel_requested,
        created_at=held.created_at,
        idempotency_key=held.idempotency_key,
        request_digest=held.request_digest,
        blob_prefix=held.blob_prefix,
    )


@dataclass(frozen=True, slots=True)
class Brief:
    """Everything that a later server needs beside the record, kept until the run has ended. It holds no secret.

    ``offline`` says why the run has no network, if it has none.
    """

    principal: Principal
    request: RunRequest
    outputs: OutputSchema | None
    offline: str

    def encoded(self) -> str:
        principal, outputs = self.principal, self.outputs
        return json.dumps(
            {
                "scopes": sorted(principal.scopes),
                "skills": principal.skills,
                "agent": principal.agent,
                "agents": principal.agents,
                "request": self.request.stored(),
                "outputs": None if outputs is None else {"key": outputs.key, "schema": outputs.schema},
                "offline": self.offline,
            },
            separators=(",", ":"),
        )

    @classmethod
    def decoded(cls, text: str, record: RunRecord) -> Brief:
        stored = json.loads(text)
        principal = Principal(
            record.principal,
            frozenset(map(Scope, stored["scopes"])),
            tuple(stored["skills"]),
            record.project,
            stored.get("agent", ""),
            tuple(stored.get("agents", ())),
        )
        outputs = None if stored["outputs"] is None else OutputSchema(**stored["outputs"])
        return cls(principal, from_stored(stored["request"]), outputs, stored["offline"])
