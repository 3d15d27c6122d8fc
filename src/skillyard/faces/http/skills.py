"""``PUT /skills`` and ``GET /skills/{name}/{version}``: bundles in constant memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import asdict
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from skillyard.domain.skill.skill import Skill
from skillyard.engine.skills.publishing import EXPORT_TOOL, UPLOAD_TOOL, Publisher
from skillyard.faces.http import blobs, request
from skillyard.faces.http.blobs import Transfers, upload_type
from skillyard.faces.http.errors import UnsupportedMediaType
from skillyard.faces.http.guard import principal_of
from skillyard.faces.http.replies import end, reply, start
from skillyard.faces.http.request import HttpCaller
from skillyard.faces.rpc.wire import dumps
from skillyard.ports.skills import ArchiveForm, Exported

TYPES = frozenset(
    {
        *("application/zip", "application/x-zip-compressed"),
        *("application/gzip", "application/x-gzip", "application/x-tar", "application/octet-stream"),
    }
)
"""The accepted content types of a body; its bytes decide its form."""

MAX_FINDINGS = 100

_KINDS = {ArchiveForm.TAR_GZ: "application/gzip", ArchiveForm.ZIP: "application/zip"}


class SkillEndpoint(Transfers[Publisher]):
    """``/skills`` and ``/skills/{name}/{version}``."""

    async def _put(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check_upload(Headers(scope=scope))
        principal = principal_of(scope)
        principal.require_tool(UPLOAD_TOOL)
        stream = request.stream(scope, receive, self._most, self._pace)
        async with aclosing(stream), aclosing(self._counted(stream)) as chunks:
            outcome = await self._access().publish(principal, chunks)
        facts = outcome.facts()
        content = {**facts, "findings": [asdict(finding) for finding in outcome.findings[:MAX_FINDINGS]]}
        location = _path(facts["name"], facts["version"])
        await reply(send, 201 if outcome.created else 200, dumps(content), headers={"location": location})

    async def _counted(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        async for chunk in chunks:
            self._traffic.received(len(chunk))
            yield chunk

    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        form = wanted_form(headers.get("accept"))
        asked = scope["path_params"]
        principal = principal_of(scope)
        principal.require_tool(EXPORT_TOOL)
        skill = await self._access().find(principal, asked["name"], asked["version"])
        if blobs.matches(headers.get("if-none-match"), _tag(skill, form).removeprefix("W/")):
            await start(send, 304, _validators(skill, form))
        else:
            whole = scope["method"] == "GET"
            async with HttpCaller(receive, self._lifecycle) as caller:
                await caller.wait(
                    self._send(send, self._access().export(principal, skill, form), _describe(skill, form), whole=whole)
                )
        await end(send)

    async def _send(
        self, send: Send, exported: AbstractAsyncContextManager[Exported], headers: Mapping[str, str], *, whole: bool
    ) -> None:
        async with exported as archive:
            await start(send, 200, {**headers, "content-length": str(archive.size)})
            if not whole:
                return
            await self._send_chunks(send, archive.chunks)


def wanted_form(accept: str | None) -> ArchiveForm:
    """Returns zip where ``Accept`` ranks it above gzip, else tar.gz (RFC 9110 §12.5.1)."""
    ranks = {kind: rank for kind, rank in map(_ranked, (accept or "").split(",")) if rank > 0}
    wanted = {form: ranks.get(kind, 0.0) for form, kind in _KINDS.items()}
    return ArchiveForm.ZIP if wanted[ArchiveForm.ZIP] > wanted[ArchiveForm.TAR_GZ] else ArchiveForm.TAR_GZ


def _ranked(part: str) -> tuple[str, float]:
    kind, *parameters = (word.strip().lower() for word in part.split(";"))
    quality = next((word[2:] for word in parameters if word.startswith("q=")), "1")
    try:
        return kind, float(quality)
    except ValueError:
        return kind, 0.0


def _check_upload(headers: Headers) -> None:
    kind = upload_type(headers, "archive").partition(";")[0].strip().lower()
    if kind and kind not in TYPES:
        raise UnsupportedMediaType("Content-Type: must be application/zip, application/gzip or application/x-tar")


def _tag(skill: Skill, form: ArchiveForm) -> str:
    """Returns a weak tag: the files are the same bytes, and their compression depends on zlib."""
    return f'W/"{skill.digest}"' if form is ArchiveForm.TAR_GZ else f'W/"{skill.digest}.zip"'


def _validators(skill: Skill, form: ArchiveForm) -> dict[str, str]:
    return {
        "etag": _tag(skill, form),
        "cache-control": "private, no-cache",
        "vary": "accept",
        "content-location": _path(skill.name, skill.version),
    }


def _describe(skill: Skill, form: ArchiveForm) -> dict[str, str]:
    file = quote(f"{skill.name}-{skill.version}.{form}")
    return {
        **_validators(skill, form),
        "content-type": _KINDS[form],
        "content-disposition": f"attachment; filename*=UTF-8''{file}",
    }


def _path(name: str, version: str) -> str:
    return f"/skills/{quote(name, safe='')}/{quote(version, safe='+')}"
