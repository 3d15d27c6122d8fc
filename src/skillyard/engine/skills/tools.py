"""The tools ``skills.*`` of the catalogue, for agents and for those who publish.

Each is of one agent of the token's project, which a call may name where the token allows it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from skillyard.domain.checks import check_unicode
from skillyard.domain.errors import (
    BlobNotFound,
    BundleRefused,
    Busy,
    FileNotFound,
    Forbidden,
    InvalidInput,
    ProtectionMissing,
    QuotaExceeded,
    SandboxFault,
    SkillNotFound,
    VersionTaken,
    shape,
)
from skillyard.domain.principal import Principal, Scope, agent_scope
from skillyard.domain.skill.publication import MAX_REASON
from skillyard.engine.blobs.service import owned_blob
from skillyard.engine.commands.service import SUCCEEDED, CommandService
from skillyard.engine.method import (
    AGENT,
    BLOB_ID,
    BOOLEAN,
    CURSOR,
    INTEGER,
    NUMBER,
    SKILL_NAME,
    STRING,
    VERSION,
    Handler,
    Method,
    Schema,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.runs.failure import Refused
from skillyard.engine.runs.grant import Granter
from skillyard.engine.runs.plan import Planner
from skillyard.engine.sessions.methods import SESSION_PARAMS
from skillyard.engine.sessions.service import SessionService
from skillyard.engine.shapes import FINDING, NEXT_CURSOR, SESSION_TIMES, TEXT_OR_NULL
from skillyard.engine.skills.discovery import file_of, page_of, read_bytes
from skillyard.engine.skills.publishing import UPLOAD_TOOL, Publisher
from skillyard.engine.skills.service import SkillService
from skillyard.engine.text import show
from skillyard.ports.blobs import BlobStore
from skillyard.values import dataclass

Params = Mapping[str, Any]

MOST_LOADED = 4 * 1024 * 1024
"""Bytes of a file that one answer holds."""
ACTIVATE_S, MOST_ACTIVATE_S = 60, 120
"""Seconds that an activation may take: by default, and at most."""
MAX_FINDINGS = 100
_AGAIN_MS = 5000
_UNFIT = {"PolicyRefused": Forbidden, "SandboxError": SandboxFault}
"""The errors in place of what a run would be refused with; others come as Forbidden."""


@dataclass(frozen=True, slots=True)
class SkillTools:
    """The catalogue as agents use it."""

    skills: SkillService
    publisher: Publisher
    blobs: BlobStore
    planner: Planner
    granter: Granter
    commands: CommandService
    sessions: SessionService


async def list_(tools: SkillTools, principal: Principal, params: Params) -> dict[str, Any]:
    off = await tools.skills.disabled(principal.project)
    lines, cursor = await page_of(tools.skills, principal, params, off if params["enabled_only"] else ())
    return {
        "skills": [
            {
                "skill_name": line.name,
                "version": line.version,
                "version_hash": line.digest,
                "description": line.description,
                "kind": line.kind.value,
                "enabled": line.name not in off,
            }
            for line in lines
        ],
        "next_cursor": cursor,
    }


async def load(tools: SkillTools, principal: Principal, params: Params) -> dict[str, Any]:
    skill = await tools.skills.find(principal, params["skill_name"], params.get("version"), "skill_name")
    file = file_of(skill, params["path"])
    if file.size > MOST_LOADED:
        rule = f"has {file.size} bytes, and one answer holds {MOST_LOADED}; read it in parts with read_skill_file"
        raise InvalidInput("path", rule, size_bytes=file.size, maximum=MOST_LOADED)
    async with tools.skills.large_reads.place(file.size):
        data = await asyncio.to_thread(read_bytes, skill.root, file.path, 0, file.size)
        content, encoding = show(data, text=b"\0" not in data)
    alias, used = params.get("session_id"), {}
    if alias is not None:
        used = await tools.sessions.touch(agent_scope(principal, params.get("agent")), alias)
        used["session_root"] = "/workspace"
    return {
        "skill_name": skill.name,
        "version": skill.version,
        "version_hash": skill.digest,
        "path": file.path,
        "content": content,
        "encoding": encoding,
        "bytes": file.size,
        "sha256": file.sha256,
        **used,
    }


async def activate(tools: SkillTools, principal: Principal, params: Params) -> dict[str, Any]:
    """Raises Busy when the packages are not built in time; the build goes on."""
    skill = await tools.skills.find(principal, params["skill_name"], params.get("version"), "skill_name")
    plan = await tools.planner.ahead(principal, skill)
    seconds = params["timeout_sec"]
    try:
        async with asyncio.timeout(seconds):
            environment = await tools.granter.prepare(plan)
    except TimeoutError:
        rule = f"timeout_sec: the packages of '{skill.name}' are still being built after {seconds} s"
        raise Busy(f"{rule}; activate it again, the build goes on", retry_after_ms=_AGAIN_MS) from None
    except Refused as refusal:
        raise _UNFIT.get(refusal.type, Forbidden)(f"skill_name: {refusal.message}", skill=skill.name) from None
    used = {} if params.get("session_id") is None else await _begun(tools, principal, params)
    return {
        "mode": "remote" if plan.offer.backend.nature.remote else "local",
        "skill_name": skill.name,
        "version": skill.version,
        "version_hash": skill.digest,
        "local_dir": f"/skills/{skill.name}",
        "active_path": "skill",
        "dest_dir": "/workspace/skill",
        "environment": environment.ref.digest,
        **used,
    }


async def _begun(tools: SkillTools, principal: Principal, params: Params) -> dict[str, Any]:
    """Makes the session ready with the skill's writable files. Returns when it ends.

    Raises what a command there raises, and SandboxFault for one that failed.
    """
    known = {
        name: params[name] for name in ("skill_name", "version", "session_id", "wait_ms", "agent") if name in params
    }
    ran = await tools.commands.run(principal, {**known, "command": ":", "language": "bash", "workdir": "."})
    if ran["status"] != SUCCEEDED:
        raise SandboxFault(f"session_id: the session cannot be made ready: {ran['error_message']}")
    return {name: ran[name] for name in SESSION_TIMES}


async def upload(tools: SkillTools, principal: Principal, params: Params) -> dict[str, Any]:
    done = await tools.publisher.publish(principal, await _archive(tools, principal, params))
    told = done.publication
    if params["activate"]:
        await tools.publisher.pin(principal, told.name, told.version)
    return {
        "skill_name": told.name,
        "version": told.version,
        "version_hash": told.digest,
        "bytes": told.size,
        "files": told.files,
        "created": done.created,
        "active_version": await tools.publisher.latest(told.name),
        "findings": [asdict(finding) for finding in done.findings[:MAX_FINDINGS]],
    }


async def _archive(tools: SkillTools, principal: Principal, params: Params) -> AsyncIterator[bytes]:
    blob_id, content = params.get("blob_id"), params.get("content")
    if blob_id is not None and content is None:
        return tools.blobs.read((await owned_blob(tools.blobs, principal, blob_id)).blob_id)
    if content is None or blob_id is not None:
        raise InvalidInput("content", "must be given, or blob_id in its place")
    try:
        return _once(await asyncio.to_thread(base64.b64decode, content, validate=True))
    except (binascii.Error, ValueError):
        raise InvalidInput("content", "must be base64 (RFC 4648 §4)", shape(content)) from None


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def set_version(tools: SkillTools, principal: Principal, params: Params) -> dict[str, Any]:
    done = await tools.publisher.pin(principal, params["skill_name"], params["version"])
    changed = {"version": done["version"], "version_hash": done["digest"], "changed": done["changed"]}
    return {"skill_name": done["name"], **changed}


async def disable(tools: SkillTools, principal: Principal, params: Params) -> dict[str, Any]:
    name, enabled = params["skill_name"], params["enabled"]
    changed = await tools.publisher.set_enabled(principal, name, enabled=enabled)
    return {"skill_name": name, "project": principal.project, "enabled": enabled, "changed": changed}


async def delete(tools: SkillTools, principal: Principal, params: Params) -> dict[str, Any]:
    name, version, reason = params["skill_name"], params.get("version"), params["reason"]
    check_unicode("reason", reason)
    if version is None:
        gone = await tools.publisher.withdraw_all(principal, name, reason)
    else:
        gone = [await tools.publisher.withdraw(principal, name, version, reason)]
    return {
        "skill_name": name,
        "deleted": [{"version": each["version"], "version_hash": each["digest"]} for each in gone if each["changed"]],
        "active_version": await tools.publisher.latest(name),
    }


_HASH = described(STRING, "SHA-256 over the paths, modes and bytes of its files")
_ACTIVE = described(TEXT_OR_NULL, "the version that the name alone means; null when none is served")
_FINDS = (SkillNotFound,)


def _tool(
    name: str,
    doc: str,
    params: Mapping[str, Schema],
    required: str,
    result: Mapping[str, Schema],
    call: Callable[[SkillTools, Principal, Params], Awaitable[dict[str, Any]]],
    errors: tuple[type[Any], ...],
    example: Mapping[str, Any],
    *,
    scope: Scope = Scope.PUBLISH,
    repeatable: bool = False,
    builds: bool = False,
) -> Method[SkillTools]:
    async def scoped(tools: SkillTools, principal: Principal, params: Params) -> dict[str, Any]:
        agent_scope(principal, params.get("agent"))
        try:
            return await call(tools, principal, params)
        except SkillNotFound as error:
            if error.field != "name":
                raise
            raise SkillNotFound("skill_name", error.rule, skill=params.get("skill_name")) from None

    handler: Handler[SkillTools] = scoped
    return Method(
        name=f"skills.{name}",
        doc=doc,
        params=obj({**params, "agent": AGENT}, *required.split()),
        result=answer(result, optional=f"{' '.join(SESSION_TIMES)} session_root"),
        scope=scope,
        errors=(*errors, Forbidden),
        repeatable=repeatable,
        builds=builds,
        example=example,
        handler=handler,
        service=SkillTools,
    )


_NAME = {"skill_name": described(SKILL_NAME, "the skill's name")}
_EXACT: Schema = {**VERSION, "description": "the exact version"}

TABLE = (
    _tool(
        "list",
        "List the skills that the caller may use, sorted by name, with the version that each name means.",
        {
            "namespace": described(STRING, "only skills at or below this dotted name", maxLength=256),
            "enabled_only": described(BOOLEAN, "without those that the project has disabled", default=False),
            "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
            "cursor": CURSOR,
        },
        "",
        {
            "skills": list_of(
                answer(
                    {
                        "skill_name": STRING,
                        "version": STRING,
                        "version_hash": _HASH,
                        "description": STRING,
                        "kind": STRING,
                        "enabled": described(BOOLEAN, "false: no agent of the project may use it"),
                    }
                ),
                "by name",
            ),
            "next_cursor": NEXT_CURSOR,
        },
        list_,
        (),
        {"limit": 20},
        scope=Scope.DISCOVER,
        repeatable=True,
    ),
    _tool(
        "load",
        "Read a file of a skill, SKILL.md unless another is named.",
        {
            **_NAME,
            "path": described(STRING, "relative to the skill's root", minLength=1, maxLength=4096, default="SKILL.md"),
            "version": VERSION,
            "session_id": described(STRING, "counts as a use of that session, if there is one", maxLength=64),
        },
        "skill_name",
        {
            "skill_name": STRING,
            "version": STRING,
            "version_hash": _HASH,
            "path": STRING,
            "content": STRING,
            "encoding": {"type": "string", "enum": ["utf-8", "base64"]},
            "bytes": described(INTEGER, "of the file"),
            "sha256": described(STRING, "of the file"),
            **SESSION_TIMES,
            "session_root": described(STRING, "where a session's commands find what earlier ones left"),
        },
        load,
        (SkillNotFound, FileNotFound),
        {"skill_name": "examples.csv.summarize"},
        scope=Scope.DISCOVER,
        repeatable=True,
    ),
    _tool(
        "activate",
        "Make a skill ready for commands: its packages are built, and an interpreter with them is at hand.",
        {
            **_NAME,
            "version": VERSION,
            "timeout_sec": {
                **NUMBER,
                "minimum": 1,
                "maximum": MOST_ACTIVATE_S,
                "default": ACTIVATE_S,
                "description": "how long to wait for its packages; a build goes on after that",
            },
            **SESSION_PARAMS,
        },
        "skill_name",
        {
            "mode": described(STRING, "'local': sandboxes are on this host; 'remote': a provider makes them"),
            "skill_name": STRING,
            "version": STRING,
            "version_hash": _HASH,
            "local_dir": described(STRING, "where commands find its files, read-only"),
            "active_path": described(STRING, "the working directory with its files, which commands may write to"),
            "dest_dir": described(STRING, "the real path of that directory, below $HOME"),
            "environment": described(STRING, "the digest of the environment with its packages"),
            **SESSION_TIMES,
        },
        activate,
        (SkillNotFound, Busy, SandboxFault, QuotaExceeded, ProtectionMissing),
        {"skill_name": "examples.csv.summarize"},
        scope=Scope.EXECUTE,
        builds=True,
    ),
    _tool(
        UPLOAD_TOOL.removeprefix("skills."),
        "Publish a skill: a zip, tar or tar.gz with one bundle, as base64 or from a blob.",
        {
            "content": described(STRING, "the archive as base64"),
            "blob_id": described(BLOB_ID, "the blob with the archive, in place of content"),
            "activate": described(BOOLEAN, "pin it: the name alone means this version", default=True),
        },
        "",
        {
            "skill_name": STRING,
            "version": STRING,
            "version_hash": _HASH,
            "bytes": described(INTEGER, "of its files"),
            "files": described(INTEGER, "their number"),
            "created": described(BOOLEAN, "false when the same bytes were published before"),
            "active_version": _ACTIVE,
            "findings": list_of(FINDING, "warnings and notes"),
        },
        upload,
        (BundleRefused, VersionTaken, QuotaExceeded, BlobNotFound, Busy),
        {"blob_id": "blob:EXAMPLE"},
    ),
    _tool(
        "set_version",
        "Choose which version a skill's name alone means.",
        {**_NAME, "version": _EXACT},
        "skill_name version",
        {
            "skill_name": STRING,
            "version": STRING,
            "version_hash": _HASH,
            "changed": described(BOOLEAN, "false when it was chosen before"),
        },
        set_version,
        _FINDS,
        {"skill_name": "acme.words.say", "version": "1.0.0"},
    ),
    _tool(
        "disable",
        "Let no agent of the project use a skill, in any version, or with enabled let them use it again.",
        {**_NAME, "enabled": described(BOOLEAN, "true lets them use it again", default=False)},
        "skill_name",
        {
            "skill_name": STRING,
            "project": STRING,
            "enabled": BOOLEAN,
            "changed": described(BOOLEAN, "false when it was so before"),
        },
        disable,
        _FINDS,
        {"skill_name": "acme.words.say"},
    ),
    _tool(
        "delete",
        "Serve a published version, or all of a skill, no longer. Names, versions and content stay taken.",
        {
            **_NAME,
            "version": {**VERSION, "description": "the exact version; every version when omitted"},
            "reason": described(STRING, "told to callers that ask for it", maxLength=MAX_REASON, default=""),
        },
        "skill_name",
        {
            "skill_name": STRING,
            "deleted": list_of(answer({"version": STRING, "version_hash": _HASH}), "newest first"),
            "active_version": _ACTIVE,
        },
        delete,
        _FINDS,
        {"skill_name": "acme.words.say", "version": "1.1.0"},
    ),
)
