"""The methods that start a run (skills-protocol §4), and those that read and change runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import (
    BlobNotFound,
    Busy,
    Forbidden,
    GateFault,
    IdempotencyConflict,
    NotExecutable,
    ProtectionMissing,
    QuotaExceeded,
    RunNotFound,
    SkillNotFound,
    UnsupportedLanguage,
)
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.labels import MOST_CHARACTERS, MOST_LABELS, check_labels
from skillyard.domain.work.record import RunKind
from skillyard.engine.method import (
    AGENT,
    BLOB_ID,
    BOOLEAN,
    CURSOR,
    INTEGER,
    NUMBER,
    OBJECT,
    RUN_ID,
    SKILL_NAME,
    STRING,
    VERSION,
    Method,
    Schema,
    answer,
    continuing,
    described,
    list_of,
    obj,
    whose,
)
from skillyard.engine.runs.active import MOST_WAIT_MS
from skillyard.engine.runs.history import RunHistory, line, view
from skillyard.engine.runs.record import in_detail, run_object
from skillyard.engine.runs.request import from_params
from skillyard.engine.runs.service import RunService
from skillyard.engine.sessions.methods import SESSION_PARAMS
from skillyard.engine.shapes import (
    BRIEF_OR_NOT,
    NEXT_CURSOR,
    RECORD_OR_BRIEF,
    RUN,
    RUN_EVENT,
    RUN_LINE,
    RUN_RECORD,
    STATUSES,
)

Params = Mapping[str, Any]
MAX_CODE = 1024 * 1024

LIMITS: Schema = obj(
    {
        "timeout_ms": described(INTEGER, "wall clock, milliseconds"),
        "memory_mb": described(INTEGER, "memory, MiB"),
        "cpus": described(NUMBER, "cores"),
        "pids": described(INTEGER, "processes and threads"),
        "disk_mb": described(INTEGER, "written files, MiB"),
    }
)

NETWORK: Schema = list_of(
    {"type": "string", "minLength": 1, "maxLength": 512},
    "rules that narrow what the run may reach, such as 'api.x.com:443'; [] for no network",
    maxItems=256,
)

PACKAGES: Schema = list_of(
    {"type": "string", "minLength": 1, "maxLength": 1000},
    "requirements such as 'numpy>=2' that the code may import, where policy admits them; beside those of the"
    " environment and of the code's own inline metadata",
    maxItems=64,
)

LABELS: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string", "maxLength": MOST_CHARACTERS},
    "description": f"at most {MOST_LABELS} pairs that runs can be found by; names of a-z 0-9 . _ / -",
}

COMMON: dict[str, Schema] = {
    "args": described(OBJECT, "passed whole to a function of one parameter, by name to one of several", default={}),
    "input_blobs": list_of(BLOB_ID, "ids of the blobs that the run may read", maxItems=256),
    "mount_skills": list_of(SKILL_NAME, "names of the skills that the run may import", maxItems=64),
    "timeout_ms": described(INTEGER, "wall clock, milliseconds; the same as limits.timeout_ms"),
    "limits": described(LIMITS, "what the run may use; above the maximum is refused"),
    "idempotency_key": described(
        STRING, "a repeated call with the same key gets the first run", pattern=r"^[\x21-\x7e]{1,128}$"
    ),
    "isolation": described(STRING, "the boundary to run behind; one that policy offers"),
    "image": described(STRING, "the image of the sandbox, by digest; one that policy admits", maxLength=512),
    "network": NETWORK,
    "detach": described(BOOLEAN, "answers at once; the run outlives its caller and the server", default=False),
    "labels": LABELS,
    "detail": BRIEF_OR_NOT,
}

WAIT_MS: Schema = {
    "type": "integer",
    "minimum": 0,
    "maximum": MOST_WAIT_MS,
    "description": "how long to wait for something new, milliseconds; the answer comes as soon as there is something",
}

_ERRORS = (SkillNotFound, BlobNotFound, ProtectionMissing, Busy, IdempotencyConflict)


_OF_SESSIONS = frozenset({"session_id", "wait_ms", "restart", "agent"})


async def execute_skill(service: RunService, principal: Principal, params: Params) -> dict[str, Any]:
    return in_detail(await service.run(principal, from_params(RunKind.SKILL, params)), params["detail"])


async def run_code(service: RunService, principal: Principal, params: Params) -> dict[str, Any]:
    request = from_params(RunKind.CODE, params)
    if not _OF_SESSIONS.isdisjoint(params):
        request = service.in_session(principal, request, params)
    return in_detail(await service.run(principal, request), params["detail"])


async def list_runs(service: RunHistory, principal: Principal, params: Params) -> dict[str, Any]:
    limit, cursor = params["limit"], params["cursor"]
    owner = whose(principal, params)
    with continuing(cursor):
        labels = check_labels(params.get("labels") or {})
        found = await service.list(owner, limit=limit + 1, after=cursor, status=params.get("status"), labels=labels)
    page = found[:limit]
    return {
        "runs": [line(record) for record in page],
        "next_cursor": page[-1].run_id if len(found) > limit else None,
    }


async def show_run(service: RunHistory, principal: Principal, params: Params) -> dict[str, Any]:
    return {"run": in_detail(await service.show(principal, params["run_id"]), params["detail"])}


async def run_logs(service: RunHistory, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.logs(principal, params["run_id"], params["offset"], params["max_bytes"], params["wait_ms"])


async def run_events(service: RunHistory, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.events(principal, params["run_id"], params["after"], params["limit"], params["wait_ms"])


async def wait_run(service: RunHistory, principal: Principal, params: Params) -> dict[str, Any]:
    record = await service.wait(principal, params["run_id"], params["wait_ms"])
    return {"ended": not record.status.live, "run": in_detail(run_object(record), params["detail"])}


async def cancel_run(service: RunHistory, principal: Principal, params: Params) -> dict[str, Any]:
    cancelled = await service.cancel(principal, params["run_id"], params.get("reason"))
    run = view(await service.owned(principal, params["run_id"]))
    return {"cancelled": cancelled, "run": in_detail(run, params["detail"])}


async def set_run_network(service: RunHistory, principal: Principal, params: Params) -> dict[str, Any]:
    await service.set_network(principal, params["run_id"], params["network"])
    return {"run": await service.show(principal, params["run_id"])}


TABLE = (
    Method(
        name="execute_skill",
        doc="Run an action skill in a fresh sandbox and return what it made.",
        params=obj(
            {
                "name": described(SKILL_NAME, "the skill's name"),
                "version": VERSION,
                **COMMON,
            },
            "name",
        ),
        example={
            "name": "examples.csv.summarize",
            "args": {"blob": "blob:EXAMPLE"},
            "input_blobs": ["blob:EXAMPLE"],
        },
        result=RUN,
        scope=Scope.EXECUTE,
        errors=(*_ERRORS, NotExecutable),
        surface="protocol",
        runs=True,
        service=RunService,
        handler=execute_skill,
    ),
    Method(
        name="run_code",
        doc="Run Python source in a fresh sandbox, or in the interpreter of a session, which keeps its names;"
        " mounted skills can be imported from it.",
        params=obj(
            {
                "language": described(STRING, "'python'", maxLength=64),
                "code": described(STRING, "Python source that defines main(args), or a script", maxLength=MAX_CODE),
                "entrypoint": described(
                    STRING,
                    "the function to call; without it 'main', and code that defines none runs as a script",
                    pattern=r"^[^\W\d]\w{0,127}$",
                ),
                "environment": described(STRING, "a prepared set of packages", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$"),
                "packages": PACKAGES,
                "tools": list_of(
                    {"type": "string", "minLength": 1, "maxLength": 128},
                    "tools of MCP servers that the code may import, where policy admits them: full names or patterns"
                    " such as 'git__*'; 'from tools.git import git_status' then",
                    maxItems=64,
                ),
                **COMMON,
                **SESSION_PARAMS,
                "session_id": described(
                    STRING,
                    "a name of the agent's own choice: the code is a cell of this session's interpreter, and the value"
                    " of its last expression comes back",
                    minLength=1,
                    maxLength=64,
                ),
                "restart": described(BOOLEAN, "begin with a new interpreter, without the names so far"),
                "agent": AGENT,
            },
            "language",
            "code",
        ),
        example={
            "language": "python",
            "code": "def main(args):\n    return {'sum': sum(args['xs'])}\n",
            "args": {"xs": [1, 2, 3]},
        },
        result=RUN,
        scope=Scope.RUN_CODE,
        errors=(*_ERRORS, UnsupportedLanguage, QuotaExceeded, Forbidden),
        surface="protocol",
        runs=True,
        service=RunService,
        handler=run_code,
    ),
    Method(
        name="runs.list",
        doc="The caller's runs, newest first.",
        params=obj(
            {
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
                "cursor": CURSOR,
                "status": {"type": "string", "enum": STATUSES},
                "labels": LABELS,
                "all": described(BOOLEAN, "every principal's runs; needs the scope 'admin'", default=False),
            }
        ),
        example={"status": "failed", "limit": 20},
        result=answer({"runs": list_of(RUN_LINE, "newest first"), "next_cursor": NEXT_CURSOR}),
        service=RunHistory,
        handler=list_runs,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        repeatable=True,
    ),
    Method(
        name="runs.show",
        doc="The record of one run.",
        params=obj({"run_id": RUN_ID, "detail": BRIEF_OR_NOT}, "run_id"),
        example={"run_id": "run_EXAMPLE"},
        result=answer({"run": RECORD_OR_BRIEF}),
        errors=(RunNotFound,),
        service=RunHistory,
        handler=show_run,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        repeatable=True,
    ),
    Method(
        name="runs.logs",
        doc="The log of a run, stdout and stderr together, from any byte on; also while it runs.",
        params=obj(
            {
                "run_id": RUN_ID,
                "offset": {"type": "integer", "minimum": 0, "maximum": 2**53, "default": 0},
                "max_bytes": {"type": "integer", "minimum": 4, "maximum": 1048576, "default": 65536},
                "wait_ms": {**WAIT_MS, "default": 0},
            },
            "run_id",
        ),
        example={"run_id": "run_EXAMPLE"},
        result=answer(
            {
                "run_id": STRING,
                "content": STRING,
                "encoding": described(STRING, "'utf-8': what is not text is replaced"),
                "offset": INTEGER,
                "next_offset": INTEGER,
                "dropped": described(INTEGER, "bytes before the content that are not kept any more"),
                "running": BOOLEAN,
                "complete": described(BOOLEAN, "the run ended and this is the end of its log"),
            }
        ),
        errors=(RunNotFound, Busy),
        service=RunHistory,
        handler=run_logs,
        waits=True,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        repeatable=True,
    ),
    Method(
        name="runs.wait",
        doc="Wait for the end of a run; answers when it has ended, or with the run as it is after wait_ms.",
        params=obj({"run_id": RUN_ID, "wait_ms": {**WAIT_MS, "default": 30_000}, "detail": BRIEF_OR_NOT}, "run_id"),
        example={"run_id": "run_EXAMPLE"},
        result=answer({"ended": described(BOOLEAN, "false: ask again"), "run": RUN}),
        errors=(RunNotFound, Busy),
        service=RunHistory,
        handler=wait_run,
        waits=True,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        repeatable=True,
    ),
    Method(
        name="runs.events",
        doc="The events of a run in their order: each state that it got, and what happened to it.",
        params=obj(
            {
                "run_id": RUN_ID,
                "after": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 2**53,
                    "default": 0,
                    "description": "next_after of the page before",
                },
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 100},
                "wait_ms": {**WAIT_MS, "default": 0},
            },
            "run_id",
        ),
        example={"run_id": "run_EXAMPLE"},
        result=answer(
            {
                "run_id": STRING,
                "events": list_of(RUN_EVENT, "the oldest first"),
                "next_after": INTEGER,
                "complete": described(BOOLEAN, "the run ended and this is its last event"),
            }
        ),
        errors=(RunNotFound, Busy),
        service=RunHistory,
        handler=run_events,
        waits=True,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        repeatable=True,
    ),
    Method(
        name="runs.cancel",
        doc="End a run and everything it started; returns when nothing of it is left.",
        params=obj(
            {
                "run_id": RUN_ID,
                "reason": described(STRING, "kept in the record", maxLength=200),
                "detail": BRIEF_OR_NOT,
            },
            "run_id",
        ),
        example={"run_id": "run_EXAMPLE", "reason": "not needed any more"},
        result=answer({"cancelled": described(BOOLEAN, "false when it had ended before"), "run": RECORD_OR_BRIEF}),
        errors=(RunNotFound,),
        service=RunHistory,
        handler=cancel_run,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        repeatable=True,
    ),
    Method(
        name="runs.set_network",
        doc=(
            "Change what a run at work may reach, for open connections too. Rules of its owner narrow what was granted;"
            " those of an admin take its place below the operator's rules."
        ),
        params=obj({"run_id": RUN_ID, "network": NETWORK}, "run_id", "network"),
        example={"run_id": "run_EXAMPLE", "network": ["api.example.com:443"]},
        result=answer({"run": RUN_RECORD}),
        errors=(RunNotFound, GateFault),
        service=RunHistory,
        handler=set_run_network,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
    ),
)
