"""Puts the face together over a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_types import CallToolResult

from skillyard.domain.errors import SkillyardError
from skillyard.domain.principal import Principal
from skillyard.faces.mcp.approvals import Approvals
from skillyard.faces.mcp.caller import Callers, Context
from skillyard.faces.mcp.changes import Changes
from skillyard.faces.mcp.following import Following, LogLevels
from skillyard.faces.mcp.resources import ResourceFace
from skillyard.faces.mcp.server import Parts, result_of
from skillyard.faces.mcp.servers import ServerFace
from skillyard.faces.mcp.skills import SkillFace
from skillyard.faces.mcp.tasks import TaskFace
from skillyard.faces.news import News
from skillyard.ports.records import RecordStore
from skillyard.runtime import Runtime


def parts_of(runtime: Runtime, callers: Callers, news: News) -> Parts:
    """Returns the parts over the methods of a runtime, which may be opened later. ``news`` observes it."""
    settings, levels = runtime.settings, LogLevels()

    async def approved(principal: Principal, name: str) -> bool:
        skills = runtime.app.skills
        return (await skills.standings.standing_of(await skills.find(principal, name))).approved

    async def calls_tools(principal: Principal, params: Mapping[str, Any]) -> bool:
        name, version = params.get("name"), params.get("version")
        if not isinstance(name, str) or not isinstance(version, str | None):
            return False  # the method says what is wrong
        try:
            return bool((await runtime.app.skills.find(principal, name, version)).needs.tools)
        except SkillyardError:
            return False

    def records() -> RecordStore:
        return runtime.app.ports.records

    async def revision() -> str:
        return f"{await runtime.app.skills.store.revision()}-{news.count}"

    async def answer(context: Context, value: Mapping[str, Any]) -> CallToolResult:
        return await result_of(callers, context, value, runs=True)

    skills = SkillFace(settings.mcp, callers, approved)
    changes = Changes(revision, callers.principal_of, settings.mcp.sessions, settings.mcp.sessions_each)
    news.heard = changes.soon
    return Parts(
        settings.mcp,
        callers,
        Following(records, lambda: runtime.app.history, levels),
        levels,
        skills,
        ResourceFace(callers, skills),
        Approvals(callers, settings.mcp.approvals == "ask"),
        TaskFace(callers, lambda: runtime.app.history, answer, settings.records.ttl_s, calls_tools, records),
        changes,
        ServerFace(callers, bool(settings.mcp.servers)),
    )
