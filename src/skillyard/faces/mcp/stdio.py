"""``skillyard mcp``: serves one client on stdio with a runtime in this process."""

from __future__ import annotations

import logging
from dataclasses import replace

from mcp.server.stdio import stdio_server

from skillyard.config.settings import Settings
from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.principal import LOCAL, Principal
from skillyard.engine.table import invoke
from skillyard.faces.mcp.assembly import parts_of
from skillyard.faces.mcp.caller import Callers, Context
from skillyard.faces.mcp.server import server_of
from skillyard.faces.news import News
from skillyard.runtime import Runtime


async def serve_stdio(settings: Settings, principal: Principal) -> None:
    """Serves until the client closes standard input; then every run of its calls is ended.

    Raises the errors of a runtime's start.
    """
    logging.getLogger("mcp").setLevel(logging.ERROR)
    news = News()
    opened = Runtime(settings=settings, principal=principal, observer=news.observe)
    async with stdio_server() as (incoming, outgoing), opened as runtime:

        async def call(who: Principal, name: str, params: dict[str, object]) -> dict[str, object]:
            return await invoke(runtime.app, who, name, params)

        def of_client(_context: Context) -> Principal:
            return runtime.bound(principal)

        parts = parts_of(runtime, Callers(call, of_client), news)
        server = server_of(parts)
        try:
            await server.run(incoming, outgoing, server.create_initialization_options())
        finally:
            parts.changes.close()


def client_of(settings: Settings, profile: str | None) -> Principal:
    """Returns the local user, with a profile where one is named. Raises InvalidInput for one that is not there."""
    if profile is None:
        return LOCAL
    if profile not in settings.profiles:
        known = ", ".join(sorted(settings.profiles)) or "none"
        raise InvalidInput("--profile", f"is not a profile of the settings; known are {known}", shown(profile))
    return replace(LOCAL, profile=profile)
