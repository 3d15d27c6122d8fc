"""Shows files of skills, blobs and logs as resources, and completes their addresses."""

from __future__ import annotations

import base64

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    PromptReference,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceTemplate,
    TextResourceContents,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillyard.domain.errors import InvalidInput, SkillyardError, shown
from skillyard.faces.mcp.caller import Callers, Context
from skillyard.faces.mcp.skills import SCHEME, SkillFace
from skillyard.values import dataclass

NOT_FOUND = -32002
"""The code of a resource that is not there, before 2026-07-28."""
BLOB, RUN, LOG = "blob://", "run://", "/log"
LOG_BYTES = 4 * 1024 * 1024
_PAGE = 1024 * 1024
_MOST_VALUES = 100
TEMPLATES = (
    ResourceTemplate(
        uri_template="skill://{name}/{+path}", name="skill file", description="A file of a skill, by its path."
    ),
    ResourceTemplate(uri_template="blob://{id}", name="blob", description="A blob of yours: blob:<id> of a result."),
    ResourceTemplate(
        uri_template="run://{run_id}/log", name="log", description="The log of a run.", mime_type="text/plain"
    ),
)


@dataclass(frozen=True, slots=True)
class ResourceFace:
    """Lists and reads resources that the caller may see."""

    callers: Callers
    skills: SkillFace

    async def listed(self, context: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        found, after = await self.skills.resources(context, params.cursor if params else None)
        return ListResourcesResult(resources=found, next_cursor=after)

    async def templates(self, _context: Context, _params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=list(TEMPLATES))

    async def read(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """Raises MCPError for an address that nothing of the caller's has."""
        try:
            return ReadResourceResult(contents=[await self._contents(context, params.uri)])
        except SkillyardError as error:
            found_code = INVALID_PARAMS if context.protocol_version in MODERN_PROTOCOL_VERSIONS else NOT_FOUND
            code = found_code if isinstance(error, InvalidInput) else error.code
            raise MCPError(code, error.message, {"uri": params.uri}) from None

    async def _contents(self, context: Context, uri: str) -> TextResourceContents | BlobResourceContents:
        if uri.startswith(SCHEME):
            data, kind = await self.skills.read(context, uri)
            return _of_bytes(uri, data, kind)
        if uri.startswith(BLOB):
            asked = {"blob_id": f"blob:{uri.removeprefix(BLOB)}", "mode": "full"}
            blob = await self.callers.call(context, "read_blob", asked)
            if blob["encoding"] == "utf-8":
                return TextResourceContents(uri=uri, mime_type=blob["kind"], text=blob["preview"])
            return BlobResourceContents(uri=uri, mime_type=blob["kind"], blob=blob["preview"])
        if uri.startswith(RUN) and uri.endswith(LOG):
            text = await self._log(context, uri.removeprefix(RUN).removesuffix(LOG))
            return TextResourceContents(uri=uri, mime_type="text/plain", text=text)
        raise InvalidInput("uri", "must begin with skill://, blob:// or run://", shown(uri))

    async def _log(self, context: Context, run_id: str) -> str:
        text, offset = "", 0
        while offset < LOG_BYTES:
            asked = {"run_id": run_id, "offset": offset, "max_bytes": _PAGE}
            page = await self.callers.call(context, "runs.logs", asked)
            text += str(page["content"])
            moved = int(page["next_offset"])
            if page["complete"] or moved == offset:
                return text
            offset = moved
        return f"{text}\n[cut after {LOG_BYTES} bytes]"

    async def complete(self, context: Context, params: CompleteRequestParams) -> CompleteResult:
        """Completes the parts of addresses. Prompts have one argument, which nobody can foresee."""
        values: list[str] = []
        if not isinstance(params.ref, PromptReference):
            values = await self._values(context, params, params.ref.uri)
        more = len(values) > _MOST_VALUES
        return CompleteResult(completion=Completion(values=values[:_MOST_VALUES], has_more=more))

    async def _values(self, context: Context, params: CompleteRequestParams, template: str) -> list[str]:
        start, known = params.argument.value, (params.context.arguments if params.context else None) or {}
        if template.startswith(SCHEME) and params.argument.name == "name":
            return await self.skills.complete_name(context, start)
        if template.startswith(SCHEME) and params.argument.name == "path" and "name" in known:
            return await self.skills.complete_path(context, known["name"], start)
        if template.startswith(RUN):
            page = await self.callers.call(context, "runs.list", {"limit": _MOST_VALUES})
            return [run["run_id"] for run in page["runs"] if run["run_id"].startswith(start)]
        if template.startswith(BLOB):
            page = await self.callers.call(context, "blobs.list", {"limit": _MOST_VALUES})
            ids = (blob["blob_id"].removeprefix("blob:") for blob in page["blobs"])
            return [one for one in ids if one.startswith(start)]
        return []


def _of_bytes(uri: str, data: bytes, kind: str) -> TextResourceContents | BlobResourceContents:
    try:
        return TextResourceContents(uri=uri, mime_type=kind, text=data.decode())
    except UnicodeDecodeError:
        return BlobResourceContents(uri=uri, mime_type=kind, blob=base64.b64encode(data).decode())
