"""The last record of a run, from what was found out about it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from skillyard.domain.sandbox.frames import Failure as Raised
from skillyard.domain.sandbox.frames import Notes, Result
from skillyard.domain.work.outcome import Outcome, Usage
from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine.runs.channel import value_of
from skillyard.engine.runs.collect import NO_LOG, BlobTarget, Log
from skillyard.engine.runs.failure import Failure
from skillyard.engine.runs.grant import Grant
from skillyard.engine.runs.notes import NO_NOTES, sentences
from skillyard.engine.runs.output import AT_ONCE, Output, Unfit, completed_summary, fit_output
from skillyard.engine.runs.plan import Plan
from skillyard.engine.skills.schemas import complaint

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine


@dataclass(slots=True)
class Findings:
    """Filled in while a run goes on. Times in milliseconds count from when the request was taken."""

    queued_ms: float = 0.0
    created_ms: float = 0.0
    ended_ms: float = 0.0
    started_at: float | None = None
    enforced: dict[str, str] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    log: Log = NO_LOG
    said: Result | Raised | None = None
    blobs: tuple[str, ...] = ()
    files: tuple[dict[str, Any], ...] = ()
    notes: Notes = NO_NOTES

    def usage_dict(self) -> dict[str, Any]:
        """As the kernel counted; wall and start-up time by our clock where the backend gives none."""
        usage = self.usage
        wall = self.ended_ms - self.created_ms if usage.wall_ms is None else usage.wall_ms
        startup = self.created_ms - self.queued_ms if usage.startup_ms is None else usage.startup_ms
        return {
            "cpu_ms": usage.cpu_ms,
            "peak_memory_bytes": usage.peak_memory_bytes,
            "wall_ms": round(wall, 3),
            "startup_ms": round(startup, 3),
            "queued_ms": round(self.queued_ms, 3),
            "source": usage.source,
        }


class FinalRecord:
    """Makes it for one run. ``facts`` are the fields that its first record had."""

    def __init__(self, engine: Engine, plan: Plan, grant: Grant, target: BlobTarget, facts: dict[str, Any]) -> None:
        self._engine = engine
        self._plan = plan
        self._redaction = grant.redaction
        self._target = target
        self._facts = facts

    async def of(self, found: Findings, failure: Failure | None) -> RunRecord:
        """Of a completed run when nothing failed and its output fits the rules, of a failed one else."""
        if failure is None:
            try:
                return await self._completed(found)
            except Unfit as unfit:
                failure = unfit.failure
        return self.failed(found, failure)

    async def _completed(self, found: Findings) -> RunRecord:
        assert isinstance(found.said, Result)
        size = len(found.said.raw)
        value = value_of(found.said) if size <= AT_ONCE else await asyncio.to_thread(value_of, found.said)
        await self._check_schema(found.said.raw)
        spill = self._engine.config.oversize_output == "spill"
        output = await fit_output(value, self._redaction, self._target, spill=spill, raw_size=size)
        common = self._common(found, output)
        summary = completed_summary(value, output, common["usage"]["wall_ms"], self._redaction, common["notes"])
        return RunRecord(
            status=RunStatus.COMPLETED,
            outcome=Outcome.EXIT,
            reason=found.log.problem,
            summary=summary,
            output=output.value,
            **self._facts,
            **common,
        )

    async def _check_schema(self, raw: bytes) -> None:
        """Checks a result against the skill's schema; it was parsed before."""
        plan, skill = self._plan, self._plan.skill
        if skill is None or skill.outputs_schema is None:
            return
        key = f"{skill.digest} out"
        verdict = await self._engine.schemas.check(plan.principal.name, key, skill.outputs_schema, raw, patient=True)
        if wrong := complaint(verdict, "output", self._redaction):
            raise Unfit(Failure("ValidationError", wrong, Outcome.EXIT))

    def failed(self, found: Findings, failure: Failure) -> RunRecord:
        return RunRecord(
            status=RunStatus.FAILED,
            outcome=failure.outcome,
            reason=failure.reason(self._redaction, found.log.problem),
            summary=failure.summary(self._redaction),
            error=failure.as_dict(self._redaction),
            **self._facts,
            **self._common(found, None),
        )

    def _common(self, found: Findings, output: Output | None) -> dict[str, Any]:
        spilled = (output.blob,) if output and output.blob else ()
        return {
            "started_at": found.started_at,
            "ended_at": self._engine.clock.now(),
            "enforced": found.enforced,
            "usage": found.usage_dict(),
            "output_blobs": (*found.blobs, *spilled),
            "files": tuple({**file, "path": self._redaction.text(file["path"])} for file in found.files),
            "notes": tuple(sentences(found.notes, self._redaction)),
            "logs_preview": found.log.preview,
            "logs_blob": found.log.blob,
        }
