"""Discovery methods (skills-protocol §3, §7): lists and descriptions of skills.

A skill that the caller may not use does not exist for it: it is left out, and asking for it by name gives
the same SkillNotFound as a name that nobody has.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from skillyard.domain.errors import FileNotFound, InvalidInput, SkillNotFound, shown
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Skill, SkillFile, SkillLine
from skillyard.engine.method import (
    BOOLEAN,
    CURSOR,
    INTEGER,
    SKILL_NAME,
    STRING,
    VERSION,
    Method,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.shapes import NEXT_CURSOR, SKILL, SKILL_ROW
from skillyard.engine.skills import cursor as cursors
from skillyard.engine.skills.service import SkillService
from skillyard.engine.text import clean, cut_head, show

GUIDE = "skills.protocol.guide"
PREVIEW_CHARACTERS = 2000
LARGEST_STEP = 501
"""Skills that are looked through at once for those that the caller may use."""
LISTED_FILES = 50
"""Names of files that a summary gives; the full description has all."""


async def list_skills(skills: SkillService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    lines, cursor = await page_of(skills, principal, params, await skills.disabled(principal.project))
    return {"skills": [_row(line, params["detail"]) for line in lines], "next_cursor": cursor}


async def page_of(
    skills: SkillService, principal: Principal, params: Mapping[str, Any], hidden: Collection[str]
) -> tuple[list[SkillLine], str | None]:
    """Returns a page of the skills that the principal may use, and the cursor of the next one.

    It leaves ``hidden`` names out."""
    revision = await skills.store.revision()
    after = None
    if params["cursor"] is not None:
        after = cursors.unseal(skills.cursor_key, revision, params["cursor"])
    limit = params["limit"]
    lines = await _usable(skills, principal, after, limit + 1, params.get("namespace"), hidden)
    more = cursors.seal(skills.cursor_key, revision, lines[limit - 1].name) if len(lines) > limit else None
    return lines[:limit], more


async def _usable(
    skills: SkillService,
    principal: Principal,
    after: str | None,
    limit: int,
    namespace: str | None,
    hidden: Collection[str],
) -> list[SkillLine]:
    """At most ``limit`` skills behind ``after`` that the principal may use. ``namespace`` ends on a dotted boundary:
    ``sales`` does not match ``salesforce.x`` (skills-protocol §11)."""
    found: list[SkillLine] = []
    ask = limit
    while len(found) < limit:
        page = await skills.store.page(after, ask, namespace)
        found += [line for line in page if principal.may_use(line.name) and line.name not in hidden]
        if len(page) < ask:
            break
        after, ask = page[-1].name, LARGEST_STEP
        await asyncio.sleep(0)  # others have their turn
    return found[:limit]


def _row(skill: SkillLine, detail: str) -> dict[str, Any]:
    if detail == "names":
        return {"name": skill.name, "version": skill.version}
    return {
        "name": skill.name,
        "version": skill.version,
        "description": skill.description,
        "namespace": skill.namespace,
        "kind": skill.kind.value,
        "tags": list(skill.tags),
        "short_description": skill.short_description,
        "format": skill.format.value,
    }


async def describe_skill(skills: SkillService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    skill = await skills.find(principal, params["name"], params.get("version"))
    described_skill = {
        "name": skill.name,
        "version": skill.version,
        "versions": list(await skills.store.versions(skill.name)),
        "kind": skill.kind.value,
        "namespace": skill.namespace,
        "format": skill.format.value,
        "manifest": dict(skill.manifest),
    }
    return {"skill": described_skill | _detail(skill, params["detail"])}


def _detail(skill: Skill, detail: str) -> dict[str, Any]:
    if detail == "manifest":
        return {}
    found = _inside(skill) | {"frontmatter": dict(skill.frontmatter), "files_total": len(skill.files)}
    if detail == "summary":
        return found | {
            "skill_md": skill.body[:PREVIEW_CHARACTERS],
            "skill_md_truncated": len(skill.body) > PREVIEW_CHARACTERS,
            "file_names": [file.path for file in skill.files[:LISTED_FILES]],
        }
    return found | {
        "skill_md": (skill.root / "SKILL.md").read_text(encoding="utf-8", errors="replace"),
        "skill_md_truncated": False,
        "files": [{"path": f.path, "size_bytes": f.size, "sha256": f.sha256} for f in skill.files],
    }


def _inside(skill: Skill) -> dict[str, Any]:
    """How a run that mounts the skill finds it."""
    return {
        "directory": f"/skills/{skill.name}",
        "import_name": f"skills.{skill.import_name}",
        "dependencies": list(skill.needs.dependencies),
    }


async def read_skill_file(skills: SkillService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    skill = await skills.find(principal, params["name"], params.get("version"))
    file = file_of(skill, params["path"])
    path, size, offset = file.path, file.size, params["offset"]
    async with skills.large_reads.place(min(params["max_bytes"], size)):
        data = await asyncio.to_thread(read_bytes, skill.root, path, offset, params["max_bytes"])
    whole = cut_head(data) if offset + len(data) < size else data
    content, encoding = show(data, text=False) if b"\0" in data else show(whole)
    taken = len(whole) if encoding == "utf-8" else len(data)
    return {
        "name": skill.name,
        "version": skill.version,
        "path": path,
        "content": content,
        "encoding": encoding,
        "mime_type": mimetypes.guess_type(path)[0] or _fallback_type(encoding),
        "size_bytes": size,
        "truncated": offset + taken < size,
        "next_offset": offset + taken if offset + taken < size else None,
    }


def file_of(skill: Skill, named: str) -> SkillFile:
    """Returns the file of a skill. Raises InvalidInput for a path that could leave its root, FileNotFound."""
    path = _checked_path(named)
    found = next((file for file in skill.files if file.path == path), None)
    if found is None:
        raise FileNotFound("path", f"the skill {skill.name} {skill.version} has no file '{path[:256]}'")
    return found


def _checked_path(path: str) -> str:
    """The path in its plain form. Raises InvalidInput for one that could leave the skill's root."""
    rule = None
    if clean(path) != path:
        rule = "must be Unicode text without lone surrogates"
    elif "\0" in path or "\\" in path:
        rule = "must not hold backslashes or NUL"
    elif path.startswith("/"):
        rule = "must be relative to the skill's root"
    elif ".." in path.split("/"):
        rule = "must not hold '..'"
    if rule:
        raise InvalidInput("path", rule, shown(path))
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def read_bytes(root: Path, path: str, offset: int, length: int) -> bytes:
    """Returns bytes of a file below a skill's root. Raises InvalidInput for one that leads out of it."""
    home = root.resolve()
    file = (home / path).resolve()
    if not file.is_relative_to(home):
        raise InvalidInput("path", "must stay inside the skill's root", shown(path))
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(length)


def _fallback_type(encoding: str) -> str:
    return "text/plain" if encoding == "utf-8" else "application/octet-stream"


async def load_guide(skills: SkillService, _caller: Principal, _params: Mapping[str, Any]) -> dict[str, Any]:
    """Everybody who may discover may read the guide, whatever skills the token names."""
    guide = await skills.store.get(GUIDE)
    return {"content": guide.body.lstrip("\n")}


TABLE = (
    Method(
        name="list_skills",
        doc="List the skills that the caller may use, sorted by name, one row for each.",
        params=obj(
            {
                "namespace": described(STRING, "only skills at or below this dotted name", maxLength=256),
                "detail": {
                    "type": "string",
                    "enum": ["names", "summary"],
                    "default": "names",
                    "description": "'summary' adds description, namespace, kind",
                },
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
                "cursor": CURSOR,
            }
        ),
        example={"detail": "summary", "limit": 20},
        result=answer({"skills": list_of(SKILL_ROW, "rows"), "next_cursor": NEXT_CURSOR}),
        scope=Scope.DISCOVER,
        surface="protocol",
        repeatable=True,
        handler=list_skills,
        service=SkillService,
    ),
    Method(
        name="describe_skill",
        doc="The manifest and documentation of one skill.",
        params=obj(
            {
                "name": SKILL_NAME,
                "detail": {
                    "type": "string",
                    "enum": ["manifest", "summary", "full"],
                    "default": "summary",
                    "description": "'summary' adds the start of SKILL.md and names of files, 'full' all of both",
                },
                "version": VERSION,
            },
            "name",
        ),
        example={"name": "examples.csv.summarize"},
        result=answer({"skill": SKILL}),
        scope=Scope.DISCOVER,
        errors=(SkillNotFound,),
        surface="protocol",
        repeatable=True,
        handler=describe_skill,
        service=SkillService,
    ),
    Method(
        name="read_skill_file",
        doc="Read a file of a skill, text as UTF-8 and anything else as base64.",
        params=obj(
            {
                "name": SKILL_NAME,
                "path": described(STRING, "relative to the skill's root", minLength=1, maxLength=4096),
                "version": VERSION,
                "max_bytes": {"type": "integer", "minimum": 1, "maximum": 4194304, "default": 262144},
                "offset": {"type": "integer", "minimum": 0, "maximum": 2**53, "default": 0},
            },
            "name",
            "path",
        ),
        example={"name": "examples.csv.summarize", "path": "SKILL.md"},
        result=answer(
            {
                "name": STRING,
                "version": STRING,
                "path": STRING,
                "content": STRING,
                "encoding": {"type": "string", "enum": ["utf-8", "base64"]},
                "mime_type": STRING,
                "size_bytes": INTEGER,
                "truncated": BOOLEAN,
                "next_offset": described({"type": ["integer", "null"]}, "null at the end"),
            }
        ),
        scope=Scope.DISCOVER,
        errors=(SkillNotFound, FileNotFound),
        surface="protocol",
        repeatable=True,
        handler=read_skill_file,
        service=SkillService,
    ),
    Method(
        name="load_skills_protocol_guide",
        doc="The guide that tells a model how to use these tools.",
        params=obj({}),
        result=answer({"content": STRING}),
        scope=Scope.DISCOVER,
        surface="protocol",
        repeatable=True,
        handler=load_guide,
        service=SkillService,
    ),
)
