"""One admitted run: ``create -> mount -> execute -> collect -> destroy -> record`` (design §6).

The record is written before the sandbox exists, and moved to its end when the sandbox is gone. Everything
happens in the caller's own task; when that is cancelled, a task of the engine's ends the tree, keeps the
output so far, destroys the sandbox and writes the record, whatever happens to the caller.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import Busy, ProtectionMissing, SandboxGone, SkillyardError
from skillyard.domain.frames import Result
from skillyard.domain.outcome import Ending, Outcome, Usage
from skillyard.domain.run import RunRecord, RunStatus
from skillyard.domain.sandbox import Guest, Stream, StreamLimits
from skillyard.engine.active import ActiveRun
from skillyard.engine.channel import Channel, value_of
from skillyard.engine.collect import NO_LOG, BlobSink, BlobTarget, Broken, Log, keep_log
from skillyard.engine.conclude import ended_by, raised
from skillyard.engine.failure import Failure, cancelled
from skillyard.engine.grant import Grant
from skillyard.engine.observer import Fault, RunEnded, RunStarted
from skillyard.engine.output import Output, Unfit, completed_summary, fit_output
from skillyard.engine.plan import Plan
from skillyard.ports.sandbox import Process, Sandbox

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

CALLER_GONE = "its caller went away"


@dataclass(slots=True)
class _Times:
    """Milliseconds since the request was taken."""

    queued: float = 0.0
    created: float = 0.0


class Execution:
    """Drives one run. :meth:`run` is awaited once."""

    def __init__(self, engine: Engine, plan: Plan, grant: Grant, facts: dict[str, Any]) -> None:
        self._engine = engine
        self._plan = plan
        self._grant = grant
        self._facts = facts
        self._final: RunRecord | None = None
        self._active = ActiveRun(plan.run_id, plan.principal.name, grant.redaction.stream)
        self._target = _target(engine, plan, grant)
        self._channel = Channel(BlobSink(self._target), grant.limits)
        self._sandbox: Sandbox | None = None
        self._creating = False
        self._times = _Times(queued=self._elapsed_ms())
        self._started_at: float | None = None

    async def run(self) -> RunRecord:
        """The finished record.

        Raises ProtectionMissing and Busy when the backend turned the run away; the record then says so.
        """
        self._engine.active[self._plan.run_id] = self._active
        try:
            await self._engine.records.insert(RunRecord(status=RunStatus.RUNNING, **self._facts))
            return await self._to_the_end()
        except asyncio.CancelledError:
            await self._engine.tasks.shielded(self._abandon(), f"abandon {self._plan.run_id}")
            raise
        except BaseException as error:
            await self._engine.tasks.shielded(self._fail(error), f"fail {self._plan.run_id}")
            raise

    async def _to_the_end(self) -> RunRecord:
        failure: Failure | None
        ending, log = Ending(Outcome.LOST), NO_LOG
        try:
            ending, failure = await self._work()
            assert self._active.process is not None
            log = await self._log(self._active.process)
        except _CancelledEarly as early:
            failure = cancelled(early.reason)
        except (ProtectionMissing, Busy):
            raise
        except SandboxGone as error:
            failure = Failure("SandboxLost", error.message, Outcome.LOST)
        except SkillyardError as error:
            self._engine.emit(Fault("sandbox", error, self._plan.run_id))
            failure = Failure("SandboxError", error.message)
        await self._channel.sink.abort()
        self._final = await self._conclude(failure, ending.usage, log)
        return await self._close(self._final)

    async def _work(self) -> tuple[Ending, Failure | None]:
        """Make the sandbox, run the program to its end, and say why it failed, if it did."""
        sandbox = await self._create()
        process = await self._start(sandbox)
        broken = await self._listen(process)
        ending = await process.wait()
        return ending, broken or self._judge(ending)

    async def _create(self) -> Sandbox:
        self._creating = True
        self._sandbox = sandbox = await self._engine.backend.create(self._grant.spec, self._plan.run_id)
        self._creating = False
        self._times.created = self._elapsed_ms()
        self._engine.check_walls(sandbox.enforced)
        if self._active.cancel_reason is not None:
            raise _CancelledEarly(self._active.cancel_reason)
        return sandbox

    async def _start(self, sandbox: Sandbox) -> Process:
        config, plan = self._engine.config, self._plan
        self._started_at = self._engine.clock.now()
        self._active.process = process = await sandbox.start(
            Guest(self._grant.guest),
            id=plan.run_id,
            timeout_ms=plan.limits.timeout_ms,
            streams=StreamLimits(config.log_bytes, config.run_blob_bytes),
        )
        self._engine.emit(
            RunStarted(
                run_id=plan.run_id,
                kind=plan.request.kind,
                principal=plan.principal.name,
                skill=self._facts["skill"],
                queued_ms=self._times.queued,
                created_ms=self._times.created,
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

    async def _listen_again(self, process: Process) -> None:
        """Listening was interrupted, perhaps within a frame: take the blobs that are complete by now."""
        await self._channel.replay()
        await self._listen(process)

    def _judge(self, ending: Ending) -> Failure | None:
        if ending.outcome is Outcome.CANCELLED:
            return cancelled(self._active.cancel_reason or ending.reason)
        if ending.outcome is Outcome.EXIT:
            if isinstance(self._channel.final, Result):
                return None
            if self._channel.final is not None:
                return raised(self._channel.final, ending.hits)
        return ended_by(ending, self._plan.limits)

    async def _log(self, process: Process) -> Log:
        return await keep_log(process.output(Stream.STDOUT), self._grant.redaction, self._target)

    async def _conclude(self, failure: Failure | None, usage: Usage, log: Log) -> RunRecord:
        """The final record: of a completed run when its output fits the rules, of a failed one else."""
        if failure is None:
            try:
                return await self._completed(usage, log)
            except Unfit as unfit:
                failure = unfit.failure
        return self._failed(failure, usage, log)

    async def _completed(self, usage: Usage, log: Log) -> RunRecord:
        engine, redaction = self._engine, self._grant.redaction
        result = self._channel.final
        assert isinstance(result, Result)
        value = value_of(result)
        await self._check_output(value, len(result.raw))
        output = await fit_output(value, redaction, self._target, spill=engine.config.oversize_output == "spill")
        common = self._common(usage, log, output)
        summary = completed_summary(value, output, common["usage"]["wall_ms"], redaction)
        return RunRecord(
            status=RunStatus.COMPLETED,
            outcome=Outcome.EXIT,
            summary=summary,
            output=output.value,
            **self._facts,
            **common,
        )

    async def _check_output(self, value: dict[str, Any], size: int) -> None:
        skill = self._plan.skill
        if skill is None or skill.outputs_schema is None:
            return
        complaint = await self._engine.schemas.complaint(
            (skill.digest, "out"), skill.outputs_schema, value, "output", size
        )
        if complaint:
            raise Unfit(Failure("ValidationError", complaint, Outcome.EXIT))

    def _failed(self, failure: Failure, usage: Usage, log: Log) -> RunRecord:
        failure = failure.redacted(self._grant.redaction)
        common = self._common(usage, log, None)
        reason = "; ".join(filter(None, (failure.message, common.pop("reason"))))
        return RunRecord(
            status=RunStatus.FAILED,
            outcome=failure.outcome,
            reason=reason[:1000],
            summary=failure.summary(),
            error=failure.as_dict(),
            **self._facts,
            **common,
        )

    def _common(self, usage: Usage, log: Log, output: Output | None) -> dict[str, Any]:
        spilled = (output.blob,) if output and output.blob else ()
        return {
            "started_at": self._started_at,
            "ended_at": self._engine.clock.now(),
            "enforced": dict(self._sandbox.enforced) if self._sandbox else {},
            "usage": self._usage(usage),
            "output_blobs": (*self._channel.sink.ids, *spilled),
            "logs_preview": log.preview,
            "logs_blob": log.blob,
            "reason": log.problem,
        }

    def _usage(self, usage: Usage) -> dict[str, Any]:
        """As the kernel counted; wall and start-up time by our clock where the backend gives none."""
        times = self._times
        wall, startup = usage.wall_ms, usage.startup_ms
        return {
            "cpu_ms": usage.cpu_ms,
            "peak_memory_bytes": usage.peak_memory_bytes,
            "wall_ms": round(self._elapsed_ms() - times.created if wall is None else wall, 3),
            "startup_ms": round(times.created - times.queued if startup is None else startup, 3),
            "queued_ms": round(times.queued, 3),
            "source": usage.source,
        }

    async def _close(self, final: RunRecord) -> RunRecord:
        """No process, mount or file is left; then the record says so. Can be repeated."""
        engine = self._engine
        if self._sandbox is not None:
            try:
                await engine.backend.destroy(self._sandbox.handle)
            except SkillyardError as error:  # the sweep will find it
                engine.emit(Fault("destroy", error, self._plan.run_id))
        moved = await engine.records.finish(final)
        engine.forget(self._active)
        if moved:
            engine.emit(RunEnded(final, self._elapsed_ms(), len(engine.active)))
        return final

    async def _abandon(self) -> None:
        """The caller went away: end the tree, keep what there is, confirm, record."""
        if self._final is None:
            if self._active.cancel_reason is None:
                self._active.cancel_reason = CALLER_GONE
            self._final = await self._end_early(cancelled(self._active.cancel_reason))
        await self._close(self._final)

    async def _fail(self, error: BaseException) -> None:
        """The backend turned the run away, or our own machinery failed."""
        turned_away = isinstance(error, ProtectionMissing | Busy)
        if not turned_away:
            self._engine.emit(Fault("run", error, self._plan.run_id))
        if self._final is None:
            message = str(error) if turned_away else "an internal fault ended the run"
            kind = type(error).__name__ if turned_away else "SandboxError"
            self._final = await self._end_early(Failure(kind, message))
        await self._close(self._final)

    async def _end_early(self, failure: Failure) -> RunRecord:
        usage, log = Usage(), NO_LOG
        with suppress(SkillyardError):
            await self._find_sandbox()
            if self._active.process is not None:
                process = self._active.process
                await process.kill(failure.message)
                usage = (await process.wait()).usage
                await self._listen_again(process)
                log = await self._log(process)
        await self._channel.sink.abort()
        return self._failed(failure, usage, log)

    async def _find_sandbox(self) -> None:
        """A create that was interrupted may have happened: creating again gives the same sandbox."""
        if self._creating and self._sandbox is None:
            self._sandbox = await self._engine.backend.create(self._grant.spec, self._plan.run_id)

    def _elapsed_ms(self) -> float:
        return (self._engine.clock.monotonic() - self._plan.taken_at) * 1000


class _CancelledEarly(Exception):
    """Somebody cancelled the run before its program was started."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _target(engine: Engine, plan: Plan, grant: Grant) -> BlobTarget:
    config = engine.config
    return BlobTarget(
        store=engine.blobs,
        tasks=engine.tasks,
        owner=plan.principal.name,
        run_id=plan.run_id,
        prefix=grant.blob_prefix,
        ttl_s=config.blob_ttl_s,
    )
