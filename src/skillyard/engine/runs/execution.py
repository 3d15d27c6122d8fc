"""One admitted run: ``create -> mount -> execute -> collect -> destroy -> record`` (design §6).

The record is written before the sandbox exists, and moved to its end when the sandbox is gone. Everything
happens in the caller's own task; when that is cancelled, a task of the engine's ends the tree, keeps the
output so far, destroys the sandbox and writes the record, whatever happens to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from skillyard.config.network import NetworkSettings
from skillyard.config.packages import EnvironmentSettings, PackagesSettings
from skillyard.domain.errors import Busy, IdempotencyConflict, ProtectionMissing, SandboxGone, SkillyardError
from skillyard.domain.sandbox.frames import Result
from skillyard.domain.sandbox.spec import Guest, Stream, StreamLimits
from skillyard.domain.work.record import Ending, Outcome, RunRecord, RunStatus
from skillyard.engine.lending import Loan
from skillyard.engine.network.grant import why_none
from skillyard.engine.network.refusals import used, with_network, without_network
from skillyard.engine.network.run_network import RunNetwork
from skillyard.engine.observer import Fault, Observer, RunEnded, RunStarted
from skillyard.engine.packages.ahead import Ahead
from skillyard.engine.runs.collect import BlobSink, BlobTarget, Broken, Channel, Left
from skillyard.engine.runs.failure import Failure, cancelled, ended_by, lacking, of_guest, raised, with_stack
from skillyard.engine.runs.grant import Grant
from skillyard.engine.runs.log import NO_LOG, Log, keep_log
from skillyard.engine.runs.plan import Plan
from skillyard.engine.runs.record import FinalRecord, Findings, run_facts
from skillyard.engine.secrets.redact import Redactor
from skillyard.engine.tasks import Tasks
from skillyard.ports.blobs import BlobStore
from skillyard.ports.clock import Clock, Ids
from skillyard.ports.jailed import SchemaChecker
from skillyard.ports.records import RecordStore
from skillyard.ports.sandbox import Process, Sandbox


@dataclass(slots=True, eq=False)
class ActiveRun:
    """One run between its first record and its last. ``cancel_reason`` is set once somebody asked it to end;
    ``redactor`` makes a fresh one for each reading of its log."""

    run_id: str
    principal: str
    redactor: Callable[[], Redactor]
    network: RunNetwork | None = None
    process: Process | None = None
    cancel_reason: str | None = None
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)
    _starters: list[asyncio.Future[None]] = field(default_factory=list)

    def begin(self, process: Process) -> None:
        """Its program was started."""
        self.process = process
        _wake(self._starters)

    def starting(self) -> asyncio.Future[None]:
        """Done when its program is started, or its last record is written."""
        return _waiter(self._starters)

    async def cancel(self, reason: str) -> None:
        """End the process tree; what is not started yet will not be."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self.process is not None:
            await self.process.kill(reason)

    def ending(self) -> asyncio.Future[None]:
        """Done when the last record is written."""
        return _waiter(self._waiters)

    def wake(self) -> None:
        """Tell everybody who waits for the end."""
        _wake(self._waiters)
        _wake(self._starters)


def _waiter(waiters: list[asyncio.Future[None]]) -> asyncio.Future[None]:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(waiter)
    return waiter


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


class ActiveRuns(dict[str, ActiveRun]):
    """The runs at work by their ids."""

    def forget(self, active: ActiveRun) -> None:
        """The run's last record is written."""
        self.pop(active.run_id, None)
        active.wake()


CALLER_GONE = "its caller went away"
PATIENCE_S = 60.0
"""How long a backend may take beyond the run's own timeout, and to end a sandbox. The deadline itself is the
backend's to keep: this is for one that no longer answers."""


_LEAVES = (Outcome.TIMEOUT, Outcome.OUTPUT, Outcome.EXIT, Outcome.SIGNAL, Outcome.MEMORY, Outcome.PROCESSES)
"""Endings of a program that said nothing, after which there may be files."""

_BESIDE_BLOBS = 32 * 1024 * 1024
"""Bytes on the channel beside those of blobs: the result and the heads of frames."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Everything that each run works with. ``log_bytes`` and ``blob_bytes`` bound what is taken of one run's output,
    ``spill`` keeps a result that is too large as a blob. ``network``, ``environments`` and ``packages`` are the
    settings that failures are explained by."""

    records: RecordStore
    blobs: BlobStore
    schemas: SchemaChecker
    clock: Clock
    ids: Ids
    tasks: Tasks
    emit: Observer
    active: ActiveRuns
    ahead: Ahead
    log_bytes: int
    blob_bytes: int
    blob_ttl_s: float | None
    spill: bool
    network: NetworkSettings
    environments: Mapping[str, EnvironmentSettings]
    packages: PackagesSettings


class Execution:
    """Drives one run in the sandbox that it was lent. :meth:`run` is awaited once."""

    def __init__(self, tools: Tools, plan: Plan, grant: Grant, loan: Loan) -> None:
        self._tools = tools
        self._plan = plan
        self._grant = grant
        self._loan = loan
        self._final: RunRecord | None = None
        self._active = ActiveRun(plan.run_id, plan.principal.name, grant.redaction.stream, network=loan.network)
        self._target = _target(tools, plan, grant)
        self._channel = Channel(BlobSink(self._target), grant.limits)
        self._left: Left | None = None
        self._found = Findings(queued_ms=(tools.clock.monotonic() - plan.taken_at) * 1000)
        self._facts = run_facts(plan, grant.environment, grant.digests, grant.needs)

    async def run(self) -> RunRecord:
        """Returns the finished record.

        Raises ProtectionMissing and Busy when the backend turned the run away; the record then says so.
        """
        tools, run_id = self._tools, self._plan.run_id
        tools.active[run_id] = self._active
        try:
            network = None if self._loan.network is None else await self._loan.begin()
            first = RunRecord(status=RunStatus.RUNNING, network=network, **self._facts)
            await tools.records.insert(first)
            self._final = await self._conclude(await self._attempt())
            final = await self._close(self._final)
            if self._grant.wish is not None:
                tools.ahead.fulfil(self._grant.wish, self._loan.spec)
            return final
        except asyncio.CancelledError:
            await tools.tasks.shielded(self._abandon(), f"abandon {run_id}")
            raise
        except BaseException as error:
            await tools.tasks.shielded(self._fail(error), f"fail {run_id}")
            raise

    async def _attempt(self) -> Failure | None:
        """Run the program in a sandbox of its own; why it failed, if it did."""
        try:
            async with asyncio.timeout(self._plan.limits.timeout_ms / 1000 + PATIENCE_S):
                return await self._work()
        except _CancelledEarly as early:
            return cancelled(early.reason)
        except (ProtectionMissing, Busy):
            raise
        except TimeoutError as error:
            self._tools.emit(Fault("sandbox", error, self._plan.run_id))
            return Failure("SandboxLost", "the sandbox no longer answers", Outcome.LOST)
        except SandboxGone as error:
            return Failure("SandboxLost", error.message, Outcome.LOST)
        except SkillyardError as error:
            self._tools.emit(Fault("sandbox", error, self._plan.run_id))
            return Failure("SandboxError", error.message)

    async def _work(self) -> Failure | None:
        sandbox, guest = await self._loan.open(self._grant.guest)
        if self._active.cancel_reason is not None:
            raise _CancelledEarly(self._active.cancel_reason)
        process = await self._start(sandbox, guest)
        broken = await self._listen(process)
        ending = await process.wait()
        self._found.usage = ending.usage
        self._found.log = await self._log(process)
        if broken is None and self._channel.final is None and ending.outcome in _LEAVES:
            self._left = Left(self._grant, self._target, self._tools.ids.blob())
            await self._left.collect(sandbox, process.id)
        return broken or self._judge(ending)

    async def _start(self, sandbox: Sandbox, guest: Mapping[str, Any]) -> Process:
        tools, plan, found = self._tools, self._plan, self._found
        found.created_ms = (tools.clock.monotonic() - plan.taken_at) * 1000
        found.started_at = tools.clock.now()
        process = await sandbox.start(
            Guest(guest),
            id=plan.run_id,
            timeout_ms=plan.limits.timeout_ms,
            streams=StreamLimits(tools.log_bytes, tools.blob_bytes + _BESIDE_BLOBS),
        )
        self._active.begin(process)
        tools.emit(
            RunStarted(
                run_id=plan.run_id,
                kind=plan.request.kind,
                principal=plan.principal.name,
                skill=self._facts["skill"],
                queued_ms=found.queued_ms,
                created_ms=found.created_ms,
            )
        )
        if self._active.cancel_reason is not None:
            await process.kill(self._active.cancel_reason)
        return process

    async def _listen(self, process: Process) -> Failure | None:
        """Take what comes on the channel until its end; a run that breaks its rules is ended."""
        try:
            async for data in process.output(Stream.CHANNEL):
                await self._channel.feed(data)
        except Broken as broken:
            await process.kill(broken.failure.message)
            return broken.failure
        return None

    def _judge(self, ending: Ending) -> Failure | None:
        if ending.outcome is Outcome.CANCELLED:
            return cancelled(self._active.cancel_reason or ending.reason)
        if ending.outcome is Outcome.EXIT and self._channel.final is not None:
            if isinstance(self._channel.final, Result):
                return None
            failure = raised(of_guest(self._channel.final, self._grant.redaction), ending.hits, self._plan.limits)
            tools, skill = self._tools, self._plan.skill is not None
            return lacking(failure, tools.environments, tools.packages, skill=skill)
        stack = self._grant.redaction.text(self._left.notes.stack) if self._left else ""
        return with_stack(ended_by(ending, self._plan.limits), stack)

    async def _log(self, process: Process) -> Log:
        return await keep_log(process.output(Stream.STDOUT), self._grant.redaction, self._target)

    async def _conclude(self, failure: Failure | None) -> RunRecord:
        sink, found = self._channel.sink, self._found
        if sink.unfinished:
            await sink.abort()
        found.ended_ms = (self._tools.clock.monotonic() - self._plan.taken_at) * 1000
        found.ended_at = self._tools.clock.now()
        found.enforced, found.guarantees = self._loan.enforced, self._loan.guarantees
        found.said, found.blobs = self._channel.final, tuple(sink.ids)
        found.files, found.notes = tuple(sink.files), self._channel.notes
        if self._left is not None:
            await self._left.sink.abort()
            found.blobs += tuple(self._left.sink.ids)
            found.files += tuple(self._left.sink.files)
            found.notes = self._left.notes
        tools, redaction = self._tools, self._grant.redaction
        record = FinalRecord(self._plan, redaction, self._target, self._facts, tools.schemas, spill=tools.spill)
        return await record.of(found, failure)

    async def _close(self, final: RunRecord) -> RunRecord:
        """No process, mount or file is left; then the record says so. Can be repeated."""
        tools, plan = self._tools, self._plan
        seen = await self._loan.end()
        if seen is not None:
            final = with_network(final, seen)
        elif final.status is RunStatus.FAILED:
            why = why_none(tools.network, plan.skill, plan.skills, plan.request.network, plan.trust.least)
            final = without_network(final, why)
        try:
            moved = await tools.records.finish(final)
        finally:  # a record that could not be written is settled by a sweep; nobody waits for it until then
            tools.active.forget(self._active)
        if moved:
            if final.network is not None:
                tools.emit(used(final))
            tools.emit(RunEnded(final, self._elapsed_ms(), len(tools.active)))
        return final

    async def _abandon(self) -> None:
        """The caller went away: end the tree, keep what there is, confirm, record."""
        if self._active.cancel_reason is None:
            self._active.cancel_reason = CALLER_GONE
        await self._end_early(cancelled(self._active.cancel_reason))

    async def _fail(self, error: BaseException) -> None:
        """The run was turned away, or our own machinery failed."""
        if not isinstance(error, ProtectionMissing | Busy | IdempotencyConflict):
            self._tools.emit(Fault("run", error, self._plan.run_id))
        if isinstance(error, SkillyardError):
            await self._end_early(Failure(error.type, error.message))
        else:
            await self._end_early(Failure("SandboxError", "an internal fault ended the run"))

    async def _end_early(self, failure: Failure) -> None:
        if self._final is None:
            with suppress(SkillyardError, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await self._stop()
            self._final = await self._conclude(failure)
        await self._close(self._final)

    async def _stop(self) -> None:
        """End the program and take what is complete. A create that was interrupted may have happened: creating
        again gives the same sandbox."""
        await self._loan.finish_creating()
        process = self._active.process
        if process is None:
            return
        await process.kill(self._active.cancel_reason or "")
        self._found.usage = (await process.wait()).usage
        await self._channel.replay()  # listening was interrupted, perhaps within a frame
        await self._listen(process)
        if self._found.log is NO_LOG:
            self._found.log = await self._log(process)

    def _elapsed_ms(self) -> float:
        return (self._tools.clock.monotonic() - self._plan.taken_at) * 1000


class _CancelledEarly(Exception):
    """Somebody cancelled the run before its program was started."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _target(tools: Tools, plan: Plan, grant: Grant) -> BlobTarget:
    return BlobTarget(
        store=tools.blobs,
        tasks=tools.tasks,
        owner=plan.principal.name,
        run_id=plan.run_id,
        prefix=grant.blob_prefix,
        ttl_s=tools.blob_ttl_s,
    )
