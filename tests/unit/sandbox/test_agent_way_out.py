"""The way out against agents that lie: it asks for no more than it can serve, and leads to one session alone."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import GateFault
from skillyard.domain.network.session import Egress
from skillyard.guest.agent import wire
from skillyard.sandbox.agent_client import AgentSandbox
from skillyard.sandbox.agent_link import Reach
from skillyard.sandbox.agent_way_out import READY
from skillyard.testing.twin_gate import TwinGate, TwinSession
from tests.unit.sandbox.test_agent_client import KEY, LyingAgent, reply

pytestmark = pytest.mark.anyio

BOUND_S = 10.0
Lie = Callable[[int], bytes]


class Accepting(LyingAgent):
    """It says that it listens, and ``lie`` to each offer to take a connection."""

    def __init__(self, lie: Lie, version: int = 2) -> None:
        self.offers: list[int] = []
        self._lie = lie
        super().__init__(self._told, close=False, version=version)

    def _told(self, number: int, order: Mapping[str, Any]) -> bytes:
        if order["op"] != "accept":
            return reply(number, {})
        self.offers.append(number)
        return self._lie(number)


async def opened(agent: LyingAgent) -> tuple[AgentSandbox, TwinGate, TwinSession]:
    gate = TwinGate()
    session = await gate.open("session")
    sandbox = AgentSandbox(Reach(agent.open, KEY), "lying", {}, timeout_ms=1000, gate=gate)
    try:
        await sandbox.plug(Egress(session.id))
    except BaseException:
        await sandbox.close()
        await gate.close()
        raise
    return sandbox, gate, session


async def over(condition: Callable[[], object], bound_s: float = BOUND_S) -> None:
    async with asyncio.timeout(bound_s):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "lie",
    [
        lambda number: reply(number, {}),
        lambda number: wire.pack(wire.FAIL, number, b'{"kind": "busy", "text": "later"}'),
        lambda number: wire.pack(wire.END, number),
        lambda number: wire.pack(wire.DATA, number, b"no beginning"),
    ],
    ids=["ended", "refused", "an end alone", "data alone"],
)
async def test_an_agent_that_makes_nothing_of_an_offer_gets_few(lie: Lie) -> None:
    agent = Accepting(lie)
    sandbox, gate, session = await opened(agent)
    await over(lambda: len(agent.offers) == READY)
    with pytest.raises(TimeoutError):
        await over(lambda: len(agent.offers) > READY, 0.5)
    await over(lambda: len(agent.offers) > READY)
    assert session.arrived == []
    await sandbox.close()
    await gate.close()


async def test_a_connection_that_breaks_its_window_ends_the_channel() -> None:
    agent = Accepting(lambda number: wire.pack(wire.DATA, number) + wire.pack(wire.DATA, number, b"x" * wire.PIECE) * 2)
    sandbox, gate, session = await opened(agent)
    channel = await sandbox._link.channel()
    await over(lambda: channel.lost)
    await over(lambda: session.ended == len(session.arrived))
    await sandbox.close()
    await gate.close()


async def test_connections_that_nobody_offered_end_the_channel() -> None:
    agent = Accepting(lambda number: wire.pack(wire.DATA, number + 1000))
    sandbox, gate, session = await opened(agent)
    channel = await sandbox._link.channel()
    await over(lambda: channel.lost)
    assert session.arrived == []
    await sandbox.close()
    await gate.close()


async def test_an_agent_of_an_earlier_release_has_none() -> None:
    agent = Accepting(lambda _: b"", version=1)
    with pytest.raises(GateFault, match="of an earlier release"):
        await opened(agent)
    assert agent.offers == []


async def test_an_agent_that_cannot_listen_says_why() -> None:
    refusal = b'{"kind": "taken", "text": "port 3128 of the sandbox cannot be had"}'
    agent = LyingAgent(lambda number, _: wire.pack(wire.FAIL, number, refusal), close=False, version=2)
    with pytest.raises(GateFault, match="3128 of the sandbox cannot be had"):
        await opened(agent)


async def test_connections_lead_to_the_session_that_was_plugged_in_last() -> None:
    offered: list[int] = []
    agent = Accepting(lambda number: offered.append(number) or b"")  # type: ignore[func-returns-value]
    sandbox, gate, first = await opened(agent)
    second = await gate.open("second")
    await over(lambda: len(offered) == READY)
    agent._feed(wire.pack(wire.DATA, offered[0]))
    await over(lambda: len(first.arrived) == 1)
    await sandbox.plug(Egress(second.id))
    agent._feed(wire.pack(wire.DATA, offered[1]))
    await over(lambda: len(second.arrived) == 1)
    assert len(first.arrived) == 1
    await sandbox.close()
    await over(lambda: first.ended + second.ended == 2)
    await gate.close()


async def test_the_knock_of_another_session_is_not_let_in() -> None:
    gate = TwinGate()
    first, second = await gate.open("first"), await gate.open("second")
    mine, theirs = first.way(), second.way()
    reader, writer = await asyncio.open_unix_connection(mine.address)
    writer.write(theirs.knock())
    async with asyncio.timeout(BOUND_S):
        assert await reader.read() == b""
    assert (first.arrived, second.arrived) == ([], [])
    writer.close()
    await gate.close()
    assert not Path(mine.address).exists()
    assert Path(tempfile.gettempdir()) in Path(mine.address).parents
