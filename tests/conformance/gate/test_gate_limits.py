"""Limits of a session: each is enforced, says why, and costs nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import suppress
from dataclasses import replace

import pytest

from skillyard.domain.network.session import EgressLimits, EgressPlan
from skillyard.gate.client import ProcessGate
from tests.conformance.gate.gates import (
    BOUND_S,
    Plugged,
    Server,
    cut_off,
    echo,
    plugged,
    policy,
    reaching,
    turned_away,
    until,
)
from tests.conformance.gate.rooms import Room, Rooms

pytestmark = pytest.mark.anyio
USUAL = EgressLimits()


@pytest.fixture
def room(rooms: Rooms) -> Room:
    return rooms.room()


async def blast(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says more than anybody wants."""
    while True:
        writer.write(bytes(65536))
        await writer.drain()


async def swallow(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def served(box: Plugged, host: str, port: int) -> bool:
    try:
        reader, writer = await box.connect(host, port)
        writer.write(b"hello\n")
        return await reader.readline() == b"hello\n"
    except ConnectionResetError:
        return False


async def test_connections_at_once(shared_gate: ProcessGate, room: Room) -> None:
    async with Server(echo) as server:
        plan = reaching(server, "api.test", limits=replace(USUAL, connections=2))
        box = await plugged(shared_gate, room, plan, server.port)
        address = await box.resolve("api.test")
        _, first = await box.connect(address, server.port)
        await box.connect(address, server.port)
        await until(lambda: server.taken == 2)
        await turned_away(box, address, server.port)
        first.close()
        async with asyncio.timeout(20):
            while not await served(box, address, server.port):
                await asyncio.sleep(0.01)
        rows = (await box.close()).connections
    [refused] = [row for row in rows if not row.allowed]
    assert (refused.host, refused.layer, refused.reason) == ("api.test", "limits", "more than 2 connections at once")


async def test_connections_in_all(shared_gate: ProcessGate, room: Room) -> None:
    async with Server(echo) as server:
        plan = reaching(server, "api.test", limits=replace(USUAL, connections_total=2))
        box = await plugged(shared_gate, room, plan, server.port)
        address = await box.resolve("api.test")
        for _ in range(2):
            reader, writer = await box.connect(address, server.port)
            writer.write_eof()
            assert await reader.read() == b""
        await turned_away(box, address, server.port)
        rows = (await box.close()).connections
    assert [row.reason for row in rows if not row.allowed] == ["more than 2 connections"]


async def test_bytes_received(shared_gate: ProcessGate, room: Room) -> None:
    async with Server(blast) as server:
        plan = reaching(server, "api.test", limits=replace(USUAL, received_bytes=1 << 20))
        box = await plugged(shared_gate, room, plan, server.port)
        got = 0
        with suppress(ConnectionResetError):  # on a busy host all of it comes before connect() returns
            reader, _ = await box.dial("api.test", server.port)
            got = await cut_off(reader)
        await until(lambda: not server.open)
        [row] = (await box.close()).connections
    assert got <= 1 << 20
    assert row.received_bytes <= (1 << 20) + (1 << 18)  # what was on its way
    assert row.reason == f"more than {1 << 20} bytes received"


async def test_bytes_sent(shared_gate: ProcessGate, room: Room) -> None:
    async with Server(swallow) as server:
        plan = reaching(server, "api.test", limits=replace(USUAL, sent_bytes=1 << 20))
        box = await plugged(shared_gate, room, plan, server.port)
        _, writer = await box.dial("api.test", server.port)
        async with asyncio.timeout(BOUND_S):
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"\0" * 65536)
                    await writer.drain()
        await until(lambda: not server.open)
        [row] = (await box.close()).connections
    assert row.sent_bytes == 1 << 20
    assert row.reason == f"more than {1 << 20} bytes sent"


async def test_a_connection_on_which_nothing_moves(shared_gate: ProcessGate, room: Room) -> None:
    async with Server(echo) as server:
        plan = reaching(server, "api.test", limits=replace(USUAL, idle_s=0.5))
        box = await plugged(shared_gate, room, plan, server.port)
        reader, writer = await box.dial("api.test", server.port)
        writer.write(b"once\n")
        await reader.readline()
        assert not await cut_off(reader)
        await until(lambda: not server.open)
        [row] = (await box.close()).connections
    assert row.reason == "no byte within 0.5 s"


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: "])
async def test_first_words_that_do_not_come(shared_gate: ProcessGate, room: Room, said: bytes) -> None:
    async with Server(silent) as server:
        plan = reaching(server, "api.test", limits=replace(USUAL, header_s=0.5))
        box = await plugged(shared_gate, room, plan, server.port)
        reader, writer = await box.dial("api.test", server.port)
        writer.write(said)
        assert not await cut_off(reader)
        await until(lambda: not server.open)
        [row] = (await box.close()).connections
    assert "within 0.5 s" in row.reason


async def test_a_refused_client_that_waits_to_be_spoken_to_is_not_kept(shared_gate: ProcessGate, room: Room) -> None:
    """On port 80 a refusal is told in HTTP, once the client has said something; 30 s would be the time for that."""
    async with Server(silent) as server:
        box = await plugged(shared_gate, room, reaching(server, "api.test"), 80)
        reader, _ = await box.connect("203.0.113.9", 80)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                assert not await reader.read()
        [row] = (await box.close()).connections
    assert not row.allowed


async def test_first_words_one_byte_at_a_time(shared_gate: ProcessGate, room: Room) -> None:
    async with Server(silent) as server:
        plan = reaching(server, "api.test", limits=replace(USUAL, header_s=0.5))
        box = await plugged(shared_gate, room, plan, server.port)
        _, writer = await box.dial("api.test", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: ")
        with contextlib.suppress(ConnectionError):
            while len(server.open) == server.taken:
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.05)  # the slow client that is meant
        [row] = (await box.close()).connections
    assert "within 0.5 s" in row.reason


async def test_a_server_that_does_not_answer(shared_gate: ProcessGate, room: Room) -> None:
    """Its queue is full, so that the kernel drops who comes."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        waiting = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            waiting.append(filler)
        plan = EgressPlan(policy(f"api.test:{port}", hosts=["api.test"]), replace(USUAL, connect_s=0.5))
        box = await plugged(shared_gate, room, plan, port)
        reader, _ = await box.dial("api.test", port)
        assert not await cut_off(reader)
        [row] = (await box.close()).connections
        for filler in waiting:
            filler.close()
    assert row.reason == f"127.0.0.1 port {port} does not answer within 0.5 s"
