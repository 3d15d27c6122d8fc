"""The tools of all MCP servers: which are offered, which are held back, and their approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from skillyard.config.gateway.servers import McpServer
from skillyard.domain.errors import InvalidInput, ToolNotFound, shown
from skillyard.domain.principal import Principal
from skillyard.domain.tool import Tool, ToolRow, ToolState, offered_name
from skillyard.engine.observer import Observer, ToolsChanged
from skillyard.ports.clock import Clock
from skillyard.ports.tools import ToolStore
from skillyard.values import dataclass

_CALL = "tools.call"
"""The method whose right code needs too, though it calls tools by another way."""
_HELD = {
    ToolState.NEW: "no operator has approved it",
    ToolState.CHANGED: "its server describes it in other words since it was approved",
    ToolState.GONE: "its server has it no more",
}


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool that a principal may call, as it was approved."""

    server: str
    tool: Tool

    @property
    def name(self) -> str:
        return offered_name(self.server, self.tool.name)


class ToolCatalogue:
    """Judges tools by the settings, by approvals and by the rights of principals."""

    def __init__(self, servers: Mapping[str, McpServer], store: ToolStore, clock: Clock, emit: Observer) -> None:
        self.servers = servers
        self._store = store
        self._clock = clock
        self._emit = emit
        self._known: dict[str, frozenset[tuple[str, str]]] = {}
        """The definitions that each server had when they were noted last."""
        self._rows: dict[str, dict[str, ToolRow]] = {}
        """The rows of servers that were called. All changes of the store go through this catalogue."""
        self._changes = 0

    async def note(self, server: str, tools: Sequence[Tool]) -> None:
        """Notes the definitions that a server gives now. Its first ones are approved where settings say so."""
        known = frozenset((tool.name, tool.digest) for tool in tools)
        if self._known.get(server) == known:
            return
        first = self.servers[server].approve_first and not await self._store.rows(server)
        try:
            await self._store.note(server, tools, self._clock.now())
            for tool in tools if first else ():
                if not tool.hidden:
                    by, now = "settings", self._clock.now()
                    await self._store.approve(server, tool.name, tool.digest, by, now)
        finally:  # also where a caller is cancelled while the store writes
            self._changed(server)
        self._known[server] = known

    def _changed(self, server: str) -> None:
        """Forgets what was read before a change, and what is being read. Clients are told."""
        self._changes += 1
        self._rows.clear()
        self._emit(ToolsChanged(server))

    async def _row(self, server: str, name: str) -> ToolRow | None:
        rows = self._rows.get(server)
        if rows is None:
            began = self._changes
            rows = {row.name: row for row in await self._store.rows(server)}
            if self._changes == began:
                self._rows[server] = rows
        return rows.get(name)

    async def offered(self, principal: Principal) -> list[Offered]:
        """Returns the tools that a principal may call, by server and name."""
        return [
            Offered(row.server, row.approved)
            for row in await self._store.rows()
            if row.approved is not None
            and row.state is ToolState.APPROVED
            and self.may(principal, row.server, row.name)
        ]

    def may(self, principal: Principal, server: str, name: str) -> bool:
        """Returns whether settings offer a tool, and the principal's profile allows calls and it."""
        section = self.servers.get(server)
        listed = section is not None and any(fnmatchcase(name, pattern) for pattern in section.tools)
        return listed and principal.may_call(_CALL) and principal.may_call(offered_name(server, name))

    async def find(self, principal: Principal, server: str, name: str) -> Offered:
        """Returns a tool that may be called. Raises ToolNotFound, which says why another may not."""
        if not self.may(principal, server, name):
            named = f"{shown(server)} has no tool {shown(name)} for this token"
            raise ToolNotFound("tool", f"{named}; tools.list names those that it may call")
        row = await self._row(server, name)
        if row is None:
            rule = f"nothing is known of {shown(name)} of '{server}'; an operator lists and approves it"
            raise ToolNotFound("tool", f"{rule}: `skillyard tools refresh {server}`")
        if row.approved is None or row.state is not ToolState.APPROVED:
            raise held_back(server, name, _HELD[row.state])
        return Offered(server, row.approved)

    async def rows(self, server: str | None = None) -> list[ToolRow]:
        """Returns all that is known of the servers of the settings."""
        return [row for row in await self._store.rows(server) if row.server in self.servers]

    async def approve(self, server: str, names: Sequence[str], digests: Mapping[str, str], by: str) -> list[ToolRow]:
        """Approves the latest definitions of tools; all that are held back where ``names`` is empty.

        ``digests`` are of the definitions that were looked at, by name. Raises ToolNotFound, InvalidInput for a
        definition with invisible characters and for one that is not the latest.
        """
        rows = {row.name: row for row in await self.rows(server) if row.seen is not None}
        wanted = names or [name for name, row in rows.items() if row.state is not ToolState.APPROVED]
        for name in wanted:
            row = rows.get(name)
            if row is None or row.seen is None:
                raise ToolNotFound("tools", f"'{server}' has no tool {shown(name)}; `skillyard tools list` shows them")
            if hidden := row.seen.hidden:
                rule = f"'{name}' has the invisible character {hidden} in its definition, and is never offered"
                raise InvalidInput("tools", rule)
            digest = digests.get(name, row.seen.digest)
            try:
                approved = await self._store.approve(server, name, digest, by, self._clock.now())
            finally:
                self._changed(server)
            if not approved:
                raise InvalidInput("digests", f"the definition of '{name}' is another one by now; look at it again")
        return await self.rows(server)

    async def revoke(self, server: str, name: str) -> bool:
        """Takes an approval back."""
        try:
            revoked = await self._store.revoke(server, name)
        finally:
            self._changed(server)
        self._known.pop(server, None)
        return revoked


def held_back(server: str, name: str, why: str) -> ToolNotFound:
    """Returns the error for a tool that is held back."""
    mend = f"an operator looks at it with `skillyard tools list {server}` and approves it"
    return ToolNotFound("tool", f"'{offered_name(server, name)}' is held back: {why}; {mend}")


def row_view(row: ToolRow, *, offered: bool) -> dict[str, Any]:
    """Returns a row as operators see it, with the definitions where they differ."""
    latest = row.seen or row.approved
    assert latest is not None
    view: dict[str, Any] = {
        "server": row.server,
        "tool": row.name,
        "state": row.state.value,
        "offered": offered,
        "description": latest.description,
        "definition": dict(latest.definition),
        "digest": latest.digest,
        "hidden": latest.hidden,
        "seen_at": row.seen_at,
        "approved_at": row.approved_at,
        "approved_by": row.approved_by,
    }
    if row.state is ToolState.CHANGED and row.approved is not None:
        view["approved_definition"] = dict(row.approved.definition)
    return view
