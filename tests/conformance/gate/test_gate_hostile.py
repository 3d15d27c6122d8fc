"""Programs and servers that mean harm to the gate's process: each costs its own session, and nobody else."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from dataclasses import replace

import pytest

from skillyard.domain.network.session import EgressLimits, EgressPlan
from skillyard.gate.addresses import OwnAddresses
from skillyard.gate.client import ProcessGate
from skillyard.gate.dial import Dialer
from skillyard.gate.listener import Capacity, Listener
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Session
from tests.conformance.gate.gates import Plugged, Server, cut_off, echo, plugged, policy, reaching, until
from tests.conformance.gate.rooms import Rooms
from tests.conformance.gate.test_gate_limits import blast
from tests.conformance.gate.test_gate_process import process_of, status_of

pytestmark = pytest.mark.anyio
_RST_ON_CLOSE = struct.pack("ii", 1, 0)


def resident_kib(pid: int) -> int:
    return int(status_of(pid)["VmRSS"].split()[0])


async def works(box: Plugged, server: Server, name: str = "api.test") -> None:
    reader, writer = await box.dial(name, server.port)
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    writer.close()


async def test_clients_that_never_read_cost_little_memory(gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(blast) as flood, Server(echo) as server:
        box = await plugged(gate, rooms.room(), reaching(flood, "flood.test"), flood.port)
        other = await plugged(gate, rooms.room(), reaching(server, "api.test"), server.port)
        await works(other, server)
        before = resident_kib(process_of(gate))
        address = await box.resolve("flood.test")
        deaf = [await asyncio.to_thread(box.room.dial, address, flood.port) for _ in range(40)]
        for sock in deaf:
            sock.sendall(b"go on\n")
        await until(lambda: flood.taken == 40)
        await works(other, server)
        grown = resident_kib(process_of(gate)) - before
        assert grown < 40 * 512  # a piece of 256 KiB each, and what the tasks are
        for sock in deaf:
            sock.close()
        await until(lambda: not flood.open)
        await box.close()
        await other.close()


async def test_servers_that_never_read_cost_little_memory(gate: ProcessGate, rooms: Rooms) -> None:
    release = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await release.wait()

    async with Server(deaf) as server:
        box = await plugged(gate, rooms.room(), reaching(server, "api.test"), server.port)
        address = await box.resolve("api.test")
        sock = await asyncio.to_thread(box.room.dial, address, server.port)
        sock.setblocking(False)
        sent = 0
        before = resident_kib(process_of(gate))
        async with asyncio.timeout(20):
            stuck = 0
            while stuck < 20:
                try:
                    sent += sock.send(bytes(1 << 16))
                    stuck = 0
                except BlockingIOError:
                    stuck += 1
                    await asyncio.sleep(0.02)  # until nothing moves
        assert resident_kib(process_of(gate)) - before < 4096
        assert sent < 64 << 20
        release.set()
        sock.close()
        await box.close()


async def test_storms_of_resets(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(echo) as server:
        plan = reaching(server, "api.test", limits=replace(EgressLimits(), connections_total=300))
        box = await plugged(shared_gate, rooms.room(), plan, server.port)
        other = await plugged(shared_gate, rooms.room(), reaching(server, "api.test"), server.port)
        address = await box.resolve("api.test")
        for _ in range(200):
            sock = box.room.dial(address, server.port)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
            sock.close()
        await works(other, server)
        await works(box, server)
        rows = (await box.close()).connections
        await other.close()
        await until(lambda: not server.open)
    assert sum(row.count for row in rows if row.via == "direct") == 201


async def test_connections_that_a_session_ends_before_they_are_served_take_no_room() -> None:
    """A run that knocks while it ends leaves the gate as much room for others as there was."""

    async def serve(_: Session, client: Stream) -> None:
        await client.read()

    own, room = OwnAddresses(), Capacity(100_000)
    session = Session("one", EgressPlan(policy("*")), Dialer(own))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        door = Listener(session, listener, serve, room, lambda fault: pytest.fail(str(fault)))
        clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        door._readable()
        assert room.connections == 5
        session.close()  # in the same turn of the loop, as when both became readable together
        await until(lambda: not session.connections)
        assert (room.connections, session.usage.connections) == (0, 0)
        door.close()
        for client in clients:
            client.close()
    own.close()


async def test_without_descriptors_who_knocks_waits_and_is_served_later() -> None:
    """In this process, whose descriptors can be taken."""
    served = asyncio.Event()

    async def serve(_: Session, client: Stream) -> None:
        served.set()
        client.close()

    own = OwnAddresses()
    session = Session("one", EgressPlan(policy("*")), Dialer(own))
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        listener.setblocking(False)
        client.settimeout(10)
        door = Listener(session, listener, serve, Capacity(100_000), lambda fault: pytest.fail(str(fault)))
        usual = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(client.fileno())
        os.close(free)  # the next one that would be given
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, usual[1]))
        try:
            client.connect(listener.getsockname())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(served.wait(), 0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        async with asyncio.timeout(10):
            await served.wait()
        door.close()
    session.close()
    own.close()


def test_room_is_shared_out_when_it_becomes_scarce() -> None:
    room = Capacity(256 + 400)  # two hundred connections
    room.sessions = 4
    assert room.full_for(99) is None
    room.connections = 100
    assert room.full_for(24) is None
    assert room.full_for(25) == "the gate has no room for more connections of this run"


async def test_a_session_that_uses_all_it_may_leaves_the_others_room(gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(blast) as flood, Server(echo) as server:
        hogs = [
            await plugged(gate, rooms.room(), reaching(flood, f"flood{n}.test"), flood.port, key=str(n))
            for n in range(3)
        ]
        other = await plugged(gate, rooms.room(), reaching(server, "api.test"), server.port)
        readers = [(await hog.dial(f"flood{n}.test", flood.port))[0] for n, hog in enumerate(hogs) for _ in range(4)]

        async def drain(reader: asyncio.StreamReader) -> None:
            while await reader.read(1 << 18):
                pass

        drains = [asyncio.create_task(drain(reader)) for reader in readers]
        for _ in range(5):
            await works(other, server)
        for hog in hogs:
            await hog.close()
        await asyncio.gather(*drains, return_exceptions=True)
        await other.close()


async def test_a_connection_whose_program_is_gone_ends_on_the_far_side(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ready\n")
        await reader.read()

    async with Server(wait) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "api.test"), server.port)
        reader, writer = await box.dial("api.test", server.port)
        await reader.readline()
        writer.transport.abort()
        await until(lambda: not server.open)
        reader, writer = await box.dial("api.test", server.port)
        await reader.readline()
        far = next(iter(server.open))
        far.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        far.transport.abort()
        assert not await cut_off(reader)
        await box.close()
