"""SOCKS5 through the gate's process: connections by name and by address, and every other thing refused by its code."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest

from skillyard.domain.network.session import PROXY_PORT, EgressLimits, EgressPlan
from skillyard.gate.client import ProcessGate
from tests.conformance.gate.gates import Plugged, Server, echo, plugged, policy, reaching
from tests.conformance.gate.rooms import Rooms
from tests.unit.gate.hellos import hello

pytestmark = pytest.mark.anyio

GREETING = b"\x05\x01\x00"
DONE, NOT_ALLOWED, UNREACHABLE, NO_COMMAND, NO_ADDRESS = 0, 2, 4, 7, 8


def named(name: str | bytes, port: int, command: int = 1) -> bytes:
    text = name if isinstance(name, bytes) else name.encode()
    return bytes([5, command, 0, 3, len(text)]) + text + port.to_bytes(2)


def literal(address: str, port: int) -> bytes:
    packed = ipaddress.ip_address(address).packed
    return b"\x05\x01\x00" + (b"\x01" if len(packed) == 4 else b"\x04") + packed + port.to_bytes(2)


async def talk(box: Plugged, said: bytes, then: bytes = b"") -> tuple[bytes, bytes]:
    """The answer to the greeting and the request in ``said``, and everything after it."""
    reader, writer = await box.connect("127.0.0.1", PROXY_PORT)
    writer.write(said + then)
    if writer.can_write_eof():
        writer.write_eof()
    async with asyncio.timeout(20):
        told = await reader.read()
    writer.close()
    return told[:2], told[2:]


async def test_names_and_addresses(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(echo) as server:
        plan = EgressPlan(policy(f"a.test:{server.port}", f"127.0.0.1:{server.port}", hosts=["a.test"]))
        box = await plugged(shared_gate, rooms.room(), plan)
        synthetic = await box.resolve("a.test")
        requests = [
            named("A.test", server.port),
            named("127.0.0.1", server.port),
            literal("127.0.0.1", server.port),
            literal(synthetic, server.port),
        ]
        for request in requests:
            greeted, told = await talk(box, b"\x05\x02\x02\x00" + request, b"\0ping")
            assert greeted == b"\x05\x00"
            assert told == b"\x05\x00\x00\x01" + bytes(6) + b"\0ping"
        rows = (await box.session.close()).connections
    assert {(row.via, row.host, row.count) for row in rows} == {("socks5", "a.test", 2), ("socks5", "127.0.0.1", 2)}


@pytest.mark.parametrize(
    "said",
    [hello(b"b.test"), b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n", GREETING + named("a.test", 80)],
    ids=["TLS", "HTTP", "SOCKS"],
)
async def test_what_follows_is_held_to_the_host(shared_gate: ProcessGate, rooms: Rooms, said: bytes) -> None:
    """A proxy inside of a proxy is a protocol like any other: it goes to the host that was allowed."""
    async with Server(echo) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"))
        _, told = await talk(box, GREETING + named("a.test", server.port), said)
        [row] = (await box.session.close()).connections
    if said.startswith(GREETING):
        assert told[10:] == said
        assert row.allowed
    else:
        assert told[10:11] == b"\x15" or told[10:].startswith(b"HTTP/1.1 403 ")
        assert not row.allowed


REFUSED: dict[str, tuple[bytes, int]] = {
    "another name": (named("b.test", 80), NOT_ALLOWED),
    "another port": (named("a.test", 81), NOT_ALLOWED),
    "port 0": (named("a.test", 0), NOT_ALLOWED),
    "a trailing dot": (named("a.test.", 80), NOT_ALLOWED),
    "an empty name": (named("", 80), NOT_ALLOWED),
    "NUL in a name": (named("a.test\0.b.test", 80), NOT_ALLOWED),
    "a port in a name": (named("a.test:80", 80), NOT_ALLOWED),
    "userinfo": (named("x@a.test", 80), NOT_ALLOWED),
    "another alphabet": (named("ä.test", 80), NOT_ALLOWED),
    "a long name": (named("a" * 255, 80), NOT_ALLOWED),
    "a literal": (literal("127.0.0.1", 80), NOT_ALLOWED),
    "a literal as a name": (named("127.0.0.1", 80), NOT_ALLOWED),
    "an odd literal as a name": (named("0x7f.1", 80), NOT_ALLOWED),
    "a number as a name": (named("2130706433", 80), NOT_ALLOWED),
    "a short literal as a name": (named("127.1", 80), NOT_ALLOWED),
    "IPv6": (literal("::1", 80), NOT_ALLOWED),
    "IPv6 as a name": (named("::1", 80), NOT_ALLOWED),
    "IPv6 in brackets": (named("[::1]", 80), NOT_ALLOWED),
    "a mapped address": (literal("::ffff:127.0.0.1", 80), NOT_ALLOWED),
    "a zone": (named("fe80::1%lo", 80), NOT_ALLOWED),
    "metadata": (literal("169.254.169.254", 80), NOT_ALLOWED),
    "what stands for nothing": (literal("198.18.77.77", 80), NOT_ALLOWED),
    "the proxy": (literal("127.0.0.1", PROXY_PORT), NOT_ALLOWED),
    "BIND": (named("a.test", 80, 2), NO_COMMAND),
    "UDP ASSOCIATE": (named("a.test", 80, 3), NO_COMMAND),
    "an unknown command": (named("a.test", 80, 9), NO_COMMAND),
    "an unknown address": (b"\x05\x01\x00\x02abcd\x00\x50", NO_ADDRESS),
    "another version": (b"\x04" + named("a.test", 80)[1:], 1),
    "something reserved": (b"\x05\x01\x01" + named("a.test", 80)[3:], 1),
    "what is gone": (named("gone.test", 1), UNREACHABLE),
}


async def test_refusals(shared_gate: ProcessGate, rooms: Rooms) -> None:
    box = await plugged(
        shared_gate, rooms.room(), EgressPlan(policy("a.test:80", "gone.test:1", hosts=["a.test", "gone.test"]))
    )
    for what, (request, code) in REFUSED.items():
        greeted, told = await talk(box, GREETING + request)
        assert greeted == b"\x05\x00", what
        assert told == bytes([5, code, 0, 1]) + bytes(6), what
    log = await box.session.close()
    assert sum(row.count for row in log.connections) == len(REFUSED)
    assert [row.host for row in log.connections if row.allowed] == ["gone.test"]
    assert "SOCKS5 to port 0" in [row.reason for row in log.connections]
    assert all(row.reason and row.via == "socks5" for row in log.connections)


async def test_other_greetings(shared_gate: ProcessGate, rooms: Rooms) -> None:
    box = await plugged(shared_gate, rooms.room(), EgressPlan(policy("a.test")))
    assert await talk(box, b"\x05\x01\x02") == (b"\x05\xff", b"")
    assert await talk(box, b"\x05\x00") == (b"\x05\xff", b"")
    assert await talk(box, b"\x04\x01\x00\x50\x7f\x00\x00\x01x\0") == (b"\x00\x5b", bytes(6))
    assert await talk(box, b"\x04\x01\x00\x50\x00\x00\x00\x01x\0a.test\0") == (b"\x00\x5b", bytes(6))
    assert await talk(box, b"\x05") == (b"", b"")
    assert await talk(box, GREETING + named("a.test", 80)[:-1]) == (b"\x05\x00", b"")


async def test_a_slow_request_is_not_waited_for(shared_gate: ProcessGate, rooms: Rooms) -> None:
    box = await plugged(shared_gate, rooms.room(), EgressPlan(policy("a.test"), EgressLimits(header_s=0.3)))
    reader, writer = await box.connect("127.0.0.1", PROXY_PORT)
    writer.write(GREETING + named("a.test", 80)[:-1])
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        async with asyncio.timeout(20):
            await reader.readexactly(3)
    writer.close()
