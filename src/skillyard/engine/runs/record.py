"""The first and the last record of a run, and the Run object that is made of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Protocol

from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.frames import Failure as Raised
from skillyard.domain.sandbox.frames import Notes, Result, ResultFault
from skillyard.domain.work.record import ERROR_TYPES, Outcome, RunRecord, RunStatus, Usage
from skillyard.engine.network.refusals import counted
from skillyard.engine.runs.collect import BlobTarget
from skillyard.engine.runs.failure import SUMMARY_CHARACTERS, Failure, LeftBehind
from skillyard.engine.runs.log import NO_LOG, Log
from skillyard.engine.runs.plan import Plan
from skillyard.engine.secrets.redact import NOTHING, Redaction
from skillyard.engine.skills.schemas import complaint
from skillyard.engine.text import clean, ends, first
from skillyard.ports.jailed import SchemaChecker
from skillyard.values import dataclass

NO_NOTES = Notes()

WITHHELD = "OutputWithheld"
"""The type of the error of a run whose output may not be shown."""

_SHORT = ends(100, 60)

_WHY = {
    "name": "its name cannot be passed on",
    "depth": "it lies too deep",
    "kind": "it is not a regular file",
    "unread": "it could not be read",
    "count": "there are too many files",
    "entries": "there are too many files",
    "size": "it is larger than a file may be",
    "together": "the files are together larger than they may be",
}


def sentences(notes: Notes, redaction: Redaction = NOTHING) -> Iterator[str]:
    """Yields at most one sentence about each thing."""
    if notes.script:
        yield "the code ran as a script, and no function 'main' was called"
    if notes.lost:
        yield "files in /workspace/out, if there were any, are lost: the sandbox ended with the program"
    if notes.skipped:
        files = ", ".join(f"{_name(path, redaction)} ({_WHY.get(why, 'refused')})" for path, why in notes.skipped)
        yield f"not sent from /workspace/out: {files}"
    if notes.others:
        names = ", ".join(_name(name, redaction) for name in notes.others) + (", …" if notes.more else "")
        yield f"not kept: {names}; write files that are to come back to /workspace/out"


def _name(text: str, redaction: Redaction) -> str:
    """Returns a file's name to show: secrets go before the cut, behind which they are not found."""
    return "".join(c if c.isprintable() else "\ufffd" for c in redaction.cut(text, _SHORT))


MAX_OUTPUT = 4096
AT_ONCE = 64 * 1024
"""Bytes of JSON that may be read or written on the event loop."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Unfit(Exception):
    """The returned value is the run's failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Output:
    """``value`` fits; ``blob`` holds the whole value of ``size`` bytes when it did not."""

    value: dict[str, Any]
    size: int
    blob: str | None = None


async def fit_output(
    value: dict[str, Any], redaction: Redaction, target: BlobTarget, *, spill: bool, raw_size: int
) -> Output:
    """The value without secrets, or what stands for it when it is too large. Raises Unfit.

    ``raw_size`` is how long its JSON was when it came: what is long is worked on beside the event loop.
    """
    if raw_size <= AT_ONCE:
        value, data = _encoded(value, redaction)
    else:
        value, data = await asyncio.to_thread(_encoded, value, redaction)
    if len(data) <= MAX_OUTPUT:
        return Output(value, len(data))
    if not spill:
        raise Unfit(_too_large(f"the output has {len(data)} bytes of JSON, more than {MAX_OUTPUT}"))
    try:
        info = await target.create(target.named("output"), "application/json", data)
    except SkillyardError as error:
        message = f"the output of {len(data)} bytes could not be kept as a blob: {error.message}"
        raise Unfit(_too_large(message)) from error
    stand_in = {"truncated": True, "blob_id": info.blob_id, "size_bytes": len(data)}
    return Output(stand_in, len(data), info.blob_id)


def _encoded(value: dict[str, Any], redaction: Redaction) -> tuple[dict[str, Any], bytes]:
    try:
        value = value if redaction.empty else redaction.value(value)
        return value, _encode(value).encode()
    except RecursionError:
        raise not_serializable("nested too deep") from None
    except UnicodeEncodeError:
        raise not_serializable("a string holds lone surrogates") from None
    except ValueError as error:
        raise not_serializable(str(error)) from None


def value_of(result: Result) -> dict[str, Any]:
    """The object that was returned. Raises Unfit."""
    try:
        return result.value()
    except ResultFault as fault:
        raise not_serializable(str(fault)) from None


def _too_large(message: str) -> Failure:
    return Failure("OutputTooLarge", message, Outcome.OUTPUT)


def not_serializable(reason: str) -> Unfit:
    message = f"the returned value is not JSON-serializable: {reason}"
    return Unfit(Failure("OutputNotSerializable", message, Outcome.EXIT))


def completed_summary(
    value: dict[str, Any], output: Output, wall_ms: float, redaction: Redaction, notes: Iterable[str]
) -> str:
    """The function's own ``summary`` when it returned one, else a generated one (row 7)."""
    own = value.get("summary")
    if isinstance(own, str) and own.strip():
        return redaction.cut(clean(own), first(SUMMARY_CHARACTERS))
    summary = f"Completed in {wall_ms:.0f} ms"
    if output.blob is not None:
        summary += f"; the output of {output.size} bytes was stored as {output.blob}"
    return "; ".join((summary, *notes))[:SUMMARY_CHARACTERS]


_NO_USAGE = Usage()


@dataclass(slots=True)
class Findings:
    """Filled in while a run goes on. Times in milliseconds count from when the request was taken."""

    queued_ms: float = 0.0
    created_ms: float = 0.0
    ended_ms: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    enforced: dict[str, str] = field(default_factory=dict)
    guarantees: dict[str, Any] = field(default_factory=dict)
    usage: Usage = _NO_USAGE
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


def first_record(plan: Plan, environment: str, digests: dict[str, Any], needs: dict[str, Any] | None) -> RunRecord:
    """Returns the record of a run that begins. These fields do not change while it goes on."""
    request, skill, command = plan.request, plan.of, plan.request.command
    service = None if command is None else command.service
    return RunRecord(
        run_id=plan.run_id,
        kind=request.kind,
        principal=plan.principal.name,
        status=RunStatus.RUNNING,
        project=plan.principal.project,
        created_at=plan.created_at,
        skill=skill.name if skill else None,
        version=skill.version if skill else None,
        environment=environment,
        isolation=plan.offer.name,
        limits=plan.limits.as_dict(),
        digests=digests,
        needs=needs,
        idempotency_key=request.idempotency_key,
        request_digest=request.digest() if request.idempotency_key else "",
        labels=dict(request.labels),
        agent=request.agent,
        session=request.session,
        service=None if service is None else service.begun(),
        max_attempts=1 if command is None else command.max_attempts,
        callback=None if command is None else command.callback_url,
    )


class CutOff(LeftBehind):
    """The connection to the run's sandbox broke; the sandbox can be attached again at once."""


class NeverStarted(Exception):
    """The sandbox of an earlier server stands, and no program was started in it."""


class Ledger(Protocol):
    """The record of one run that outlives its server. Each step is written down before it is taken.

    Every method raises LeftBehind. ``record`` is the one that was read or written last.
    """

    record: RunRecord

    async def begin(self, record: RunRecord) -> RunRecord:
        """Notes what the run is granted, before there is a sandbox."""
        ...

    async def running(self, record: RunRecord) -> RunRecord:
        """Notes the sandbox, before the program is started in it."""
        ...

    async def took(self, taken: Callable[[RunRecord], RunRecord]) -> None:
        """Notes output that was taken for good: ``taken`` gives the record that says so."""
        ...

    async def tell(self, kind: str, data: Mapping[str, Any]) -> None:
        """Adds an event, as long as the run is driven here."""
        ...

    async def cancel(self, reason: str) -> None:
        """Notes that somebody asked the run to end."""
        ...

    async def conclude(self, final: RunRecord) -> None:
        """Notes how the run ended, before its sandbox is destroyed."""
        ...

    async def again(
        self, final: RunRecord, new_prefix: Callable[[], str], may_repeat: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Queues the run for another attempt where it may have one; returns whether it is queued.

        ``new_prefix`` makes that of its blobs. ``may_repeat`` says whether nothing of this attempt is left.
        """
        ...

    async def finish(self, final: RunRecord) -> bool:
        """Writes the last record; returns False when the run had one."""
        ...


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The schema that a result is held to. ``key`` names it for checkers that keep schemas."""

    key: str
    schema: Mapping[str, Any]


class FinalRecord:
    """Makes it for one run, whose first record is ``record``."""

    def __init__(
        self,
        record: RunRecord,
        redaction: Redaction,
        target: BlobTarget,
        outputs: OutputSchema | None,
        schemas: SchemaChecker,
        *,
        spill: bool,
    ) -> None:
        """``spill`` keeps a result that is too large as a blob."""
        self._record = record
        self._redaction = redaction
        self._target = target
        self._outputs = outputs
        self._schemas = schemas
        self._spill = spill

    async def of(self, found: Findings, failure: Failure | None) -> RunRecord:
        """Returns the record of a completed run, or of a failed one.

        A run is completed when nothing failed and its output fits the rules.
        """
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
        output = await fit_output(value, self._redaction, self._target, spill=self._spill, raw_size=size)
        common = self._common(found, output)
        summary = completed_summary(value, output, common["usage"]["wall_ms"], self._redaction, common["notes"])
        return replace(
            self._record,
            status=RunStatus.COMPLETED,
            outcome=Outcome.EXIT,
            reason=found.log.problem,
            summary=summary,
            output=output.value,
            **common,
        )

    async def _check_schema(self, raw: bytes) -> None:
        """Checks a result against the skill's schema; it was parsed before."""
        held_to = self._outputs
        if held_to is None:
            return
        verdict = await self._schemas.check(self._record.principal, held_to.key, held_to.schema, raw, patient=True)
        if wrong := complaint(verdict, "output", self._redaction):
            raise Unfit(Failure("ValidationError", wrong, Outcome.EXIT))

    def withheld(self, found: Findings, failure: Failure | None, why: str) -> RunRecord:
        """Returns the record of a run of which nothing may be shown but how it ended."""
        outcome = Outcome.EXIT if failure is None else failure.outcome
        kind = WITHHELD if outcome in (None, Outcome.EXIT) else ERROR_TYPES[outcome]
        bare = replace(found, files=(), notes=NO_NOTES)
        return replace(self._record, **_failed(Failure(kind, why, outcome)), **self._common(bare, None))

    def failed(self, found: Findings, failure: Failure) -> RunRecord:
        return replace(
            self._record, **_failed(failure, self._redaction, found.log.problem), **self._common(found, None)
        )

    def _common(self, found: Findings, output: Output | None) -> dict[str, Any]:
        spilled = (output.blob,) if output and output.blob else ()
        return {
            "started_at": found.started_at,
            "ended_at": found.ended_at,
            "enforced": found.enforced,
            "guarantees": found.guarantees,
            "usage": found.usage_dict(),
            "output_blobs": (*found.blobs, *spilled),
            "files": tuple({**file, "path": self._redaction.text(file["path"])} for file in found.files),
            "notes": tuple(sentences(found.notes, self._redaction)),
            "logs_preview": found.log.preview,
            "logs_blob": found.log.blob,
        }


def ended(record: RunRecord, failure: Failure, now: float) -> RunRecord:
    """Returns the record of a run that failed without having been executed to its end."""
    return replace(record, ended_at=now, **_failed(failure))


def _failed(failure: Failure, redaction: Redaction = NOTHING, also: str = "") -> dict[str, Any]:
    return {
        "status": RunStatus.FAILED,
        "outcome": failure.outcome,
        "reason": failure.reason(redaction, also),
        "summary": failure.summary(redaction),
        "error": failure.as_dict(redaction),
    }


_BRIEF = ("run_id", "status", "outcome", "summary", "output", "error", "logs_preview", "output_blobs", "files",
          "interpreter")  # fmt: skip


def in_detail(run: dict[str, Any], detail: str) -> dict[str, Any]:
    """Returns a run object or a record's view, or what a model needs of it."""
    if detail != "brief":
        return run
    return {name: run[name] for name in _BRIEF if run.get(name) not in (None, "", [], ())}


def run_object(record: RunRecord) -> dict[str, Any]:
    """Returns what ``execute_skill`` and ``run_code`` answer. Fields behind ``error`` are additive."""
    if record.status in _SO_FAR:
        record = record.seen()
    run: dict[str, Any] = {
        "status": record.status.value,
        "run_id": record.run_id,
        "summary": _SO_FAR.get(record.status, record.summary),
        "output_blobs": list(record.output_blobs),
        "files": list(record.files),
        "logs_preview": record.logs_preview,
    }
    if record.notes:
        run["notes"] = list(record.notes)
    if record.status is RunStatus.COMPLETED:
        run["output"] = record.output
    if record.error is not None:
        run["error"] = record.error
    if record.logs_blob is not None:
        run["logs_blob"] = record.logs_blob
    if record.skill is not None:
        run["skill"] = record.skill
        run["version"] = record.version
    run["environment"] = record.environment
    if record.isolation:
        run["isolation"] = record.isolation
    if record.interpreter is not None:
        run["interpreter"] = record.interpreter
    if record.outcome is not None:
        run["outcome"] = record.outcome.value
    if record.network is not None:
        run["network"] = counted(record.network)
    if record.needs is not None and record.needs["least"]:
        run["least"] = record.needs["least"]
    run["usage"] = record.usage
    run["limits"] = record.limits
    run["enforced"] = record.enforced
    if record.labels:
        run["labels"] = record.labels
    return run


_SO_FAR = {
    RunStatus.QUEUED: "the run waits for its turn",
    RunStatus.STARTING: "the sandbox of the run is being made",
    RunStatus.RUNNING: "the run is going on",
}
