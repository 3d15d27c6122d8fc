"""Schemas of the values in results of methods.

A shape has a title, under which the OpenRPC document (``engine/table.py``) tells it once. Shapes are open: more
members may come, and those that are listed stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from skillyard.domain.work.record import Outcome, RunKind, RunStatus
from skillyard.engine.method import BOOLEAN, INTEGER, NUMBER, OBJECT, STRING, Schema, answer, described, list_of

TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
NEXT_CURSOR: Schema = described(TEXT_OR_NULL, "the cursor of the next page; null at the end")
STRINGS: Schema = {"type": "array", "items": STRING}


def shape(title: str, text: str, properties: Mapping[str, Schema], optional: str = "") -> Schema:
    """Returns an open object schema.

    Every member is required except the ``optional`` ones, whose names are separated by spaces.
    """
    return {**answer(properties, optional), "title": title, "description": text}


def or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def table_of(values: Schema, text: str) -> Schema:
    """Returns the schema of an object whose names are data."""
    return {"type": "object", "additionalProperties": values, "description": text}


# Runs

STATUSES = [status.value for status in RunStatus]
_STATUS: Schema = {
    "type": "string",
    "enum": STATUSES,
    "description": "'completed' and 'failed' are final; 'queued' and 'starting' are of detached runs only",
}
LABELS = table_of(STRING, "the labels that its caller gave it")
FILE = shape(
    "File",
    "a file that a run left in /workspace/out",
    {
        "path": STRING,
        "blob_id": STRING,
        "size": INTEGER,
        "mime": STRING,
        "filename": described(STRING, "the name that a command's caller wanted"),
    },
    optional="filename",
)
RUN_ERROR = shape(
    "RunError", "why a run failed", {"type": STRING, "message": STRING, "traceback": STRING}, optional="traceback"
)
USAGE = shape(
    "Usage",
    "what a run used; empty until it ends",
    {
        "cpu_ms": NUMBER_OR_NULL,
        "peak_memory_bytes": {"type": ["integer", "null"]},
        "wall_ms": NUMBER,
        "startup_ms": described(NUMBER, "until its sandbox stood"),
        "queued_ms": described(NUMBER, "until it was admitted"),
        "gone_ms": described(NUMBER, "from its end until nothing of its sandbox was left; absent when that came first"),
        "source": described(STRING, "who counted"),
    },
    optional="cpu_ms peak_memory_bytes wall_ms startup_ms queued_ms gone_ms source",
)
RUN_LIMITS = shape(
    "RunLimits",
    "what a run may use",
    {"timeout_ms": INTEGER, "memory_mb": INTEGER, "cpus": NUMBER, "pids": INTEGER, "disk_mb": INTEGER},
)
ENFORCED = table_of(
    STRING, "by protection and limit: 'kernel', 'supervised' or 'missing'; empty until a sandbox stands"
)
SESSION_TIMES: dict[str, Schema] = {
    "session_id": described(STRING, "the session's alias"),
    "expires_at": described(NUMBER_OR_NULL, "when the session ends in any case, UTC seconds; null when it has ended"),
    "idle_at": described(NUMBER_OR_NULL, "when it ends unless it is used before; null when it has ended"),
}
INTERPRETER = shape(
    "Interpreter",
    "the Python interpreter that a cell ran in",
    {
        "state": {
            "type": "string",
            "enum": ["started", "kept", "restarted"],
            "description": "'kept': the names of earlier cells were there; 'restarted': they were lost before it",
        },
        "reason": described(STRING, "why it is a new one; empty for one that is kept, and for the first"),
        "lost": described(STRING, "why its names are lost since this cell; empty where they are there for the next"),
    },
)
RUN = shape(
    "Run",
    "how one run ended, or how far a detached one is",
    {
        "status": _STATUS,
        "run_id": STRING,
        "summary": STRING,
        "output": described(OBJECT, "what the code returned; of completed runs"),
        "output_blobs": described(STRINGS, "ids of the blobs that the run made"),
        "files": list_of(FILE, "the files left in /workspace/out; their ids are in output_blobs too"),
        "notes": described(STRINGS, "further sentences, such as about files that were not kept"),
        "logs_preview": STRING,
        "logs_blob": described(STRING, "the whole log, when there is one"),
        "error": RUN_ERROR,
        "skill": described(STRING, "what was executed, with its version"),
        "version": STRING,
        "environment": described(STRING, "a name of the settings, with + and a digest when more was asked for"),
        "outcome": {"type": "string", "enum": [outcome.value for outcome in Outcome]},
        "isolation": STRING,
        "network": shape(
            "NetworkCounts",
            "connections of the run, and bytes",
            {"allowed": INTEGER, "refused": INTEGER, "sent_bytes": INTEGER, "received_bytes": INTEGER},
        ),
        **SESSION_TIMES,
        "interpreter": INTERPRETER,
        "usage": USAGE,
        "limits": RUN_LIMITS,
        "least": described(STRING, "why it got the least policy: no network and no secrets that its skills declare"),
        "enforced": ENFORCED,
        "labels": LABELS,
    },
    optional="output output_blobs files notes logs_preview logs_blob error skill version environment outcome isolation"
    " network session_id expires_at idle_at interpreter usage limits least enforced labels",
)
RUN_EVENT = shape(
    "RunEvent",
    "something that happened to a run",
    {
        "seq": described(INTEGER, "counts from 1"),
        "at": NUMBER,
        "kind": described(STRING, "a status that it got, or a word for another happening"),
        "data": OBJECT,
    },
)
BRIEF_OR_NOT: Schema = {
    "type": "string",
    "enum": ["full", "brief"],
    "default": "full",
    "description": "'brief' leaves of a run what a model needs: run_id, status, outcome, summary, output, error,"
    " logs_preview, output_blobs, files and interpreter, as far as there is something in them",
}
LAYER = shape("Layer", "rules that a connection must be allowed by", {"name": STRING, "rules": STRINGS})
_CONNECTION = shape(
    "Connection",
    "connections of one kind",
    {
        "allowed": BOOLEAN,
        "host": STRING,
        "port": INTEGER,
        "via": STRING,
        "count": INTEGER,
        "sent_bytes": INTEGER,
        "received_bytes": INTEGER,
        "layer": STRING,
        "rule": STRING,
        "reason": STRING,
        "secrets": described(STRINGS, "names of those that the gate put in"),
        "first_ms": described(NUMBER, "from the start of the session"),
        "last_ms": NUMBER,
    },
)
RUN_NETWORK = shape(
    "RunNetwork",
    "what a run could reach and reached",
    {
        "layers": list_of(LAYER, "as granted"),
        "in_force": list_of(LAYER, "after changes"),
        "changes": list_of(
            shape("NetworkChange", "of a run at work", {"at": NUMBER, "by": STRING, "layer": STRING, "rules": STRINGS}),
            "the oldest first",
        ),
        "connections": list_of(_CONNECTION, "by kind"),
        "dropped": described(INTEGER, "kinds of connections that had no room"),
        "complete": described(BOOLEAN, "false while more may follow"),
    },
    optional="in_force",
)
NEED = shape(
    "Need",
    "something that a skill asks for",
    {"need": STRING, "asked": STRING, "granted": STRING, "why": described(STRING, "why not more")},
    optional="granted why",
)
_RUN_NEEDS = shape(
    "RunNeeds",
    "what the run's skills asked for and got",
    {
        "least": STRING,
        "skills": list_of(
            shape(
                "SkillNeeds",
                "of one skill",
                {"skill": STRING, "version": STRING, "approved": BOOLEAN, "by": STRING, "because": STRING,
                 "needs": list_of(NEED, "rows")},
            ),
            "of the run",
        ),
        "dropped": described(INTEGER, "rows that had no room"),
        "variables": shape(
            "RunVariables",
            "variables of the server that settings list for runs",
            {
                "given": list_of(STRING, "names"),
                "refused": {"type": "object", "additionalProperties": STRING, "description": "names with reasons"},
            },
        ),
    },
    optional="variables",
)  # fmt: skip
_LINE: dict[str, Schema] = {
    "run_id": STRING,
    "kind": {"type": "string", "enum": [kind.value for kind in RunKind]},
    "principal": STRING,
    "project": STRING,
    "agent": described(STRING, "the agent that a command belongs to; empty for other runs"),
    "session": described(TEXT_OR_NULL, "the alias of the session that a command or a cell ran in"),
    "interpreter": or_null(INTERPRETER),
    "status": _STATUS,
    "detached": described(BOOLEAN, "it outlives its caller and the server"),
    "labels": LABELS,
    "cancel_requested": described(TEXT_OR_NULL, "the reason for which somebody asked it to end"),
    "outcome": described(TEXT_OR_NULL, "as in a run; null until it ends"),
    "reason": STRING,
    "created_at": NUMBER,
    "started_at": NUMBER_OR_NULL,
    "ended_at": NUMBER_OR_NULL,
    "summary": STRING,
    "skill": TEXT_OR_NULL,
    "version": TEXT_OR_NULL,
    "environment": STRING,
    "isolation": STRING,
    "limits": RUN_LIMITS,
    "enforced": ENFORCED,
    "usage": USAGE,
    "digests": described(
        OBJECT, "SHA-256 of code, arguments, skills, environment, blobs: with them it can be repeated"
    ),
    "output": {"type": ["object", "null"]},
    "output_blobs": STRINGS,
    "files": list_of(FILE, "left in /workspace/out"),
    "notes": STRINGS,
    "logs_preview": STRING,
    "logs_blob": TEXT_OR_NULL,
    "error": or_null(RUN_ERROR),
}
RUN_LINE = shape("RunLine", "a run in a list", _LINE)
RUN_RECORD = shape(
    "RunRecord",
    "the record of a run",
    {
        **_LINE,
        "guarantees": table_of(
            shape("Guarantee", "what a sandbox guarantees", {"attestor": STRING, "evidence": STRINGS}), "by name"
        ),
        "network": or_null(RUN_NETWORK),
        "needs": or_null(_RUN_NEEDS),
    },
)
RECORD_OR_BRIEF: Schema = {
    "anyOf": [
        RUN_RECORD,
        shape(
            "BriefRun",
            "what a model needs of a run",
            {
                "run_id": STRING,
                "status": _LINE["status"],
                "outcome": STRING,
                "summary": STRING,
                "output": OBJECT,
                "error": RUN_ERROR,
                "logs_preview": STRING,
                "output_blobs": STRINGS,
                "files": _LINE["files"],
                "interpreter": INTERPRETER,
            },
            optional="outcome summary output error logs_preview output_blobs files interpreter",
        ),
    ],
    "description": "with detail 'brief' the brief one",
}

# Blobs, skills, secrets, environments

BLOB = shape(
    "Blob",
    "what is known of a blob",
    {
        "blob_id": STRING,
        "kind": described(STRING, "MIME type"),
        "size_bytes": INTEGER,
        "sha256": STRING,
        "owner": STRING,
        "run_id": described(TEXT_OR_NULL, "the run that made it"),
        "created_at": NUMBER,
        "expires_at": NUMBER_OR_NULL,
    },
)
SKILL_ROW = shape(
    "SkillRow",
    "a skill in a list",
    {
        "name": STRING,
        "version": STRING,
        "description": STRING,
        "short_description": STRING,
        "namespace": STRING,
        "kind": STRING,
        "tags": STRINGS,
        "format": STRING,
    },
    optional="description short_description namespace kind tags format",
)
SKILL = shape(
    "Skill",
    "what a skill says of itself",
    {
        "name": STRING,
        "version": STRING,
        "versions": described(STRINGS, "all that are served, newest first"),
        "kind": {"type": "string", "enum": ["action", "instruction"]},
        "namespace": STRING,
        "format": STRING,
        "manifest": described(OBJECT, "skill.toml, or what stands for it"),
        "frontmatter": described(OBJECT, "of SKILL.md"),
        "import_name": described(STRING, "how code imports it"),
        "directory": described(STRING, "where runs see its files"),
        "dependencies": {"type": "array"},
        "skill_md": STRING,
        "skill_md_truncated": BOOLEAN,
        "file_names": STRINGS,
        "files": list_of(
            shape("SkillFile", "a file of a skill", {"path": STRING, "size_bytes": INTEGER, "sha256": STRING}), "all"
        ),
        "files_total": INTEGER,
    },
    optional="directory import_name dependencies frontmatter skill_md skill_md_truncated file_names files files_total",
)
FINDING = shape(
    "Finding",
    "what validation or review found",
    {
        "level": {"type": "string", "enum": ["error", "danger", "warning", "note"]},
        "file": STRING,
        "line": {"type": ["integer", "null"]},
        "rule": STRING,
        "message": STRING,
        "mend": STRING,
    },
)
APPROVAL = {
    "name": STRING,
    "version": STRING,
    "digest": STRING,
    "approved_at": NUMBER,
    "approved_by": STRING,
    "note": STRING,
}
SECRET = shape(
    "Secret",
    "what is known of a secret, without its value",
    {
        "name": STRING,
        "project": described(TEXT_OR_NULL, "null for every one"),
        "skills": described(TEXT_OR_NULL, "null for every one"),
        "delivery": {"type": "string", "enum": ["env", "gate"]},
        "hosts": STRINGS,
        "version": INTEGER,
        "created_at": NUMBER,
        "created_by": STRING,
        "used_at": NUMBER_OR_NULL,
        "versions": list_of(
            shape("SecretVersion", "kept", {"version": INTEGER, "created_at": NUMBER, "created_by": STRING}),
            "kept ones",
        ),
    },
)
SECRET_EVENT = shape(
    "SecretEvent",
    "a use or a change of a secret",
    {
        "at": NUMBER,
        "act": STRING,
        **dict.fromkeys(
            ("name", "scope", "version", "delivery", "principal", "project", "skill", "run_id", "reason"), STRING
        ),
    },
)
ENVIRONMENT = shape(
    "Environment",
    "a set of packages, and how far it is built",
    {
        "name": STRING,
        "state": STRING,
        "digest": STRING,
        "requirements": described(STRINGS, "what was asked for"),
        "distributions": table_of(STRING, "versions by name"),
        "modules": described(STRINGS, "what can be imported"),
        "lock": described(STRING, "exact versions and SHA-256, as a requirements file"),
        "platform": described(STRING, "the interpreter and the platform that it is built for"),
        "line": described(STRING, "what the build said last"),
        "error": STRING,
        "log": described(STRING, "the blob with the whole log of the build"),
        "size_bytes": INTEGER,
        "build_ms": NUMBER,
        "started_at": NUMBER,
        "built_at": NUMBER,
        "used_at": NUMBER,
    },
    optional="name digest distributions modules lock platform line error log size_bytes build_ms started_at built_at "
    "used_at",
)
DECISION: dict[str, Schema] = {
    "allowed": BOOLEAN,
    "layer": described(STRING, "the layer that decided"),
    "rule": STRING,
    "reason": STRING,
}

ENDPOINT = shape(
    "Endpoint",
    "a port of a service, as it is reached from outside",
    {
        "port": INTEGER,
        "path": described(STRING, "on this server, with a bearer token"),
        "host": described(
            {"type": ["string", "null"]}, "a name of its own, for browsers; skills.open_service opens it"
        ),
        "url": described(TEXT_OR_NULL, "of that name; null where no server listens"),
    },
)
