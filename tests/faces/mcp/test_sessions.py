"""One principal cannot take all sessions of clients that speak an earlier revision."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.domain.errors import Busy
from skillyard.faces.mcp.http import Sessions

pytestmark = pytest.mark.anyio


async def ask(
    sessions: Sessions, who: str, session: str = "", given: str = "", *, method: str = "POST", status: int = 200
) -> None:
    """Sends a request, which is answered with a status and the session that it opens."""
    headers = [(b"mcp-session-id", session.encode())] if session else []

    async def send(_message: Any) -> None:
        return

    with sessions.use(who, {"method": method, "headers": headers}, send, opens=not session) as watched:
        told = [(b"mcp-session-id", given.encode())] if given else []
        await watched({"type": "http.response.start", "status": status, "headers": told})


async def test_a_principal_has_a_share() -> None:
    sessions = Sessions(2, 1800)
    for number in range(2):
        await ask(sessions, "ann", given=f"a{number}")
    with pytest.raises(Busy, match="sessions_each"):
        await ask(sessions, "ann", given="a2")
    await ask(sessions, "bob", given="b0")
    await ask(sessions, "bob", "a0", status=404)
    with pytest.raises(Busy):
        await ask(sessions, "ann", given="a2")
    await ask(sessions, "ann", "a0")
    await ask(sessions, "ann", "a1", method="DELETE")
    await ask(sessions, "ann", given="a3")
    await ask(sessions, "ann", "a0", status=404)
    await ask(sessions, "ann", given="a4")
    with pytest.raises(Busy):
        await ask(sessions, "ann", given="a5")


async def test_one_that_did_not_begin_counts_no_more() -> None:
    sessions = Sessions(1, 1800)
    await ask(sessions, "ann", given="", status=400)
    await ask(sessions, "ann", given="a0")


async def test_idle_ones_count_no_more_but_those_at_work_do() -> None:
    sessions = Sessions(1, 0.0)
    await ask(sessions, "ann", given="a0")
    await ask(sessions, "ann", given="a1")

    async def send(_message: Any) -> None:
        return

    stream = {"method": "GET", "headers": [(b"mcp-session-id", b"a1")]}
    with sessions.use("ann", stream, send, opens=False), pytest.raises(Busy):
        await ask(sessions, "ann", given="a2")
    await ask(sessions, "ann", given="a2")
