"""A session's policy changes while it is at work."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest

from skillyard.domain.network.address import Address
from skillyard.domain.network.session import EgressPlan
from skillyard.gate.client import ProcessGate
from skillyard.gate.dial import Dialer
from skillyard.gate.relay.guard import Ended, Refused
from skillyard.gate.session import Session
from tests.conformance.gate.gates import BOUND_S, Server, cut_off, echo, plugged, policy, reaching, turned_away, until
from tests.conformance.gate.rooms import Rooms

pytestmark = pytest.mark.anyio


async def test_narrowing_ends_exactly_what_is_no_longer_allowed(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(echo) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "stays.test", "goes.test"), server.port)
        stays, keep = await box.dial("stays.test", server.port)
        goes, drop = await box.dial("goes.test", server.port)
        for reader, writer in ((stays, keep), (goes, drop)):
            writer.write(b"hello\n")
            await reader.readline()
        await box.session.change(reaching(server, "stays.test").policy)
        assert not await cut_off(goes)
        await until(lambda: len(server.open) == 1)
        keep.write(b"still here\n")
        assert await stays.readline() == b"still here\n"
        with pytest.raises(LookupError):
            await box.resolve("goes.test")
        rows = {row.host: row for row in (await box.close()).connections if row.via == "direct"}
        keep.close()
        drop.close()
    assert rows["goes.test"].reason == "ended by a change: no operator rule allows goes.test"
    assert not rows["stays.test"].reason


async def test_an_address_given_before_leads_nowhere_after_narrowing(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(echo) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "api.test"), server.port)
        address = await box.resolve("api.test")
        await box.session.change(policy("other.test"))
        await turned_away(box, address, server.port)
        await box.close()
        assert not server.taken


@pytest.mark.parametrize("fault", [Refused, Ended])
async def test_a_change_meets_what_is_being_dialled(fault: type[Exception]) -> None:
    """Judged by the policy before it, and connected after it, or after the session's end."""

    class Changing(Dialer):
        async def dial(self, addresses: Sequence[Address], port: int, within: float) -> tuple[socket.socket, Address]:
            dialled = await super().dial(addresses, port, within)
            if fault is Refused:
                session.change(policy("other.test"))
            else:
                session.close()
            return dialled

    async with Server(echo) as server:
        session = Session("one", reaching(server, "api.test"), Changing(lambda: ()))
        with pytest.raises(fault):
            await session.reach("http", "api.test", server.port)
        await until(lambda: not server.open)
    [row] = session.report().connections
    assert (row.allowed, row.sent_bytes) == (fault is Ended, 0)


async def test_what_is_being_dialled_at_the_end_is_in_the_log() -> None:
    dialling = asyncio.Event()

    class Waiting(Dialer):
        async def dial(self, addresses: Sequence[Address], port: int, within: float) -> tuple[socket.socket, Address]:
            dialling.set()
            await asyncio.Event().wait()
            return await super().dial(addresses, port, within)

    session = Session("one", EgressPlan(policy("api.test", hosts=["api.test"])), Waiting(lambda: ()))
    reaching_it = asyncio.create_task(session.reach("http", "api.test", 80))
    async with asyncio.timeout(BOUND_S):
        await dialling.wait()
    [row] = session.close().connections
    reaching_it.cancel()
    assert (row.host, row.port, row.allowed, row.count) == ("api.test", 80, True, 1)


async def test_a_change_meets_what_is_being_relayed_at_full_speed(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async def blast(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(bytes(65536))
            await writer.drain()

    async with Server(blast) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "api.test"), server.port)
        reader, writer = await box.dial("api.test", server.port)
        await reader.readexactly(1 << 20)
        await box.session.change(policy("other.test"))
        await cut_off(reader)
        await until(lambda: not server.open)
        await box.close()
        writer.close()


async def test_widening_lets_new_names_and_ports_in(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(echo) as server:
        room = rooms.room()
        box = await plugged(shared_gate, room, EgressPlan(policy("other.test")))
        with pytest.raises(LookupError):
            await box.resolve("api.test")
        await box.session.change(reaching(server, "api.test").policy)
        opened = await asyncio.to_thread(room.listen, server.port)
        await shared_gate.plug(box.session.id, opened)
        reader, writer = await box.dial("api.test", server.port)
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.close()
        await box.close()
