"""``skills.run_cmd``: a shell command in a skill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import (
    BlobNotFound,
    Busy,
    IdempotencyConflict,
    ProtectionMissing,
    QuotaExceeded,
    SkillNotFound,
    UnsupportedLanguage,
)
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.work.command import LANGUAGES, MOST_TEXT, VIEW
from skillyard.engine.commands.service import CANCELED, FAILED, SUCCEEDED, CommandService
from skillyard.engine.method import (
    BLOB_ID,
    BOOLEAN,
    INTEGER,
    NUMBER,
    SKILL_NAME,
    STRING,
    VERSION,
    Method,
    Schema,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.runs.methods import COMMON, LIMITS, NETWORK
from skillyard.engine.sessions.methods import SESSION_PARAMS
from skillyard.engine.shapes import RUN_LIMITS, SESSION_TIMES, USAGE, shape

Params = Mapping[str, Any]
MOST_INPUTS, MOST_OUTPUTS = 64, 32
_PATH: Schema = {"type": "string", "minLength": 1, "maxLength": 512}

ARTIFACT = shape(
    "Artifact",
    "a file that a command left and that outputs named",
    {
        "artifact_id": described(STRING, "a blob id"),
        "path": described(STRING, "below /workspace"),
        "filename": described(STRING, "save_as, or the file's own name"),
        "mime": STRING,
        "size": INTEGER,
    },
)
OUTPUT_ERROR = shape("OutputError", "a file that could not be kept", {"path": STRING, "error": STRING})
INPUT = obj({"artifact_id": BLOB_ID, "mount_path": _PATH}, "artifact_id", "mount_path")
OUTPUT = obj({"path": _PATH, "save_as": {"type": "string", "maxLength": 512}}, "path")

MAX_ATTEMPTS: Schema = {
    "type": "integer",
    "minimum": 1,
    "maximum": 10,
    "default": 1,
    "description": "how often it is started at most: again only when its sandbox was lost, and is surely gone",
}
COMMAND_PARAMS: dict[str, Schema] = {
    "skill_name": described(SKILL_NAME, "the skill; its files are at /skills/<name>, and as a copy in 'skill'"),
    "command": described(STRING, "the text for the shell", minLength=1, maxLength=MOST_TEXT),
    "inputs": list_of(
        INPUT,
        "files to write before the command starts: artifact_id is a blob id, mount_path relative to workdir",
        maxItems=MOST_INPUTS,
    ),
    "outputs": list_of(
        OUTPUT,
        "files to keep when it has ended: path, or a pattern with * ? [ **, relative to workdir; save_as is the name",
        maxItems=MOST_OUTPUTS,
    ),
    "timeout_sec": described(NUMBER, "wall clock, seconds; above the maximum is refused", minimum=0.001),
    "env": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "variables of the command; names of letters, digits and _",
    },
    "workdir": described(
        STRING, "below /workspace: 'skill' is the writable copy of the skill, '.' /workspace itself",
        default=VIEW, minLength=1, maxLength=512,
    ),
    **SESSION_PARAMS,
    "version": VERSION,
    "language": described(STRING, f"{' or '.join(LANGUAGES)}", default="bash", maxLength=64),
    "network": NETWORK,
    "limits": described(LIMITS, "what it may use beside timeout_sec; above the maximum is refused"),
    "isolation": COMMON["isolation"],
    "image": COMMON["image"],
    "idempotency_key": COMMON["idempotency_key"],
    "labels": COMMON["labels"],
    "agent": described(STRING, "the agent that it belongs to; the token's own when left out", maxLength=64),
}  # fmt: skip

COMMAND_ANSWER = answer(
    {
        "status": {"type": "string", "enum": [SUCCEEDED, FAILED, CANCELED]},
        "reason": described(STRING, "the outcome of the run: 'exit', 'timeout', 'memory', 'cancelled' and so on"),
        "run_id": STRING,
        "stdout": described(STRING, "its end, at most commands.stdout_bytes"),
        "stderr": STRING,
        "stdout_truncated": described(BOOLEAN, "there was more before it; logs_blob has all"),
        "stderr_truncated": BOOLEAN,
        "exit_code": described(INTEGER, "128 and the signal when one ended it; -1 when it did not come to its end"),
        "error_message": described(STRING, "why it failed; empty when it succeeded"),
        "created_artifacts": list_of(ARTIFACT, "the files that outputs named"),
        "output_errors": list_of(OUTPUT_ERROR, "those that are not there, or could not be kept"),
        "timing": shape("Timing", "how long a command took", {"duration_ms": NUMBER}),
        "skill_name": STRING,
        "version": STRING,
        "version_hash": described(STRING, "the digest of the skill's files"),
        "workdir": STRING,
        "skill_root": described(STRING, "the skill's own files, read-only"),
        "isolation": STRING,
        "usage": USAGE,
        "limits": RUN_LIMITS,
        "logs_blob": described(STRING, "the whole output, with marks between its streams"),
        **SESSION_TIMES,
    },
    optional="logs_blob session_id expires_at idle_at",
)

ERRORS = (
    SkillNotFound, BlobNotFound, QuotaExceeded, UnsupportedLanguage, ProtectionMissing, Busy, IdempotencyConflict,
)  # fmt: skip


async def run_cmd(service: CommandService, principal: Principal, params: Params) -> dict[str, Any]:
    return await service.run(principal, params)


TABLE = (
    Method(
        name="skills.run_cmd",
        doc="Run a shell command in a skill, in a fresh sandbox or in a session."
        " A non-zero exit code is an answer, not an error.",
        params=obj(COMMAND_PARAMS, "skill_name", "command"),
        example={
            "skill_name": "examples.csv.summarize",
            "command": "wc -l < data.csv > lines.txt; ls",
            "inputs": [{"artifact_id": "blob:EXAMPLE", "mount_path": "data.csv"}],
            "outputs": [{"path": "lines.txt"}],
            "session_id": "work",
        },
        result=COMMAND_ANSWER,
        scope=Scope.RUN_CODE,
        errors=ERRORS,
        runs=True,
        service=CommandService,
        handler=run_cmd,
    ),
)
