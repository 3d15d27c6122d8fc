"""What a sandbox reaches through the gate's process, and what it is told where it may not."""

from __future__ import annotations

import asyncio
import socket

import pytest

from skillyard.domain.network.session import Connection, EgressPlan
from skillyard.gate.client import ProcessGate
from tests.conformance.gate.gates import Plugged, Server, echo, plugged, policy, reaching, turned_away, until
from tests.conformance.gate.rooms import Room, Rooms

pytestmark = pytest.mark.anyio


@pytest.fixture
def room(rooms: Rooms) -> Room:
    return rooms.room()


async def test_a_program_that_knows_no_proxy_talks_to_an_allowed_name(shared_gate: ProcessGate, room: Room) -> None:
    async with Server(echo) as server:
        box = await plugged(shared_gate, room, reaching(server, "db.test"), server.port)
        reader, writer = await box.dial("db.test", server.port)
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        [row] = (await box.close()).connections
    assert (row.via, row.host, row.port, row.allowed) == ("direct", "db.test", server.port, True)
    assert (row.layer, row.rule, row.reason) == ("operator", f"db.test:{server.port}", "")
    assert (row.sent_bytes, row.received_bytes, row.count) == (6, 6, 1)


async def test_a_server_may_speak_first_and_a_half_closed_connection_goes_on(
    shared_gate: ProcessGate, room: Room
) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 welcome\r\n")
        said = await reader.read()  # to the client's end
        writer.write(b"bye " + said)
        await writer.drain()

    async with Server(greet) as server:
        box = await plugged(shared_gate, room, reaching(server, "mail.test"), server.port)
        reader, writer = await box.dial("mail.test", server.port)
        assert await reader.readline() == b"220 welcome\r\n"
        writer.write(b"\x01\x02")
        writer.write_eof()
        assert await reader.read() == b"bye \x01\x02"
        writer.close()
        await box.close()


async def test_words_without_a_line_end_are_answered(shared_gate: ProcessGate, room: Room) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while said := await reader.read(100):
            writer.write(b"<" + said + b">")
            await writer.drain()

    async with Server(answer) as server:
        box = await plugged(shared_gate, room, reaching(server, "raw.test"), server.port)
        reader, writer = await box.dial("raw.test", server.port)
        async with asyncio.timeout(10):  # a third of the time for a whole request
            for said in (b"PING", b'{"id": 1}', b"again"):
                writer.write(said)
                assert await reader.readuntil(b">") == b"<" + said + b">"
        writer.close()
        await box.close()


async def test_connect_and_socks_lead_to_the_same(shared_gate: ProcessGate, room: Room) -> None:
    async with Server(echo) as server:
        box = await plugged(shared_gate, room, reaching(server, "api.test"))
        target = f"api.test:{server.port}".encode()
        for hello, answered in (
            (b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, target), b"HTTP/1.1 200 "),
            (b"\x05\x01\x00\x05\x01\x00\x03\x08api.test" + server.port.to_bytes(2), b"\x05\x00\x05\x00"),
        ):
            reader, writer = await box.connect("127.0.0.1", 3128)
            writer.write(hello)
            assert (await reader.readexactly(len(answered))) == answered
            await (reader.readuntil(b"\r\n\r\n") if answered.startswith(b"HTTP") else reader.readexactly(8))
            writer.write(b"over\n")
            assert await reader.readline() == b"over\n"
            writer.close()
        log = await box.close()
    assert sorted(row.via for row in log.connections if row.allowed) == ["connect", "socks5"]


async def refusal(box: Plugged, host: str, port: int) -> list[Connection]:
    """Connects, and must be reset at once; what the log has of it."""
    await turned_away(box, host, port)
    return [row for row in await box.log() if row.port == port]


@pytest.mark.parametrize(
    ("host", "rules", "layer", "reason"),
    [
        ("8.8.8.8", ["api.test:7000"], "operator", "no operator rule allows 8.8.8.8"),
        ("2001:4860::1", ["api.test:7000"], "operator", "no operator rule allows 2001:4860::1"),
        ("10.1.2.3", ["*"], "floor", "10.1.2.3 is private"),
        ("169.254.169.254", ["*"], "floor", "169.254.169.254 is metadata"),
        ("::ffff:10.1.2.3", ["*"], "floor", "10.1.2.3 is private"),
        ("127.0.0.1", ["*"], "floor", "127.0.0.1 is loopback"),
        ("198.18.77.7", ["*"], "floor", "198.18.77.7 stands for no name"),
        ("8.8.8.8", ["*", "!8.8.0.0/16"], "operator", "denied by operator rule '!8.8.0.0/16'"),
    ],
)
async def test_an_address_that_is_not_allowed_is_reset_at_once(
    shared_gate: ProcessGate, room: Room, host: str, rules: list[str], layer: str, reason: str
) -> None:
    box = await plugged(shared_gate, room, EgressPlan(policy(*rules)), 7000)
    [row] = await refusal(box, host, 7000)
    await box.close()
    assert (row.via, row.allowed, row.layer, row.count) == ("direct", False, layer, 1)
    assert row.reason.startswith(reason)


async def test_a_name_that_is_not_allowed_is_not_known(shared_gate: ProcessGate, room: Room) -> None:
    box = await plugged(shared_gate, room, EgressPlan(policy("api.test")))
    with pytest.raises(LookupError):
        await box.resolve("evil.test")
    [row] = (await box.close()).connections
    assert (row.via, row.host, row.allowed) == ("dns", "evil.test", False)


async def test_a_name_without_addresses_is_allowed_and_unreachable(shared_gate: ProcessGate, room: Room) -> None:
    box = await plugged(shared_gate, room, EgressPlan(policy("no-such-host.invalid:7000")), 7000)
    [row] = await refusal(box, await box.resolve("no-such-host.invalid"), 7000)
    await box.close()
    assert row.allowed
    assert "cannot be looked up" in row.reason


async def test_nobody_there_is_told_and_logged(shared_gate: ProcessGate, room: Room) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    box = await plugged(shared_gate, room, EgressPlan(policy(f"api.test:{port}", hosts=["api.test"])), port)
    [row] = await refusal(box, await box.resolve("api.test"), port)
    await box.close()
    assert row.reason == f"127.0.0.1 port {port}: Connection refused"


async def test_a_host_that_leads_to_a_closed_address_is_refused_by_the_floor(
    shared_gate: ProcessGate, room: Room
) -> None:
    box = await plugged(shared_gate, room, EgressPlan(policy("localhost:7000")), 7000)
    [row] = await refusal(box, await box.resolve("localhost"), 7000)
    await box.close()
    assert (row.host, row.layer, row.allowed) == ("localhost", "floor", False)


async def test_on_ports_of_the_web_the_refusal_is_said_in_their_protocol(shared_gate: ProcessGate, room: Room) -> None:
    box = await plugged(shared_gate, room, EgressPlan(policy("api.test")), 80, 443)
    reader, writer = await box.connect("8.8.8.8", 80)
    writer.write(b"GET / HTTP/1.1\r\nHost: 8.8.8.8\r\n\r\n")
    said = await reader.read()
    writer.close()
    assert said.startswith(b"HTTP/1.1 403 ")
    assert b"no operator rule allows 8.8.8.8" in said
    reader, writer = await box.connect("8.8.8.8", 443)
    writer.write(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00")
    assert (await reader.read())[:1] == b"\x15"  # an alert
    writer.close()
    await box.close()


async def test_sessions_do_not_know_each_others_names(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(echo) as server:
        one = await plugged(shared_gate, rooms.room(), reaching(server, "one.test"), server.port)
        two = await plugged(shared_gate, rooms.room(), reaching(server, "two.test"), server.port)
        address = await one.resolve("one.test")
        with pytest.raises(LookupError):
            await two.resolve("one.test")
        [row] = await refusal(two, address, server.port)
        assert "stands for no name" in row.reason
        await one.close()
        await two.close()
        assert not server.taken


async def test_bytes_of_connections_under_way_are_in_the_log(shared_gate: ProcessGate, room: Room) -> None:
    async with Server(echo) as server:
        box = await plugged(shared_gate, room, reaching(server, "api.test"), server.port)
        reader, writer = await box.dial("api.test", server.port)
        writer.write(b"hello\n")
        await reader.readline()
        [row] = await box.log()
        assert (row.sent_bytes, row.received_bytes) == (6, 6)
        await box.close()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        await until(lambda: not server.open)
