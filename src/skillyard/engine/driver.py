"""The drive of one program from its record, up to its end.

The record is written before the sandbox exists, and moved to its end when the sandbox is gone. That of a run which was
launched before the record was made is written when its sandbox is told of, or once with its end where that is told as
soon. When the caller's task is cancelled, a task of the engine's ends the tree, keeps the output so far, destroys the
sandbox and writes the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from skillyard.config.network import NetworkSettings
from skillyard.config.packages import EnvironmentSettings, PackagesSettings
from skillyard.domain.errors import Busy, IdempotencyConflict, ProtectionMissing, SandboxGone, SkillyardError
from skillyard.domain.sandbox.frames import Result
from skillyard.domain.sandbox.spec import AtCap, Guest, Start, Stream, StreamLimits
from skillyard.domain.work.record import Ending, Outcome, RunRecord, RunStatus
from skillyard.engine.commands.ending import concluded, cut_short, judged
from skillyard.engine.commands.output import Marked
from skillyard.engine.commands.tails import Live, Silence
from skillyard.engine.lending import PATIENCE_S, Loan
from skillyard.engine.network.refusals import used, with_network, without_network
from skillyard.engine.observer import Fault, Observer, RunEnded, RunStarted
from skillyard.engine.packages.ahead import Ahead
from skillyard.engine.runs.active import ActiveRun, ActiveRuns
from skillyard.engine.runs.collect import BlobSink, BlobTarget, Broken, Channel, Left
from skillyard.engine.runs.failure import Failure, LeftBehind, cancelled, ended_by, lacking, raised, with_stack
from skillyard.engine.runs.grant import Job
from skillyard.engine.runs.log import NO_LOG, Log, LogInParts, keep_log
from skillyard.engine.runs.patience import Patience
from skillyard.engine.runs.record import FinalRecord, Findings, NeverStarted
from skillyard.engine.runs.task_record import KeptSandbox
from skillyard.engine.tasks import Tasks
from skillyard.ports.blobs import BlobStore
from skillyard.ports.clock import Clock, Ids
from skillyard.ports.jailed import SchemaChecker
from skillyard.ports.records import RecordStore
from skillyard.ports.sandbox import Process, Sandbox
from skillyard.values import dataclass

CALLER_GONE = "its caller went away"
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

    def start(
        self,
        run_id: str,
        guest: Mapping[str, Any],
        timeout_ms: int,
        *,
        kept: bool = False,
        at_cap: AtCap = AtCap.END,
    ) -> Start:
        """Returns the program of a run, of the request to its guest."""
        streams = StreamLimits(self.log_bytes, self.blob_bytes + _BESIDE_BLOBS, at_cap=at_cap)
        return Start(Guest(guest, kept=kept), run_id, timeout_ms, streams)


class Driver:
    """Drives one run in the sandbox that it was lent. Either :meth:`run` or :meth:`resume` is awaited, once."""

    def __init__(self, tools: Tools, job: Job, loan: Loan, active: ActiveRun) -> None:
        self._tools = tools
        self._job = job
        self._loan = loan
        self._ledger = active.ledger
        self._record = job.record
        self._run_id = job.record.run_id
        self._final: RunRecord | None = None
        self._active = active
        self._logs = job.redaction if job.command is None else Marked(job.redaction)
        active.redactor, active.network = self._logs.stream, loan.network
        owner, stable = job.record.principal, active.ledger is not None
        own = (owner, self._run_id, job.blob_prefix, tools.blob_ttl_s, stable)
        self._target = BlobTarget(tools.blobs, tools.tasks, *own)
        self._channel = Channel(BlobSink(self._target), job.frames)
        self._parts = self._in_parts()
        self._left: Left | None = None
        self._noted: bool | None = False
        """Whether the first record is written; None where nobody knows."""
        self._parting = False
        """Whether the sandbox ends by itself, behind the answer."""
        self._found = Findings(queued_ms=self._elapsed_ms())

    async def run(self) -> RunRecord:
        """Returns the finished record.

        Raises ProtectionMissing and Busy when the backend turned the run away; the record then says so. A run that
        outlives its server raises LeftBehind, and so does :meth:`resume`.
        """
        self._tools.active[self._run_id] = self._active
        final = await self._to_its_end(self._begin)
        if self._job.wish is not None:
            self._tools.ahead.fulfil(self._job.wish, self._loan.spec)
        return final

    async def resume(self) -> RunRecord:
        """Returns the finished record of a run that an earlier server started. Raises NeverStarted, LeftBehind."""
        assert self._ledger is not None, "it outlives its server"
        found, record = self._found, self._record
        self._target = replace(self._target, again=True)
        sink = BlobSink(self._target, record.output_blobs)
        self._channel = Channel(sink, self._job.frames, record.offsets.channel)
        self._parts = self._in_parts()
        found.started_at, found.queued_ms = record.started_at, record.usage.get("queued_ms", 0.0)
        found.created_ms = ((record.started_at or record.created_at) - record.created_at) * 1000
        return await self._to_its_end(self._rejoin)

    async def _to_its_end(self, steps: Callable[[], Awaitable[RunRecord]]) -> RunRecord:
        tools = self._tools
        try:
            self._final = await steps()
            return await self._close(self._final)
        except (LeftBehind, NeverStarted):
            await self._leave()
            raise
        except asyncio.CancelledError:
            if self._ledger is None:
                await tools.tasks.shielded(self._abandon(), f"abandon {self._run_id}")
            else:
                await self._leave()
            raise
        except BaseException as error:
            await tools.tasks.shielded(self._fail(error), f"fail {self._run_id}")
            raise

    async def _begin(self) -> RunRecord:
        if self._loan.network is not None:
            self._record = replace(self._record, network=await self._loan.begin())
        if self._ledger is not None:
            self._record = await self._ledger.begin(self._record)
        elif not self._loan.is_launching:
            await self._note(self._record)
        return await self._conclude(await self._attempt(self._work))

    async def _rejoin(self) -> RunRecord:
        """Returns the last record of a program that an earlier server started.

        That server may have concluded already: then nothing is left to do but to destroy the sandbox.
        """
        if self._record.outcome is None:
            return await self._conclude(await self._attempt(self._work_on))
        with suppress(SandboxGone):
            await self._attached()
        status = RunStatus.COMPLETED if self._record.error is None else RunStatus.FAILED
        return replace(self._record, status=status)

    async def _leave(self) -> None:
        """Leaves the run at work: another server, or a later sweep, attaches to it."""
        self._loan.let_go()
        await self._channel.sink.abort()
        if self._left is not None:
            await self._left.sink.abort()

    async def _attempt(self, work: Callable[[], Awaitable[Failure | None]]) -> Failure | None:
        """Run the program in a sandbox of its own; why it failed, if it did."""
        try:  # the deadline is the backend's to keep: this is for one that no longer answers
            async with asyncio.timeout(self._remaining_s() + PATIENCE_S):
                return await work()
        except _CancelledEarly as early:
            return cancelled(str(early))
        except (ProtectionMissing, Busy):
            raise
        except TimeoutError as error:
            self._tools.emit(Fault("sandbox", error, self._run_id))
            return Failure("SandboxLost", "the sandbox no longer answers", Outcome.LOST)
        except SandboxGone as error:
            if self._ledger is not None:
                await self._kept.check_gone(error)
            return Failure("SandboxLost", error.message, Outcome.LOST)
        except SkillyardError as error:
            self._tools.emit(Fault("sandbox", error, self._run_id))
            return Failure("SandboxError", error.message)

    async def _work(self) -> Failure | None:
        # The record of a run with a ledger says where its sandbox is before the program starts.
        if self._ledger is None and not self._loan.is_launching:
            self._loan.launch(self._first(self._job.guest))
        sandbox, guest = await self._loan.open(self._job.guest)
        if self._ledger is None and self._noted is False and not self._loan.launched_over:
            await self._note(self._record)
        if image := self._loan.image:
            self._record = replace(self._record, digests={**self._record.digests, "image": image})
        if self._active.cancel_reason is not None and self._loan.launched is None:
            raise _CancelledEarly(self._active.cancel_reason)
        return await self._follow(sandbox, await self._start(sandbox, guest))

    async def _work_on(self) -> Failure | None:
        """Goes on with an earlier server's program, and with its output where that one noted."""
        sandbox = await self._attached()
        process = await self._kept.process(sandbox)
        self._active.begin(process, sandbox)
        if self._active.cancel_reason is not None:
            await process.kill(self._active.cancel_reason)
        return await self._follow(sandbox, process)

    @property
    def _kept(self) -> KeptSandbox:
        return KeptSandbox(self._loan, self._run_id)

    async def _attached(self) -> Sandbox:
        self._active.network = None  # nobody may ask it before it is resumed
        sandbox = await self._kept.attach()
        if self._loan.network is not None and self._loan.network.resumed:
            self._active.network = self._loan.network
        return sandbox

    async def _follow(self, sandbox: Sandbox, process: Process) -> Failure | None:
        broken, ending = await self._to_its_ending(process)
        self._found.usage = ending.usage
        self._parting = ending.parting and self._ledger is None and self._loan.may_part
        self._found.log = await self._log(process)
        leaves = ending.outcome in _LEAVES and self._loan.interpreter is None
        if broken is None and self._channel.final is None and leaves:
            prefix = self._target.named("left") or self._tools.ids.blob()
            self._left = Left(self._job.frames, self._target, prefix, self._job.command)
            await self._left.collect(sandbox, process.id)
        return broken or self._judge(ending)

    async def _to_its_ending(self, process: Process) -> tuple[Failure | None, Ending]:
        """Takes the output of a process until it has ended; the log only of a detached run."""
        taking = None
        if self._parts is not None and not self._job.withheld:
            taking = self._tools.tasks.spawn(self._parts.take(process), f"log of {self._run_id}")
        try:
            broken = await self._listen(process)
            ending = self._loan.own(await process.wait()) if self._loan.session else await process.wait()
            if ending.cut_off and self._ledger is not None:
                await self._kept.check_gone()
            if taking is not None and self._parts is not None:
                self._parts.end()
                await taking
            return broken, ending
        finally:
            if taking is not None:
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)

    async def _start(self, sandbox: Sandbox, guest: Mapping[str, Any]) -> Process:
        tools, job, found = self._tools, self._job, self._found
        ago_s = self._loan.launched_ago_s
        found.created_ms = self._elapsed_ms() - ago_s * 1000
        found.started_at = tools.clock.now() - ago_s
        if self._ledger is not None:
            self._record = await self._ledger.running(self._standing(sandbox))
        first = self._loan.launched or self._first(guest)
        process = await sandbox.start(first.program, id=first.id, timeout_ms=first.timeout_ms, streams=first.streams)
        self._active.begin(process, sandbox)
        if self._loan.keeps:
            await self._loan.hand_back()
        record = job.record
        by = record.kind, record.principal, record.skill
        tools.emit(RunStarted(self._run_id, *by, queued_ms=found.queued_ms, created_ms=found.created_ms))
        if self._active.cancel_reason is not None:
            await process.kill(self._active.cancel_reason)
        return process

    def _first(self, guest: Mapping[str, Any]) -> Start:
        at_cap = AtCap.END if self._ledger is None else self._job.at_cap
        timeout_ms = self._job.limits.timeout_ms
        return self._tools.start(self._run_id, guest, timeout_ms, kept=self._loan.keeps, at_cap=at_cap)

    def _standing(self, sandbox: Sandbox) -> RunRecord:
        """Returns the record of a run whose program is about to start in ``sandbox``."""
        found = self._found
        return replace(
            self._record,
            sandbox=sandbox.handle,
            program=self._run_id,
            started_at=found.started_at,
            deadline=self._tools.clock.boottime() + self._job.limits.timeout_ms / 1000,
            enforced=self._loan.enforced,
            guarantees=self._loan.guarantees,
            usage={"queued_ms": round(found.queued_ms, 3)},
        )

    async def _listen(self, process: Process) -> Failure | None:
        """Take what comes on the channel until its end; a run that breaks its rules is ended."""
        try:
            async for data in process.output(Stream.CHANNEL, self._channel.offset):
                await self._channel.feed(data)
                if self._ledger is not None:
                    await self._channel.note(self._ledger.took)
        except Broken as broken:
            await process.kill(broken.failure.message)
            return broken.failure
        return None

    def _judge(self, ending: Ending) -> Failure | None:
        if ending.outcome is Outcome.CANCELLED:
            return cancelled(self._active.cancel_reason or ending.reason)
        if ending.outcome is Outcome.EXIT and self._channel.final is not None:
            if isinstance(self._channel.final, Result):
                return None if self._job.command is None else judged(self._channel.final, ending, self._job.limits)
            failure = raised(self._channel.final, self._job.redaction, ending.hits, self._job.limits)
            tools, skill = self._tools, self._record.skill is not None
            return lacking(failure, tools.environments, tools.packages, skill=skill)
        if self._job.command is not None:
            return cut_short(ending, self._job.limits)
        stack = self._job.redaction.text(self._left.notes.stack) if self._left else ""
        return with_stack(ended_by(ending, self._job.limits), stack)

    async def _log(self, process: Process | None) -> Log:
        if self._job.withheld:
            return Log(problem=self._job.withheld)
        if self._parts is not None:
            return await self._parts.keep(process)
        assert process is not None, "it was started"
        return await keep_log(process.output(Stream.STDOUT), self._logs, self._target)

    async def _conclude(self, failure: Failure | None) -> RunRecord:
        sink, found = self._channel.sink, self._found
        if sink.unfinished:
            await sink.abort()
        if found.log is NO_LOG and self._parts is not None and self._parts.begun:
            found.log = await self._log(None)
        found.ended_ms = self._elapsed_ms()
        found.ended_at = self._tools.clock.now()
        found.enforced = self._loan.enforced or self._record.enforced
        found.guarantees = self._loan.guarantees or self._record.guarantees
        found.said, found.blobs = self._channel.final, tuple(sink.ids)
        found.files, found.notes = tuple(sink.files), self._channel.notes
        if self._left is not None:
            await self._left.sink.abort()
            found.blobs += tuple(self._left.sink.ids)
            found.files += tuple(self._left.sink.files)
            found.notes = self._left.notes
        tools, job = self._tools, self._job
        made = FinalRecord(self._record, job.redaction, self._target, job.outputs, tools.schemas, spill=tools.spill)
        final = made.withheld(found, failure, job.withheld) if job.withheld else await made.of(found, failure)
        if job.command is not None:
            final = concluded(final, job.command, found, job.redaction, withheld=bool(job.withheld))
        if self._ledger is not None:
            if self._active.network is not None:
                final = replace(final, network=await self._active.network.so_far())
            await self._ledger.conclude(final)
        return final

    async def _close(self, final: RunRecord) -> RunRecord:
        """No process, mount or file is left; then the record says so. Can be repeated.

        Of a sandbox that is parting the kernel takes down the rest meanwhile, and the record is told when it is gone.
        """
        tools, ledger = self._tools, self._ledger
        seen = None if self._parting else await self._loan.end()
        if self._loan.interpreter is not None:
            final = replace(final, interpreter=self._loan.interpreter)
        if seen is not None:
            final = with_network(final, seen)
        elif final.status is RunStatus.FAILED and final.network is None:
            final = without_network(final, self._job.why_offline())
        if self._parts is not None:
            await self._parts.discard()
        if ledger is not None and await ledger.again(final, tools.ids.blob, self._loan.may_repeat):
            self._active.starts_again()
            return final
        try:
            moved = await (self._finish(final) if ledger is None else ledger.finish(final))
        finally:  # a record that could not be written is settled by a sweep; nobody waits for it until then
            tools.active.forget(self._active)
        if self._parting:
            self._loan.part(self._is_gone)
        if moved:
            if final.network is not None:
                tools.emit(used(final))
            elapsed_ms = (tools.clock.monotonic() - self._job.taken_at) * 1000
            tools.emit(RunEnded(final, elapsed_ms, len(tools.active)))
        return final

    async def _note(self, record: RunRecord) -> None:
        self._noted = None  # until it is stored: it may be, where this is cancelled
        await self._tools.records.insert(record)
        self._noted = True

    async def _finish(self, final: RunRecord) -> bool:
        """Writes the last record; returns False when the run had one."""
        records = self._tools.records
        if self._noted is not False and await records.finish(final):
            return True
        unsure = self._noted is None and self._loan.is_launching
        if self._noted is not False and not (unsure and await records.get(self._run_id) is None):
            return False
        await self._note(final)
        return True

    async def _is_gone(self) -> None:
        await self._tools.records.note_gone(self._run_id, round(self._elapsed_ms() - self._found.ended_ms, 3))

    async def _abandon(self) -> None:
        """The caller went away: end the tree, keep what there is, confirm, record."""
        if self._active.cancel_reason is None:
            self._active.cancel_reason = CALLER_GONE
        await self._end_early(cancelled(self._active.cancel_reason))

    async def _fail(self, error: BaseException) -> None:
        """The run was turned away, or our own machinery failed."""
        if not isinstance(error, ProtectionMissing | Busy | IdempotencyConflict):
            self._tools.emit(Fault("run", error, self._run_id))
        internal = ("SandboxError", "an internal fault ended the run")
        told = (error.type, error.message) if isinstance(error, SkillyardError) else internal
        await self._end_early(Failure(*told))

    async def _end_early(self, failure: Failure) -> None:
        self._parting = False  # who ends a run waits until nothing of it is left
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
        self._found.usage = self._loan.own(await process.wait()).usage
        await self._channel.replay()  # listening was interrupted, perhaps within a frame
        await self._listen(process)
        if self._found.log is NO_LOG:
            self._found.log = await self._log(process)

    def _in_parts(self) -> LogInParts | None:
        """Returns None for a run that dies with its server: its log is read last."""
        if self._ledger is None:
            return None
        if (command := self._job.command) is not None:
            tell = Silence(self._tools.tasks, self._ledger.tell, command.quiet_after_s)
            self._active.live = Live(self._tools.clock.now, tell)
        taken, longer_s = self._record.offsets.log, self._job.limits.timeout_ms / 1000
        ring = self._tools.log_bytes if self._job.at_cap is AtCap.RING else None
        patience = Patience(self._active.log_stalls)
        return LogInParts(
            self._logs, self._target, taken, self._ledger.took, longer_s, patience, self._active.live, ring
        )

    def _remaining_s(self) -> float:
        if self._record.deadline is None:
            return self._job.limits.timeout_ms / 1000
        return max(0.0, self._record.deadline - self._tools.clock.boottime())

    def _elapsed_ms(self) -> float:
        return (self._tools.clock.monotonic() - self._job.taken_at) * 1000


class _CancelledEarly(Exception):
    """Somebody cancelled the run before its program was started; the argument is the reason."""
