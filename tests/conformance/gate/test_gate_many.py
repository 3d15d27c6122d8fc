"""Two hundred sandboxes at one gate, each with a policy of its own."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.gate.client import ProcessGate
from tests.conformance.gate.gates import Server, echo, plugged, reaching
from tests.conformance.gate.rooms import Rooms

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
async def test_each_sandbox_reaches_its_own_and_nothing_of_the_others(
    gate: ProcessGate, rooms: Rooms, count: int
) -> None:
    async with Server(echo) as server:

        async def one(number: int) -> None:
            name = f"host{number}.test"
            box = await plugged(gate, rooms.room(), reaching(server, name), server.port, key=str(number))
            reader, writer = await box.dial(name, server.port)
            writer.write(b"%d\n" % number)
            assert await reader.readline() == b"%d\n" % number
            with pytest.raises(LookupError):
                await box.resolve(f"host{(number + 1) % count}.test")
            rows = (await box.close()).connections
            assert sorted((row.host, row.allowed) for row in rows) == sorted(
                [(name, True), (f"host{(number + 1) % count}.test", False)]
            )

        for outcome in await asyncio.gather(*map(one, range(count)), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
