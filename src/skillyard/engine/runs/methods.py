"""The two methods that start a run: ``execute_skill`` and ``run_code`` (skills-protocol §4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import (
    BlobNotFound,
    Busy,
    IdempotencyConflict,
    NotExecutable,
    ProtectionMissing,
    SkillNotFound,
    UnsupportedLanguage,
)
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.record import RunKind
from skillyard.engine.method import (
    BLOB_ID,
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    SKILL_NAME,
    STRING,
    VERSION,
    Method,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.runs.request import from_params
from skillyard.engine.schema import Schema

if TYPE_CHECKING:
    from skillyard.engine.engine import Engine

MAX_CODE = 1024 * 1024

RUN_OBJECT: Schema = answer(
    {
        "status": {"type": "string", "enum": ["completed", "failed"]},
        "run_id": STRING,
        "summary": STRING,
        "output": OBJECT,
        "output_blobs": list_of(STRING, "ids of the blobs that the run made"),
        "files": list_of(
            answer({"path": STRING, "blob_id": STRING, "size": INTEGER, "mime": STRING}),
            "the files left in /workspace/out; their ids are in output_blobs too",
        ),
        "notes": list_of(STRING, "further sentences, such as about files that were not kept"),
        "logs_preview": STRING,
        "logs_blob": described(STRING, "the whole log, when there is one"),
        "error": answer({"type": STRING, "message": STRING, "traceback": STRING}, "type", "message"),
        "skill": described(STRING, "what was executed, with its version"),
        "version": STRING,
        "environment": described(STRING, "a name of the settings, with + and a digest when more was asked for"),
        "outcome": STRING,
        "isolation": STRING,
        "network": OBJECT,
        "usage": OBJECT,
        "limits": OBJECT,
        "least": described(STRING, "why it got the least policy: no network and no secrets that its skills declare"),
        "enforced": OBJECT,
    },
    "status",
    "run_id",
    "summary",
)

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
    "network": NETWORK,
    "detach": described(BOOLEAN, "the run goes on when its caller goes away", default=False),
}

_ERRORS = (SkillNotFound, BlobNotFound, ProtectionMissing, Busy, IdempotencyConflict)


async def execute_skill(engine: Engine, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    return await engine.run(principal, from_params(RunKind.SKILL, params))


async def run_code(engine: Engine, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    return await engine.run(principal, from_params(RunKind.CODE, params))


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
        result=RUN_OBJECT,
        scope=Scope.EXECUTE,
        errors=(*_ERRORS, NotExecutable),
        surface="protocol",
        runs=True,
        handler=execute_skill,
    ),
    Method(
        name="run_code",
        doc="Run Python source in a fresh sandbox; mounted skills can be imported from it.",
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
                **COMMON,
            },
            "language",
            "code",
        ),
        result=RUN_OBJECT,
        scope=Scope.RUN_CODE,
        errors=(*_ERRORS, UnsupportedLanguage),
        surface="protocol",
        runs=True,
        handler=run_code,
    ),
)
