"""A run that outlives its server: its record, the brief that is kept beside it, its sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from skillyard.domain.errors import SandboxCutOff, SandboxGone, SkillyardError
from skillyard.domain.principal import Principal
from skillyard.domain.work.record import NOTHING_TAKEN, LogPlace, Offsets, Outcome, RunRecord, RunStatus
from skillyard.engine.lending import Loan
from skillyard.engine.runs.failure import LeftBehind
from skillyard.engine.runs.record import CutOff, NeverStarted, OutputSchema
from skillyard.engine.runs.request import RunRequest, from_stored
from skillyard.ports.clock import Clock
from skillyard.ports.records import RecordStore
from skillyard.ports.sandbox import Process, Sandbox
from skillyard.values import dataclass

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

    async def took(self, taken: Callable[[RunRecord], RunRecord]) -> None:
        await self._change(taken)

    async def tell(self, kind: str, data: Mapping[str, Any]) -> None:
        with suppress(LeftBehind):
            await self._change(lambda held: held, kind, data)

    async def cancel(self, reason: str) -> None:
        def asked(held: RunRecord) -> RunRecord:
            return replace(held, cancel_requested=held.cancel_requested or reason)

        await self._change(asked, "cancel_requested", {"reason": reason})

    async def conclude(self, final: RunRecord) -> None:
        await self._change(lambda held: replace(_onto(final, held), status=RunStatus.RUNNING))

    async def again(
        self, final: RunRecord, new_prefix: Callable[[], str], may_repeat: Callable[[], Awaitable[bool]]
    ) -> bool:
        number = len(self.record.attempts) + 1
        if final.outcome is not Outcome.LOST or number >= self.record.max_attempts:
            return False
        if not await self._written(may_repeat()):
            return False
        told = {
            "attempt": number,
            "reason": final.outcome.value,
            "error_message": final.reason,
            "started_at": final.started_at,
            "finished_at": final.ended_at,
            "logs_blob": final.logs_blob,
        }
        prefix = f"{new_prefix()}-"
        await self._change(lambda held: _queued(held, told, prefix), "attempt", {"attempt": number + 1})
        return True

    async def finish(self, final: RunRecord) -> bool:
        async with self._writing:
            for _ in range(_TRIES):
                if await self._written(self._records.finish(_ended(final, self.record))):
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


class KeptSandbox:
    """Finds the sandbox of a run that outlives its server again, and ``program`` in it."""

    def __init__(self, loan: Loan, program: str) -> None:
        self._loan = loan
        self._program = program

    async def attach(self) -> Sandbox:
        """Returns the sandbox that an earlier server made. Raises SandboxGone, LeftBehind."""
        try:
            return await self._known(self._loan.attach())
        except SandboxGone:
            raise SandboxGone("the sandbox ended while no server was there; run it again") from None

    async def process(self, sandbox: Sandbox) -> Process:
        """Returns the program. Raises SandboxGone, LeftBehind, NeverStarted."""
        try:
            return await sandbox.process(self._program)
        except SandboxCutOff as error:
            raise CutOff(error.message) from error
        except SandboxGone:
            if await self._known(self._loan.is_gone()):
                raise
            raise NeverStarted from None

    async def check_gone(self, error: SandboxGone | None = None) -> None:
        """Raises CutOff when only the connection broke, LeftBehind where nobody can tell.

        ``error`` is one that tells of the end of the sandbox, or of its connection alone.
        """
        broke = error is None or isinstance(error, SandboxCutOff)
        if broke and not await self._known(self._loan.is_gone()):
            raise CutOff("the connection to its sandbox broke")

    async def _known(self, work: Awaitable[T]) -> T:
        """Returns the result of ``work``. The run is left where nobody can tell now whether its sandbox is there."""
        try:
            return await work
        except SandboxCutOff as error:
            raise CutOff(error.message) from error
        except SandboxGone:
            raise
        except SkillyardError as error:
            raise LeftBehind(error.message) from error


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
        offsets=held.offsets,
        service=held.service,
        stay=held.stay,
        attempts=held.attempts,
    )


def _queued(held: RunRecord, told: dict[str, Any], prefix: str) -> RunRecord:
    """Returns the record of a run that waits for another attempt. Nothing of the one that was ``told`` stays in it."""
    first = RunRecord(held.run_id, held.kind, held.principal, RunStatus.QUEUED, held.created_at)
    fresh = {name: getattr(first, name) for name in _OF_ATTEMPT}
    return replace(held, **fresh, status=RunStatus.QUEUED, attempts=(*held.attempts, told), blob_prefix=prefix)


_OF_ATTEMPT = (
    "outcome", "reason", "started_at", "ended_at", "summary", "enforced", "guarantees", "usage", "output",
    "output_blobs", "files", "notes", "logs_preview", "logs_blob", "error", "sandbox", "deadline", "program", "offsets",
    "secrets", "session_life", "network_session",
)  # fmt: skip


def _ended(final: RunRecord, held: RunRecord) -> RunRecord:
    gone = held.offsets.log.gone  # it tells at which offset the kept log begins
    offsets = Offsets(log=LogPlace(gone=gone)) if gone else NOTHING_TAKEN
    return replace(_onto(final, held), lease=None, offsets=offsets)


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
        outputs = self.outputs
        return json.dumps(
            {
                **self.principal.stored(),
                "request": self.request.stored(),
                "outputs": None if outputs is None else {"key": outputs.key, "schema": outputs.schema},
                "offline": self.offline,
            },
            separators=(",", ":"),
        )

    @classmethod
    def decoded(cls, text: str, record: RunRecord) -> Brief:
        stored = json.loads(text)
        principal = Principal.of_stored(record.principal, record.project, stored)
        outputs = None if stored["outputs"] is None else OutputSchema(**stored["outputs"])
        return cls(principal, from_stored(stored["request"]), outputs, stored["offline"])
