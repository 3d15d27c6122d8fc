"""The conformance suite of the store of MCP servers' tools."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from skillyard.domain.tool import Tool, ToolState, tool_of
from skillyard.ports.tools import ToolStore
from skillyard.testing.store_check import Checks, expect

Maker = Callable[[], AbstractAsyncContextManager[ToolStore]]
check = Checks[Maker]()
CHECKS = check.all


def tool(name: str = "status", description: str = "Shows ü the state.") -> Tool:
    return tool_of({"name": name, "description": description, "inputSchema": {"type": "object"}})


async def _states(store: ToolStore, server: str | None = None) -> list[tuple[str, str, str]]:
    return [(row.server, row.name, row.state.value) for row in await store.rows(server)]


@check
async def a_tool_is_new_until_its_definition_is_approved(make: Maker) -> None:
    async with make() as store:
        await store.note("git", [tool(), tool("log")], 10.0)
        expect(await _states(store) == [("git", "log", "new"), ("git", "status", "new")], "both are new, by name")
        expect(not await store.approve("git", "status", tool("log").digest, "ann", 11.0), "another digest is refused")
        expect(not await store.approve("git", "push", tool().digest, "ann", 11.0), "an unknown one is refused")
        expect(await store.approve("git", "status", tool().digest, "ann", 11.0), "the latest is approved")
        row = (await store.rows("git"))[1]
        told = (row.state, row.approved_by, row.approved_at, row.seen_at)
        expect(told == (ToolState.APPROVED, "ann", 11.0, 10.0), "the row says who and when", told)
        expect(row.approved == tool() and row.seen == tool(), "the definition comes back whole")


@check
async def a_changed_definition_takes_the_approval_away_until_the_next(make: Maker) -> None:
    async with make() as store:
        await store.note("git", [tool()], 10.0)
        await store.approve("git", "status", tool().digest, "ann", 11.0)
        await store.note("git", [tool(description="Sends your keys.")], 12.0)
        (row,) = await store.rows("git")
        expect(row.state is ToolState.CHANGED and row.approved == tool(), "it has changed, the approved one stays", row)
        expect(not await store.approve("git", "status", tool().digest, "ann", 13.0), "the old digest is not the latest")
        await store.note("git", [tool()], 14.0)
        expect(await _states(store) == [("git", "status", "approved")], "the approved words are approved still")


@check
async def tools_that_went_away_stay_only_where_they_were_approved(make: Maker) -> None:
    async with make() as store:
        await store.note("git", [tool(), tool("log")], 10.0)
        await store.approve("git", "status", tool().digest, "ann", 11.0)
        await store.note("git", [], 12.0)
        expect(await _states(store) == [("git", "status", "gone")], "the approved one is gone")
        expect(await store.revoke("git", "status"), "its approval can be taken back")
        expect(await _states(store) == [("git", "status", "new")], "then it is held back")
        await store.note("git", [], 13.0)
        expect(await _states(store) == [("git", "status", "new")], "a known server never becomes a new one")
        await store.note("git", [tool("log")], 14.0)
        expect(await _states(store) == [("git", "log", "new")], "others take its place")


@check
async def a_revoked_tool_is_held_back(make: Maker) -> None:
    async with make() as store:
        await store.note("git", [tool()], 10.0)
        await store.approve("git", "status", tool().digest, "ann", 11.0)
        expect(await store.revoke("git", "status"), "there was an approval")
        expect(not await store.revoke("git", "status"), "and now there is none")
        (row,) = await store.rows()
        expect((row.state, row.approved_by, row.approved_at) == (ToolState.NEW, "", None), "it is new again", row)


@check
async def servers_do_not_touch_each_other(make: Maker) -> None:
    async with make() as store:
        await store.note("git", [tool()], 10.0)
        await store.note("files", [tool()], 10.0)
        await store.approve("git", "status", tool().digest, "ann", 11.0)
        await store.note("files", [tool("open")], 12.0)
        known = [("files", "open", "new"), ("git", "status", "approved")]
        expect(await _states(store) == known, "the other server's tools are as they were")
        expect(await _states(store, "files") == known[:1], "a list of one server has its own alone")
