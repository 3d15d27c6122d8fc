"""The HTTP proxy through the gate's process: what clients that know proxies say, and what hostile ones do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skillyard.domain.network.session import PROXY_PORT, EgressLimits, EgressPlan
from skillyard.gate.client import ProcessGate
from tests.conformance.gate.gates import Server, echo, plugged, policy, reaching, until
from tests.conformance.gate.programs.authority import Authority
from tests.conformance.gate.proxied import Origin, client, connect, get, passed, read_head
from tests.conformance.gate.rooms import Rooms
from tests.unit.gate.hellos import hello

pytestmark = pytest.mark.anyio


async def test_requests_to_several_hosts_on_one_connection(shared_gate: ProcessGate, rooms: Rooms) -> None:
    origin = Origin()
    async with Server(origin) as server:
        port = server.port
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test", "b.test"))
        async with client(box) as one:
            for name in ("a.test", "b.test", "a.test"):
                assert (await one.say(get(port, f"/{name}", name))).endswith(name.encode())
        assert server.taken == 2  # the first was kept for the third
        [a, b] = sorted((await box.session.close()).connections, key=lambda row: row.host)
    assert origin.heard == [passed(port, "/a.test"), passed(port, "/b.test", "b.test"), passed(port, "/a.test")]
    assert [(row.via, row.host, row.port, row.allowed, row.count) for row in (a, b)] == [
        ("http", "a.test", port, True, 1),
        ("http", "b.test", port, True, 1),
    ]


async def test_what_is_for_the_proxy_is_not_passed_on(shared_gate: ProcessGate, rooms: Rooms) -> None:
    origin = Origin()
    more = (
        "Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eDp5\r\nConnection: keep-alive, X-Hop\r\n"
        "X-Hop: 1\r\n"
        "Keep-Alive: 300\r\nTE: trailers\r\nproxy-anything: x\r\nX-End: 2\r\n"
    )
    async with Server(origin) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"))
        async with client(box) as one:
            answer = await one.say(get(server.port, more=more))
    assert origin.heard == [passed(server.port, more="X-End: 2\r\n")]
    assert b"via" not in answer.lower()


async def test_bodies_both_ways(shared_gate: ProcessGate, rooms: Rooms) -> None:
    big = b"x" * 3_000_000
    origin = Origin(
        {"/big": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2dc6c0\r\n" + big + b"\r\n0\r\n\r\n"}
    )
    async with Server(origin) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"))
        async with client(box) as one:
            head = (
                f"POST http://a.test:{server.port}/big HTTP/1.1\r\nHost: a.test:{server.port}\r\nConnection: close\r\n"
            )
            answer = await one.all(head.encode() + b"Content-Length: %d\r\n\r\n" % len(big) + big)
    assert origin.heard[0].endswith(b"\r\n\r\n" + big)
    assert answer.count(b"x") == len(big)
    assert answer.endswith(b"\r\n0\r\n\r\n")


async def test_an_answer_that_lasts_until_the_end(shared_gate: ProcessGate, rooms: Rooms) -> None:
    origin = Origin({"/end": b"HTTP/1.0 200 OK\r\nKeep-Alive: 5\r\nX: y\r\n\r\nall of it"})
    async with Server(origin) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"))
        async with client(box) as one:
            one.writer.write(get(server.port, "/end") + get(server.port, "/2"))
            said = await one.reader.readuntil(b"0\r\n\r\n")
            assert said == b"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nall of it\r\n0\r\n\r\n"
            assert (await one.say(b"")).endswith(b"/2")


async def test_a_websocket(shared_gate: ProcessGate, rooms: Rooms) -> None:
    switched = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    origin = Origin({"/ws": switched})
    more = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"
    async with Server(origin) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"))
        async with client(box) as one:
            assert await one.say(get(server.port, "/ws", more=more)) == switched
            one.writer.write(b"\x81\x03abc")
            assert await one.reader.readexactly(5) == b"\x81\x03abc"
    assert b"\r\nUpgrade: websocket\r\n" in origin.heard[0]
    assert b"\r\nConnection: Upgrade\r\n" in origin.heard[0]


async def test_connect_to_tls(shared_gate: ProcessGate, rooms: Rooms, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with _tls_server(authority, Origin()) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"))
        async with client(box) as one:
            assert await one.say(connect(server.port)) == b"HTTP/1.1 200 Connection established\r\n\r\n"
            trust = ssl.create_default_context(cadata=authority.ca_pem)
            await one.writer.start_tls(trust, server_hostname="a.test")
            assert (await one.say(b"GET /in HTTP/1.1\r\nHost: a.test\r\n\r\n")).endswith(b"/in")
        [row] = (await box.session.close()).connections
    assert (row.via, row.host, row.allowed) == ("connect", "a.test", True)


@asynccontextmanager
async def _tls_server(authority: Authority, origin: Origin) -> AsyncIterator[Server]:
    server = Server(origin)
    context = authority.context("a.test")
    server._server = await asyncio.start_server(server._serve, "127.0.0.1", 0, ssl=context)
    server.port = server._server.sockets[0].getsockname()[1]
    yield server
    await server.__aexit__()


async def test_connect_to_what_is_neither(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(echo) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"))
        async with client(box) as one:
            assert (await one.say(connect(server.port) + b"\0ahead")).startswith(b"HTTP/1.1 200 ")
            assert await one.reader.readexactly(6) == b"\0ahead"
            one.writer.write_eof()
            assert await one.reader.read() == b""


@pytest.mark.parametrize(
    "said",
    [
        lambda port: hello(b"b.test"),
        lambda port: hello(None),
        lambda port: b"GET / HTTP/1.1\r\nHost: b.test:%d\r\n\r\n" % port,
        lambda port: connect(port, "b.test"),
        lambda port: get(port, name="b.test"),
        lambda port: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["another name in TLS", "no name in TLS", "another Host", "CONNECT inside", "a proxy request inside", "HTTP/2"],
)
async def test_a_tunnel_is_held_to_its_host(
    shared_gate: ProcessGate, rooms: Rooms, said: Callable[[int], bytes]
) -> None:
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())

    async with Server(listen) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test", "b.test"))
        async with client(box) as one:
            await one.say(connect(server.port))
            told = await one.all(said(server.port))
            assert told[:1] in (b"", b"\x15") or told.startswith(b"HTTP/1.1 403 ")
        await until(lambda: not server.open)
        [row] = (await box.session.close()).connections
    assert heard in ([], [b""])
    assert not row.allowed
    assert row.reason


REFUSED: dict[str, Callable[[int], bytes]] = {
    "another name": lambda port: get(port, name="c.test"),
    "another port": lambda port: get(port + 1),
    "another Host": lambda port: get(port).replace(b"Host: a.test", b"Host: b.test"),
    "another target": lambda port: get(port).replace(b"//a.test", b"//b.test"),
    "a path": lambda port: passed(port),
    "a path for the proxy": lambda port: b"GET / HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
    "userinfo": lambda port: get(port).replace(b"//a.test", b"//user@a.test"),
    "userinfo that looks like the host": lambda port: get(port).replace(b"//a.test", b"//a.test@b.test"),
    "https": lambda port: get(port).replace(b"http:", b"https:"),
    "HTTP to the port of TLS": lambda port: get(443),
    "a trailing dot": lambda port: get(port, name="a.test."),
    "a leading zero": lambda port: get(port).replace(b":%d" % port, b":0%d" % port),
    "a signed port": lambda port: get(port).replace(b":%d" % port, b":+%d" % port),
    "a port that wraps round": lambda port: get(port + 65536),
    "an empty port": lambda port: get(port).replace(b":%d" % port, b":"),
    "a literal": lambda port: get(port, name="127.0.0.1"),
    "an odd literal": lambda port: get(port, name="0x7f.1"),
    "an odd literal of one number": lambda port: get(port, name="2130706433"),
    "a short literal": lambda port: get(port, name="127.1"),
    "IPv6": lambda port: get(port, name="[::1]"),
    "a mapped literal": lambda port: get(port, name="[::ffff:127.0.0.1]"),
    "a zone": lambda port: get(port, name="[fe80::1%25lo]"),
    "IDNA": lambda port: get(port, name="ä.test"),
    "an address that stands for nothing": lambda port: get(port, name="198.18.77.77"),
    "metadata": lambda port: get(80, name="169.254.169.254"),
    "CONNECT to another name": lambda port: connect(port, "c.test"),
    "CONNECT to another port": lambda port: connect(port + 1),
    "CONNECT to the proxy": lambda port: connect(PROXY_PORT, "127.0.0.1"),
    "CONNECT to a literal": lambda port: connect(port, "127.0.0.1"),
    "CONNECT to an odd literal": lambda port: connect(port, "0177.0.0.1"),
    "CONNECT to a mapped literal": lambda port: connect(port, "[::ffff:7f00:1]"),
    "CONNECT without a port": lambda port: b"CONNECT a.test HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "CONNECT to an empty port": lambda port: connect("").replace(b"Host: a.test:", b"Host: a.test"),
    "CONNECT to port 0": lambda port: connect(0),
    "CONNECT to a URL": lambda port: connect(port).replace(b"CONNECT a", b"CONNECT http://a"),
    "CONNECT with a body": lambda port: connect(port)[:-2] + b"Content-Length: 5\r\n\r\nhello",
    "CONNECT with chunks": lambda port: connect(port)[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both framings": lambda port: get(port, more="Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
    "h2c": lambda port: get(port, more="Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    "HTTP/0.9": lambda port: b"GET http://a.test:%d/\r\n\r\n" % port,
    "TLS to the proxy": lambda port: hello(b"a.test"),
}  # fmt: skip


async def test_refusals(shared_gate: ProcessGate, rooms: Rooms) -> None:
    """Each at once, with one line that says why, and in the log."""
    origin = Origin()
    async with Server(origin) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test", "b.test"))
        for what, said in REFUSED.items():
            async with client(box) as one:
                told = await one.all(said(server.port))
            head, _, reason = told.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 403 Forbidden\r\n"), what
            assert reason.strip(), what
            assert reason.count(b"\n") == 1, what
        assert server.taken == 0
        log = await box.session.close()
    assert sum(row.count for row in log.connections) == len(REFUSED)
    assert not [row for row in log.connections if row.allowed or not row.reason]
    assert "198.18.77.77 stands for no name that was asked for" in [row.reason for row in log.connections]


async def test_the_port_of_tls_is_for_tls(shared_gate: ProcessGate, rooms: Rooms) -> None:
    box = await plugged(shared_gate, rooms.room(), EgressPlan(policy("a.test:443", hosts=["a.test"])))
    async with client(box) as one:
        assert b"\r\n\r\nport 443 is for TLS" in await one.all(get(443))


async def test_the_second_request_is_judged_as_the_first(shared_gate: ProcessGate, rooms: Rooms) -> None:
    origin = Origin()
    async with Server(origin) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"))
        async with client(box) as one:
            told = await one.all(get(server.port, "/1") + get(server.port, "/2", "c.test") + get(server.port, "/3"))
    assert told.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n/1HTTP/1.1 403 Forbidden\r\n")
    assert origin.heard == [passed(server.port, "/1")]


async def test_what_cannot_be_reached(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(echo) as gone:
        pass
    box = await plugged(shared_gate, rooms.room(), reaching(gone, "a.test"))
    for said in (get(gone.port), connect(gone.port)):
        async with client(box) as one:
            told = await one.all(said)
        assert told.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        assert b"refused" in told


async def test_what_does_not_answer(shared_gate: ProcessGate, rooms: Rooms) -> None:
    with contextlib.ExitStack() as opened:
        deaf = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # its queue is full, and it takes nobody from it
            knocking = opened.enter_context(socket.socket())
            knocking.setblocking(False)
            knocking.connect_ex(deaf.getsockname())
        port = deaf.getsockname()[1]
        plan = EgressPlan(policy(f"a.test:{port}", hosts=["a.test"]), EgressLimits(connect_s=0.5))
        box = await plugged(shared_gate, rooms.room(), plan)
        async with client(box) as one:
            told = await one.all(get(port))
    assert told.startswith(b"HTTP/1.1 504 Gateway Timeout\r\n")


async def test_a_server_that_ends_or_talks_nonsense(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"SSH-2.0-x\r\n\r\n")

    for talk in (hang_up, babble):
        async with Server(talk) as server:
            box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"), key=talk.__name__)
            async with client(box) as one:
                assert (await one.all(get(server.port))).startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


async def test_an_answer_to_half_a_question(shared_gate: ProcessGate, rooms: Rooms) -> None:
    too_much = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"

    async def decline(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(too_much)

    async with Server(decline) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"), key="decline")
        async with client(box) as one:
            said = get(server.port).replace(b"GET", b"POST")[:-2] + b"Content-Length: 1000000\r\n\r\n" + bytes(1000)
            told = await one.all(said)
    assert told.startswith(b"HTTP/1.1 413 ")
    assert told.endswith(b"\r\n\r\nno")


async def test_a_server_that_ends_while_it_is_kept(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(Origin({"/end": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"})) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test"))
        async with client(box) as one:
            await one.say(get(server.port, "/end"))
            await until(lambda: not server.open)
            assert (await one.say(get(server.port, "/again"))).endswith(b"/again")
        assert server.taken == 2


async def test_a_narrower_policy_ends_what_is_kept_and_not_the_client(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(Origin()) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test", "b.test"))
        async with client(box) as one:
            await one.say(get(server.port, name="a.test"))
            await one.say(get(server.port, name="b.test"))
            await box.session.change(reaching(server, "b.test").policy)
            await until(lambda: len(server.open) == 1)
            assert (await one.say(get(server.port, "/on", "b.test"))).endswith(b"/on")
            assert (await one.all(get(server.port, name="a.test"))).startswith(b"HTTP/1.1 403 ")


async def test_a_slow_head_is_not_waited_for(shared_gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(Origin()) as server:
        box = await plugged(shared_gate, rooms.room(), reaching(server, "a.test", limits=EgressLimits(header_s=0.5)))
        async with client(box) as one:
            said = get(server.port)

            async def drip() -> None:
                for at in range(len(said)):
                    one.writer.write(said[at : at + 1])
                    await asyncio.sleep(0.1)

            dripping = asyncio.create_task(drip())
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                async with asyncio.timeout(20):
                    await one.reader.readexactly(1)
            dripping.cancel()
