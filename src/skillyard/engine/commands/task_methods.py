"""The tools ``skills.*`` that start, show, watch, read and end tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import Busy, TaskNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.callback import DELIVERED, GIVEN_UP, MOST_URL, PENDING
from skillyard.domain.work.command import MOST_TEXT, VIEW
from skillyard.domain.work.record import RunRecord
from skillyard.engine.commands import methods as commands
from skillyard.engine.commands.methods import ARTIFACT, COMMAND_PARAMS, MAX_ATTEMPTS, OUTPUT_ERROR
from skillyard.engine.commands.service import CANCELED, FAILED, SUCCEEDED, status_of
from skillyard.engine.commands.tails import MOST_TAIL
from skillyard.engine.commands.tasks import (
    BATCH,
    BG,
    CMD,
    DONE,
    ERRORS,
    POLL_S,
    QUERY_S,
    SERVICE,
    STATUS_FIELD,
    TAIL_BYTES,
    WATCH_S,
    TaskService,
    how_it_serves,
)
from skillyard.engine.method import (
    AGENT,
    BOOLEAN,
    CURSOR,
    INTEGER,
    NUMBER,
    OBJECT,
    RUN_ID,
    SKILL_NAME,
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
from skillyard.engine.runs.methods import WAIT_MS
from skillyard.engine.sessions.methods import SESSION_PARAMS
from skillyard.engine.shapes import (
    ENDPOINT,
    LABELS,
    NEXT_CURSOR,
    NUMBER_OR_NULL,
    RUN_LIMITS,
    TEXT_OR_NULL,
    USAGE,
    or_null,
    shape,
)

Params = Mapping[str, Any]
_STATES = ["queued", "starting", "running", SUCCEEDED, FAILED, CANCELED]
_STATE: Schema = {"type": "string", "enum": _STATES, "description": "the last three are final"}
_TASK_ID = described(RUN_ID, "of skills.run_cmd_async; it is the id of the task's run too")
_TIMING = shape("Timing", "how long a command took", {"duration_ms": NUMBER})
_FIELD: Schema = {"type": "string", "minLength": 1, "maxLength": 128}
_WORDS = {"type": "array", "items": {"type": "string", "maxLength": 128}, "maxItems": 32}
_ANY: Schema = {"type": ["object", "array", "string", "number", "boolean", "null"]}
MOST_WATCH_S = 3600

ATTEMPT = shape(
    "Attempt",
    "an attempt of a task that was followed by another",
    {
        "attempt": INTEGER,
        "reason": described(STRING, "'lost'"),
        "error_message": STRING,
        "started_at": NUMBER_OR_NULL,
        "finished_at": NUMBER_OR_NULL,
        "logs_blob": described(TEXT_OR_NULL, "its kept output; null when none was kept"),
    },
)
STATUS_PARAMS: dict[str, Schema] = {
    "task_id": _TASK_ID,
    "provider": {
        "type": "string",
        "enum": [BG, CMD],
        "default": BG,
        "description": f"'{BG}' for a task of this server; '{CMD}' for work elsewhere, whose state query_command tells",
    },
    "tail_bytes": {
        "type": "integer",
        "minimum": 0,
        "maximum": MOST_TAIL,
        "default": TAIL_BYTES,
        "description": "bytes of the end of stdout, and of stderr",
    },
    "query_command": described(
        STRING, f"with '{CMD}': a shell command that prints a JSON object", minLength=1, maxLength=MOST_TEXT
    ),
    "session_id": described(
        SESSION_PARAMS["session_id"], f"with '{CMD}': the session that it runs in; with '{BG}': that of the task"
    ),
    "skill_name": described(SKILL_NAME, f"with '{CMD}': the skill that it runs in; that of task_id when left out"),
    "workdir": described(STRING, f"with '{CMD}'; '{VIEW}' when left out", minLength=1, maxLength=512),
    "status_field": described(_FIELD, f"with '{CMD}': the member that is the state; '{STATUS_FIELD}' when left out"),
    "progress_field": described(_FIELD, f"with '{CMD}': the member that is the progress"),
    "events_field": described(_FIELD, f"with '{CMD}': the member that has events"),
    "done_states": described(_WORDS, f"with '{CMD}': states of success; {', '.join(DONE)} when left out"),
    "error_states": described(_WORDS, f"with '{CMD}': states of failure; {', '.join(ERRORS)} when left out"),
    "agent": AGENT,
}
_QUERY_TIME = described(NUMBER, f"with '{CMD}': seconds for query_command; {QUERY_S:g} when left out", minimum=0.001)

_STATUS: dict[str, Schema] = {
    "task_id": STRING,
    "provider": STRING,
    "status": _STATE,
    "reason": described(STRING, "the outcome of the run: 'exit', 'timeout', 'memory', 'lost' and so on; empty before"),
    "mode": described(STRING, f"'{BATCH}' or '{SERVICE}'"),
    "startup_ready": described(BOOLEAN, "its program was started; of a service, it is ready now"),
    "created_at": NUMBER,
    "started_at": NUMBER_OR_NULL,
    "finished_at": NUMBER_OR_NULL,
    "last_output_at": described(NUMBER_OR_NULL, "of a task at work; null while this server heard nothing of it"),
    "quiet": described(BOOLEAN, "it works, and wrote nothing for quiet_after_sec"),
    "log_problem": described(
        STRING, "why output is not taken now, such as a full store, or was not kept; empty where it is"
    ),
    "attempt": described(INTEGER, "the number of the attempt that is told of; 1 for the first"),
    "max_attempts": INTEGER,
    "attempts": list_of(ATTEMPT, "the attempts before it, whose sandboxes were lost"),
    "exit_code": described(or_null(INTEGER), "null while it works; -1 when it did not come to its own end"),
    "stdout_tail": STRING,
    "stderr_tail": STRING,
    "stdout_truncated": described(BOOLEAN, "there was, or may have been, more before it"),
    "stderr_truncated": BOOLEAN,
    "created_artifacts": list_of(ARTIFACT, "the files that outputs named, once it has ended"),
    "output_errors": list_of(OUTPUT_ERROR, "those that are not there, or could not be kept"),
    "session_id": TEXT_OR_NULL,
    "error_message": described(STRING, "why it failed; empty while it works and when it succeeded"),
    "exposed_endpoints": list_of(ENDPOINT, "where the ports of a service are reached"),
    "exposed_endpoints_active": described(BOOLEAN, "the service is ready"),
    "service": shape(
        "ServiceHealth",
        "how a service goes, in its own words",
        {
            "ready": BOOLEAN,
            "restart": STRING,
            "restarts": described(INTEGER, "how often it was started again"),
            "exit_code": described(or_null(INTEGER), "of its last end; null while there was none"),
        },
    ),
    "orphaned": described(BOOLEAN, "no server drives it at the moment"),
    "orphaned_reason": STRING,
    "agent": STRING,
    "skill_name": STRING,
    "version": STRING,
    "version_hash": described(STRING, "the digest of the skill's files; empty before it starts"),
    "isolation": STRING,
    "usage": USAGE,
    "limits": RUN_LIMITS,
    "labels": LABELS,
    "logs_blob": described(STRING, "the whole output, with marks between its streams, once it has ended"),
    "callback": shape(
        "CallbackState",
        "how far the callback of a task is",
        {
            "state": {"type": "string", "enum": [PENDING, DELIVERED, GIVEN_UP]},
            "tries": INTEGER,
            "told": described(STRING, "how the last try ended"),
        },
    ),
}
_QUERIED: dict[str, Schema] = {
    "status_field": described(STRING, f"with '{CMD}'"),
    "state": described(_ANY, "the value of that member"),
    "done": BOOLEAN,
    "error": BOOLEAN,
    "progress": _ANY,
    "events": _ANY,
    "raw": described(or_null(OBJECT), "the JSON object that was printed"),
}
_OPTIONAL = " ".join((_STATUS | _QUERIED).keys() - {"task_id", "provider", "exit_code", "error_message"})


async def run_cmd_async(service: TaskService, principal: Principal, params: Params) -> dict[str, Any]:
    record = await service.start(principal, params)
    return {
        "task_id": record.run_id,
        "provider": record.isolation,
        "mode": BATCH,
        "status": status_of(record),
        "session_id": record.session,
        "workdir": params["workdir"],
        "skill_name": record.skill,
        "version": record.version,
        "agent": record.agent,
        "limits": record.limits,
    }


async def task_status(service: TaskService, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.status(principal, params)


async def task_watch(service: TaskService, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.watch(principal, params)


async def task_cancel(service: TaskService, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.cancel(principal, params)


async def task_logs(service: TaskService, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.logs(principal, params)


async def tasks(service: TaskService, principal: Principal, params: Params) -> dict[str, Any]:
    limit, cursor = params["limit"], params["cursor"]
    with continuing(cursor):
        services = None if "mode" not in params else params["mode"] == SERVICE
        found = await service.list(principal, params.get("agent"), services, limit=limit + 1, after=cursor)
    page = found[:limit]
    return {
        "tasks": [_line(record) for record in page],
        "next_cursor": page[-1].run_id if len(found) > limit else None,
    }


def _line(record: RunRecord) -> dict[str, Any]:
    record = record.seen()
    return {
        "task_id": record.run_id,
        "status": status_of(record),
        "reason": "" if record.outcome is None else record.outcome.value,
        **how_it_serves(record),
        "skill_name": record.skill,
        "version": record.version,
        "agent": record.agent,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "finished_at": record.ended_at,
        "labels": record.labels,
    }


def _row(
    name: str,
    doc: str,
    params: Schema,
    example: Mapping[str, Any],
    result: Schema,
    handler: Handler[TaskService],
    *,
    waits: bool = False,
    repeatable: bool = True,
    **more: Any,
) -> Method[TaskService]:
    return Method(
        name=name,
        doc=doc,
        params=params,
        example=example,
        result=result,
        scope=Scope.RUN_CODE,
        waits=waits,
        repeatable=repeatable,
        service=TaskService,
        handler=handler,
        **{"errors": (TaskNotFound,), **more},
    )


TABLE = (
    _row(
        "skills.run_cmd_async",
        "Start a shell command in a skill as a task, and answer as soon as it is stored. It outlives the server.",
        obj(
            {
                **COMMAND_PARAMS,
                "max_attempts": MAX_ATTEMPTS,
                "callback_url": described(
                    STRING,
                    "is told by a signed POST that the task has ended; its host must be one of commands.callback_hosts",
                    minLength=1,
                    maxLength=MOST_URL,
                ),
                "quiet_after_sec": described(
                    NUMBER, "an event 'quiet' tells that it wrote nothing for so long", minimum=1, maximum=86400
                ),
                "timeout_sec": described(
                    COMMAND_PARAMS["timeout_sec"],
                    "wall clock, seconds; commands.task_timeout_s when left out, commands.max_task_timeout_s at most",
                ),
            },
            "skill_name",
            "command",
        ),
        {"skill_name": "examples.csv.summarize", "command": "seq 3; echo done >&2"},
        answer(
            {
                "task_id": STRING,
                "provider": described(STRING, "the isolation that it runs behind"),
                "mode": STRING,
                "status": described(_STATE, "'queued'; how far the first one is when a key is repeated"),
                "session_id": TEXT_OR_NULL,
                "workdir": STRING,
                "skill_name": STRING,
                "version": STRING,
                "agent": STRING,
                "limits": RUN_LIMITS,
            }
        ),
        run_cmd_async,
        repeatable=False,
        runs=True,
        errors=commands.ERRORS,
    ),
    _row(
        "skills.task_status",
        "How far a task is, with the end of its output; or the state of work elsewhere that a command tells.",
        obj({**STATUS_PARAMS, "timeout_sec": _QUERY_TIME}),
        {"task_id": "run_TASK"},
        answer(_STATUS | _QUERIED, _OPTIONAL),
        task_status,
        waits=True,
        errors=(TaskNotFound, *commands.ERRORS),
    ),
    _row(
        "skills.task_watch",
        "Wait until a task has ended, and answer how; or how far it is when timeout_sec is over.",
        obj(
            {
                **STATUS_PARAMS,
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
                "query_timeout_sec": _QUERY_TIME,
                "poll_interval_sec": described(
                    NUMBER,
                    f"with '{CMD}': seconds between two queries; {POLL_S:g} when left out. A task is not polled: the"
                    " call answers when it ends",
                    minimum=1,
                    maximum=600,
                ),
                "dedupe_key": described(
                    STRING,
                    "a second watch with a key answers at once with already_running; project:agent:task when left out",
                    minLength=1,
                    maxLength=256,
                ),
            }
        ),
        {"task_id": "run_TASK", "timeout_sec": 60},
        answer(
            {
                **_STATUS,
                **_QUERIED,
                "timing": _TIMING,
                "already_running": described(BOOLEAN, "another call watches it with this key; nothing was waited for"),
                "timed_out": described(BOOLEAN, "the time is over before its end; watch it again"),
                "heartbeat": described(BOOLEAN, "heartbeat_sec is over before its end; watch it again"),
            },
            f"{_OPTIONAL} exit_code error_message",
        ),
        task_watch,
        waits=True,
        errors=(TaskNotFound, *commands.ERRORS),
    ),
    _row(
        "skills.task_logs",
        "The output of a task from an offset on, stdout and stderr apart; also while it works.",
        obj(
            {
                "task_id": _TASK_ID,
                "stream": {"type": "string", "enum": ["stdout", "stderr"], "description": "one of them; else both"},
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 2**53,
                    "default": 0,
                    "description": "next_offset of the page before",
                },
                "max_bytes": {"type": "integer", "minimum": 4, "maximum": 1048576, "default": 65536},
                "wait_ms": {**WAIT_MS, "default": 0},
                "agent": AGENT,
            },
            "task_id",
        ),
        {"task_id": "run_TASK"},
        answer(
            {
                "task_id": STRING,
                "chunks": list_of(
                    shape("Chunk", "a piece of output", {"stream": STRING, "text": STRING}), "in their order"
                ),
                "offset": INTEGER,
                "next_offset": described(INTEGER, "counts bytes of both streams and of the marks between them"),
                "dropped": described(INTEGER, "bytes before the chunks that are not kept any more"),
                "log_problem": described(STRING, "why output of a task at work is not taken now; empty where it is"),
                "running": BOOLEAN,
                "complete": described(BOOLEAN, "the task has ended and this is the end of its output"),
            }
        ),
        task_logs,
        waits=True,
        errors=(TaskNotFound, Busy),
    ),
    _row(
        "skills.task_cancel",
        "End a task and everything it started; answers when nothing of it is left.",
        obj({"task_id": _TASK_ID, "reason": described(STRING, "kept in the record", maxLength=200), "agent": AGENT},
            "task_id"),
        {"task_id": "run_TASK", "reason": "not needed any more"},
        answer(
            {"task_id": STRING, "status": _STATE, "canceled": described(BOOLEAN, "false when it had ended before")}
        ),
        task_cancel,
        errors=(TaskNotFound, Busy),
    ),
    _row(
        "skills.tasks",
        "The tasks of an agent, newest first.",
        obj(
            {
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
                "cursor": CURSOR,
                "agent": AGENT,
                "mode": described({"type": "string", "enum": [BATCH, SERVICE]}, "one kind of them alone"),
            }
        ),
        {"limit": 20},
        answer(
            {
                "tasks": list_of(
                    shape(
                        "TaskLine",
                        "a task in a list",
                        {name: _STATUS[name] for name in (
                            "task_id", "status", "reason", "mode", "startup_ready", "skill_name", "version", "agent",
                            "created_at", "started_at", "finished_at", "labels",
                        )},
                    ),
                    "newest first",
                ),
                "next_cursor": NEXT_CURSOR,
            }
        ),
        tasks,
    ),
)  # fmt: skip
