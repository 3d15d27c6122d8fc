"""Shows skills as resources, prompts and tools, and by the skills extension.

The address of a file is ``skill://<name>/<path>``. Where the frontmatter of SKILL.md has another name, that stands as a
segment between both, since the extension wants it before the path.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote

from mcp_types import (
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    RequestParams,
    Resource,
    TextContent,
    Tool,
)

from skillyard.config.faces.mcp import APPROVED, NONE, McpSettings
from skillyard.domain.errors import InvalidInput, SkillNotFound, shown
from skillyard.domain.principal import Principal
from skillyard.engine.table import METHODS
from skillyard.faces.mcp import tools
from skillyard.faces.mcp.caller import Callers, Context
from skillyard.values import dataclass

SCHEME = "skill://"
EXTENSION = "io.modelcontextprotocol/skills"
FOLDER = "inode/directory"
_PAGE = 100
_MANY = 500
_MOST_FILES = 512
_MOST_BYTES = 16 * 1024 * 1024
"""Of one skill, by the extension."""
_PART = 4 * 1024 * 1024
_LONGEST_NAME, _DIGITS = 64, 24
_PLAIN = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*")
"""A name that can be read from the name of its tool."""
_BLOB = re.compile(r"blob:[A-Za-z0-9._-]{1,128}")
_MOST_BLOBS = 256
_TASK = PromptArgument(name="task", description="The task to do with the skill.", required=False)

IsApproved = Callable[[Principal, str], Awaitable[bool]]
"""Tells whether an operator approved the version that a skill's name means."""


@dataclass(frozen=True, slots=True)
class SkillFace:
    """Shows the skills that a caller may use."""

    settings: McpSettings
    callers: Callers
    approved: IsApproved

    async def resources(self, context: Context, cursor: str | None) -> tuple[list[Resource], str | None]:
        """Returns the SKILL.md of each skill of a page, and the cursor of the next."""
        rows, after = await self._page(context, cursor, _PAGE)
        found = []
        for row in rows:
            skill = await self._described(context, row["name"])
            about = row.get("description") or ""
            uri = address(skill, "SKILL.md")
            found.append(Resource(uri=uri, name=row["name"], description=about, mime_type="text/markdown"))
        return found, after

    async def read(self, context: Context, uri: str) -> tuple[bytes, str]:
        """Returns a file and its type. Raises InvalidInput for an address that no file has."""
        name, path = await self._place(context, uri)
        data, offset, kind = b"", 0, ""
        while True:
            asked = {"name": name, "path": path, "offset": offset, "max_bytes": _PART}
            part = await self.callers.call(context, "read_skill_file", asked)
            text, kind = part["content"], part["mime_type"]
            data += base64.b64decode(text) if part["encoding"] == "base64" else text.encode()
            if part["next_offset"] is None:
                return data, kind
            offset = part["next_offset"]

    async def prompts(self, context: Context, params: PaginatedRequestParams | None) -> ListPromptsResult:
        """Returns a prompt for each instruction skill of a page; a page may have none of them."""
        rows, after = await self._page(context, params.cursor if params else None, _MANY)
        prompts = [
            Prompt(name=row["name"], title=row.get("short_description") or None, description=row["description"],
                   arguments=[_TASK])
            for row in rows
            if row["kind"] == "instruction"
        ]  # fmt: skip
        return ListPromptsResult(prompts=prompts, next_cursor=after)

    async def prompt(self, context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        skill = await self._described(context, params.name, "full")
        if skill["kind"] != "instruction":
            raise InvalidInput("name", "is not an instruction skill; run it with execute_skill", shown(params.name))
        others = [file["path"] for file in skill["files"] if file["path"] != "SKILL.md"]
        text = f"Follow the skill '{skill['name']}'.\n\n{skill['skill_md']}"
        if others:
            text += f"\n\nIts other files, for read_skill_file or as {address(skill, '…')}: {', '.join(others[:50])}"
        if task := (params.arguments or {}).get("task"):
            text += f"\n\nThe task: {task}"
        message = PromptMessage(role="user", content=TextContent(type="text", text=text))
        return GetPromptResult(description=skill["frontmatter"].get("description"), messages=[message])

    async def complete_name(self, context: Context, start: str) -> list[str]:
        """Returns names of skills that begin so."""
        found: list[str] = []
        async for row in self._rows(context):
            if row["name"].startswith(start):
                found.append(row["name"])
            if len(found) > _PAGE:
                break
        return found

    async def complete_path(self, context: Context, name: str, start: str) -> list[str]:
        """Returns paths within a skill's address that begin so."""
        try:
            skill = await self._described(context, name, "full")
        except SkillNotFound:
            return []
        below = f"{SCHEME}{quote(name)}/"
        paths = [unquote(address(skill, file["path"]).removeprefix(below)) for file in skill["files"]]
        return [path for path in paths if path.startswith(start)]

    async def tools(self, context: Context) -> dict[str, Mapping[str, Any]]:
        """Returns the skills that are tools of their own, by the names of the tools."""
        exposed, principal = self.settings.expose_skills, self.callers.principal_of(context)
        found: dict[str, Mapping[str, Any]] = {}
        if exposed == NONE or "execute_skill" not in tools.offered(self.settings, principal):
            return found
        async for row in self._rows(context):
            if len(found) == self.settings.most_skill_tools:
                break
            if row["kind"] != "action":
                continue
            if exposed == APPROVED:
                chosen = await self.approved(principal, row["name"])
            else:
                chosen = any(fnmatchcase(row["name"], pattern) for pattern in exposed)
            if chosen:
                found[tool_name(row["name"])] = row
        return found

    async def tool(self, context: Context, name: str, row: Mapping[str, Any]) -> Tool:
        """Returns a skill as a tool, with its own schema of arguments."""
        skill = await self._described(context, row["name"], "manifest")
        inputs = skill["manifest"].get("inputs")
        schema = inputs if isinstance(inputs, dict) and inputs.get("type") == "object" else {"type": "object"}
        run = METHODS["execute_skill"]
        return Tool(
            name=name,
            title=row.get("short_description") or row["name"],
            description=f"{row['description']} (The skill {row['name']} {row['version']}, run in a fresh sandbox.)",
            input_schema=schema,
            output_schema=tools.plain(run.result),
            annotations=tools.annotations_of(run),
        )

    async def skills_list(self, context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
        """Answers ``skills/list``."""
        rows, after = await self._page(context, params.cursor, _PAGE)
        skills = [await self._entry(context, row["name"]) for row in rows]
        return {"skills": skills, **({"nextCursor": after} if after else {}), **FRESH}

    async def skills_get(self, context: Context, params: UriParams) -> dict[str, Any]:
        """Answers ``skills/get``. Raises InvalidInput for an address that is not of a SKILL.md."""
        name, path = await self._place(context, params.uri)
        if path != "SKILL.md":
            raise InvalidInput("uri", "must be the address of a SKILL.md", shown(params.uri))
        return {"skill": await self._entry(context, name), **FRESH}

    async def folder(self, context: Context, params: UriParams) -> dict[str, Any]:
        """Answers ``resources/directory/read``: what lies in a folder of a skill."""
        name, path = await self._place(context, params.uri.rstrip("/") + "/SKILL.md")
        skill, below = await self._described(context, name, "full"), path.removesuffix("SKILL.md")
        inside = [file for file in skill["files"] if file["path"].startswith(below)]
        if not inside:
            raise InvalidInput("uri", "is not a folder of a skill", shown(params.uri))
        found: dict[str, dict[str, Any]] = {}
        for file in inside:
            child, _, rest = file["path"].removeprefix(below).partition("/")
            told = {"uri": address(skill, below + child), "name": child}
            found[child] = {**told, "mimeType": FOLDER} if rest else {**told, "size": file["size_bytes"]}
        return {"resources": [found[child] for child in sorted(found)], **FRESH}

    async def _entry(self, context: Context, name: str) -> dict[str, Any]:
        skill = await self._described(context, name, "full")
        files = skill["files"]
        small = len(files) <= _MOST_FILES and sum(file["size_bytes"] for file in files) <= _MOST_BYTES
        listed = [
            {"uri": address(skill, file["path"]), "digest": f"sha256:{file['sha256']}", "size": file["size_bytes"]}
            for file in files
        ]
        return {
            "uri": address(skill, "SKILL.md"),
            "frontmatter": skill["frontmatter"],
            "resources": listed if small else "dynamic",
        }

    async def _place(self, context: Context, uri: str) -> tuple[str, str]:
        """Returns the skill and the path of an address."""
        name, _, path = (unquote(part) for part in uri.removeprefix(SCHEME).partition("/"))
        skill = await self._described(context, name)
        between = _between(skill)
        if not uri.startswith(SCHEME) or not path.startswith(between) or path == between:
            raise InvalidInput("uri", f"must be {address(skill, '<path>')}", shown(uri))
        return name, path.removeprefix(between)

    async def _described(self, context: Context, name: str, detail: str = "summary") -> dict[str, Any]:
        asked = {"name": name, "detail": detail}
        skill: dict[str, Any] = (await self.callers.call(context, "describe_skill", asked))["skill"]
        return skill

    async def _page(self, context: Context, cursor: str | None, limit: int) -> tuple[list[dict[str, Any]], str | None]:
        asked = {"detail": "summary", "limit": limit, **({} if cursor is None else {"cursor": cursor})}
        page = await self.callers.call(context, "list_skills", asked)
        return page["skills"], page["next_cursor"]

    async def _rows(self, context: Context) -> AsyncIterator[dict[str, Any]]:
        cursor: str | None = None
        while True:
            rows, cursor = await self._page(context, cursor, _MANY)
            for row in rows:
                yield row
            if cursor is None:
                return


class UriParams(RequestParams):
    uri: str
    cursor: str | None = None


FRESH: Mapping[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""Members of each answer of the extension. Skills change at any time."""


def _between(skill: Mapping[str, Any]) -> str:
    name = (skill.get("frontmatter") or {}).get("name")
    return f"{name}/" if isinstance(name, str) and name and name != skill["name"] else ""


def address(skill: Mapping[str, Any], path: str) -> str:
    return f"{SCHEME}{quote(skill['name'])}/{quote(_between(skill) + path)}"


def tool_name(skill: str) -> str:
    """Returns the name of a skill's tool. No method has a name that begins so."""
    name = f"skill_{skill.replace('.', '_')}"
    if len(name) <= _LONGEST_NAME and _PLAIN.fullmatch(skill):
        return name
    # Two underscores are in no plain name, and the digest is too long to be met: no skill takes the tool of another.
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: _LONGEST_NAME - 2 - _DIGITS]
    return f"{stem}__{sha256(skill.encode()).hexdigest()[:_DIGITS]}"


def blobs_in(value: Any) -> list[str]:
    """Returns the ids of blobs that arguments mention, so that the run may read them."""
    found: dict[str, None] = {}
    waiting = [value]
    while waiting and len(found) < _MOST_BLOBS:
        one = waiting.pop()
        if isinstance(one, str) and _BLOB.fullmatch(one):
            found[one] = None
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return list(found)
