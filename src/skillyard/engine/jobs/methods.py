"""The tools ``skills.*`` that start, show, watch and cancel jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import JobNotFound, StoreFault
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.job import PENDING, SKIPPED, JobState
from skillyard.engine.commands import methods as commands
from skillyard.engine.commands.methods import ARTIFACT, COMMAND_PARAMS, INPUT, MAX_ATTEMPTS, OUTPUT_ERROR
from skillyard.engine.commands.tails import MOST_TAIL
from skillyard.engine.commands.tasks import TAIL_BYTES, WATCH_S
from skillyard.engine.jobs.service import JobService, line
from skillyard.engine.method import (
    AGENT,
    BOOLEAN,
    CURSOR,
    INTEGER,
    NUMBER,
    STRING,
    Handler,
    Method,
    Schema,
    answer,
    continuing,
    described,
    list_of,
    obj,
)
from skillyard.engine.shapes import NEXT_CURSOR, NUMBER_OR_NULL, TEXT_OR_NULL, or_null, shape

Params = Mapping[str, Any]
MOST_STEPS = 64
MOST_WATCH_S = 3600
_JOB_ID: Schema = {"type": "string", "pattern": r"^job_[A-Za-z0-9]{1,64}$", "description": "of skills.start_job"}
_STATUS: Schema = {
    "type": "string",
    "enum": [state.value for state in JobState],
    "description": "the last three are final",
}
_REASON = described(
    STRING, "why it did not succeed: 'step_failed', 'job_timeout', 'session_ended' or 'cancelled'; empty else"
)
_TAIL: Schema = {
    "type": "integer",
    "minimum": 0,
    "maximum": MOST_TAIL,
    "default": TAIL_BYTES,
    "description": "bytes of the end of stdout, and of stderr, of each step",
}
_STEP_INPUT = obj(
    {
        **INPUT["properties"],
        "artifact_id": {
            "type": "string",
            "pattern": r"^(blob:[A-Za-z0-9._-]{1,128}|step:[^/]{1,128}/.{1,512})$",
            "description": "a blob id, or 'step:NAME/FILENAME' for an artifact of an earlier step",
        },
    },
    *INPUT["required"],
)
_STEP = obj(
    {
        "name": {
            "type": "string",
            "pattern": r"^[^/\x00-\x1f]{1,128}$",
            "description": "by which later steps name its artifacts; step-1 and so on when left out",
        },
        "command": COMMAND_PARAMS["command"],
        "timeout_sec": described(
            COMMAND_PARAMS["timeout_sec"],
            "of this step; commands.task_timeout_s when left out, commands.max_task_timeout_s at most",
        ),
        "max_attempts": MAX_ATTEMPTS,
        "env": described(COMMAND_PARAMS["env"], "laid over that of the job"),
        "workdir": {"type": "string", "minLength": 1, "maxLength": 512, "description": "that of the job when left out"},
        "language": {"type": "string", "maxLength": 64, "description": "that of the job when left out"},
        "inputs": {**COMMAND_PARAMS["inputs"], "items": _STEP_INPUT},
        "outputs": COMMAND_PARAMS["outputs"],
    },
    "command",
)
_OF_COMMANDS = (
    "skill_name", "workdir", "env", "session_id", "version", "language", "network", "limits", "isolation",
    "image", "idempotency_key", "agent",
)  # fmt: skip

STEP = shape(
    "JobStep",
    "a step of a job, which is a task",
    {
        "name": STRING,
        "status": described(STRING, f"'{PENDING}' before its turn, '{SKIPPED}' without one, else that of its task"),
        "reason": described(STRING, "the outcome of its task: 'exit', 'timeout', 'lost' and so on; empty before"),
        "task_id": described(TEXT_OR_NULL, "for skills.task_logs; null before its turn"),
        "exit_code": described(or_null(INTEGER), "null before its end; -1 when it did not come to its own end"),
        "stdout_tail": STRING,
        "stderr_tail": STRING,
        "stdout_truncated": BOOLEAN,
        "stderr_truncated": BOOLEAN,
        "created_artifacts": list_of(ARTIFACT, "the files that its outputs named"),
        "output_errors": list_of(OUTPUT_ERROR, "those that are not there, or could not be kept"),
        "error_message": STRING,
        "attempt": described(INTEGER, "the number of its task's attempt; 1 for the first"),
        "provider": described(STRING, "the isolation that it runs behind"),
        "started_at": NUMBER_OR_NULL,
        "finished_at": NUMBER_OR_NULL,
    },
)
_LINE: dict[str, Schema] = {
    "job_id": STRING,
    "status": _STATUS,
    "reason": _REASON,
    "skill_name": STRING,
    "session_id": STRING,
    "agent": STRING,
    "created_at": NUMBER,
    "started_at": NUMBER_OR_NULL,
    "finished_at": NUMBER_OR_NULL,
}
_JOB: dict[str, Schema] = {
    **_LINE,
    "current_step_index": described(INTEGER, "the step at work, or the last one; -1 before the first"),
    "steps": list_of(STEP, "in their order"),
    "error_message": described(STRING, "why it did not succeed; empty else"),
    "version": described(STRING, "of the skill, for all steps"),
    "max_wall_time_sec": NUMBER,
}


async def start_job(service: JobService, principal: Principal, params: Params) -> dict[str, Any]:
    job = await service.start(principal, params)
    return {**line(job), "version": job.version, "max_wall_time_sec": job.max_wall_s}


async def job_status(service: JobService, principal: Principal, params: Params) -> dict[str, Any]:
    job = await service.owned(principal, params["job_id"], params.get("agent"))
    return await service.told(job, params["tail_bytes"])


async def job_watch(service: JobService, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.watch(principal, params)


async def job_cancel(service: JobService, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.cancel(principal, params)


async def jobs(service: JobService, principal: Principal, params: Params) -> dict[str, Any]:
    limit, cursor = params["limit"], params["cursor"]
    with continuing(cursor):
        found = await service.list(principal, params.get("agent"), limit=limit + 1, after=cursor)
    page = found[:limit]
    return {
        "jobs": [line(job) for job in page],
        "next_cursor": page[-1].job_id if len(found) > limit else None,
    }


def _row(
    name: str,
    doc: str,
    params: Schema,
    example: Mapping[str, Any],
    result: Schema,
    handler: Handler[JobService],
    **more: Any,
) -> Method[JobService]:
    return Method(
        name=name,
        doc=doc,
        params=params,
        example=example,
        result=result,
        scope=Scope.RUN_CODE,
        service=JobService,
        handler=handler,
        **{"errors": (JobNotFound,), "repeatable": True, **more},
    )


TABLE = (
    _row(
        "skills.start_job",
        "Start a job: commands in one skill and one session, one after the other, each a task. It outlives the server.",
        obj(
            {
                **{name: COMMAND_PARAMS[name] for name in _OF_COMMANDS},
                "steps": list_of(_STEP, "in their order; one that fails ends the job", maxItems=MOST_STEPS),
                "max_wall_time_sec": described(
                    NUMBER,
                    "for all steps together, seconds; commands.job_time_s when left out, commands.max_job_time_s at"
                    " most",
                    minimum=0.001,
                ),
                "max_concurrency": described(INTEGER, "1: the steps work one after the other", default=1),
            },
            "skill_name",
            "session_id",
            "steps",
        ),
        {
            "skill_name": "examples.csv.summarize",
            "session_id": "work",
            "steps": [
                {"name": "count", "command": "seq 3 > lines.txt", "outputs": [{"path": "lines.txt"}]},
                {"command": "wc -l < lines.txt; wc -l < again.txt",
                 "inputs": [{"artifact_id": "step:count/lines.txt", "mount_path": "again.txt"}]},
            ],
        },
        answer({**_LINE, "version": _JOB["version"], "max_wall_time_sec": NUMBER}),
        start_job,
        repeatable=False,
        runs=True,
        errors=commands.ERRORS,
    ),
    _row(
        "skills.job_status",
        "How far a job is, with the state and the end of the output of each step.",
        obj({"job_id": _JOB_ID, "tail_bytes": _TAIL, "agent": AGENT}, "job_id"),
        {"job_id": "job_JOB"},
        answer(_JOB),
        job_status,
    ),
    _row(
        "skills.job_watch",
        "Wait until a job has ended, and answer how; or how far it is when timeout_sec is over.",
        obj(
            {
                "job_id": _JOB_ID,
                "tail_bytes": _TAIL,
                "timeout_sec": described(
                    NUMBER, f"how long to wait, seconds; {WATCH_S:g} when left out", minimum=0, maximum=MOST_WATCH_S
                ),
                "heartbeat_sec": described(
                    NUMBER,
                    "answer after so long how far it is, with heartbeat true, where something between us ends silent"
                    " calls; none when left out",
                    minimum=5,
                    maximum=MOST_WATCH_S,
                ),
                "poll_interval_sec": described(
                    NUMBER,
                    "how late the end may be noticed, seconds. Nothing polls: the end wakes the call, which meets all",
                    minimum=1,
                    maximum=600,
                ),
                "dedupe_key": described(
                    STRING,
                    "a second watch with a key answers at once with already_running; project:agent:job when left out",
                    minLength=1,
                    maxLength=256,
                ),
                "agent": AGENT,
            },
            "job_id",
        ),
        {"job_id": "job_JOB", "timeout_sec": 60},
        answer(
            {
                **_JOB,
                "timing": shape("Timing", "how long a command took", {"duration_ms": NUMBER}),
                "already_running": described(BOOLEAN, "another call watches it with this key; nothing was waited for"),
                "timed_out": described(BOOLEAN, "the time is over before its end; watch it again"),
                "heartbeat": described(BOOLEAN, "heartbeat_sec is over before its end; watch it again"),
            }
        ),
        job_watch,
        waits=True,
    ),
    _row(
        "skills.job_cancel",
        "End a job and its step at work; nothing of it is left when this answers.",
        obj(
            {"job_id": _JOB_ID, "reason": described(STRING, "kept in the record", maxLength=1024), "agent": AGENT},
            "job_id",
        ),
        {"job_id": "job_JOB"},
        answer(
            {
                "job_id": STRING,
                "status": described(_STATUS, "'canceled', or how it had ended before"),
                "reason": described(STRING, "why it ended; empty when it succeeded"),
                "canceled": described(BOOLEAN, "this call ended it"),
            }
        ),
        job_cancel,
        waits=True,
        errors=(JobNotFound, StoreFault),
    ),
    _row(
        "skills.jobs",
        "List the jobs of an agent, newest first.",
        obj(
            {
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
                "cursor": CURSOR,
                "agent": AGENT,
            }
        ),
        {"limit": 20},
        answer(
            {
                "jobs": list_of(shape("JobLine", "a job in a list", _LINE), "newest first"),
                "next_cursor": NEXT_CURSOR,
            }
        ),
        jobs,
    ),
)  # fmt: skip
