"""Endpoints: the gate for backends whose inside nobody can enter, and what others make of them."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import socket
import stat
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from skillyard.domain.errors import GateFault
from skillyard.domain.network.session import ENDPOINT_USER, Connection, EgressLimits, Endpoint, EndpointKind
from skillyard.gate.client import ProcessGate
from skillyard.gate.client_session import ProcessSession
from tests.conformance.gate.gates import Server, echo, policy, reaching, until

pytestmark = pytest.mark.anyio
KINDS = [EndpointKind.UNIX, EndpointKind.TCP]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)


@asynccontextmanager
async def opened(
    gate: ProcessGate, key: str, server: Server, kind: EndpointKind, limits: EgressLimits | None = None
) -> AsyncIterator[tuple[ProcessSession, Endpoint]]:
    session = await gate.open(key, reaching(server, "api.test", limits=limits))
    try:
        yield session, await gate.endpoint(key, kind)
    finally:
        await session.close()


def connected(endpoint: Endpoint) -> socket.socket:
    if endpoint.kind is EndpointKind.UNIX:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = Path(endpoint.address)
        directory = os.open(path.parent, os.O_PATH)
        try:
            sock.connect(f"/proc/self/fd/{directory}/{path.name}")
        except OSError:
            sock.close()
            raise
        finally:
            os.close(directory)
    else:
        host, _, port = endpoint.address.rpartition(":")
        sock = socket.create_connection((host, int(port)), 10)
    sock.settimeout(10)
    return sock


def http(endpoint: Endpoint, target: str, credential: str | None = None, user: str = ENDPOINT_USER) -> bytes:
    """The answer to CONNECT, and to a line that is said after it."""
    shown = endpoint.credential if credential is None else credential
    head = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if shown:
        head.append(f"Proxy-Authorization: Basic {base64.b64encode(f'{user}:{shown}'.encode()).decode()}")
    with connected(endpoint) as sock:
        sock.sendall("\r\n".join([*head, "", ""]).encode())
        answer = sock.recv(4096)
        if answer.startswith(b"HTTP/1.1 200 "):
            sock.sendall(b"hello\n")
            answer += sock.recv(4096)
        return answer


def socks(endpoint: Endpoint, name: str, port: int, credential: str | None = None) -> bytes:
    """The last words of the gate, and of the server after a line."""
    shown = (endpoint.credential if credential is None else credential).encode()
    with connected(endpoint) as sock:
        sock.sendall(b"\x05\x02\x00\x02" if shown else b"\x05\x01\x00")
        answer = sock.recv(2)
        if answer != b"\x05\x02":
            return answer
        user = ENDPOINT_USER.encode()
        sock.sendall(bytes([1, len(user)]) + user + bytes([len(shown)]) + shown)
        answer = sock.recv(2)
        if answer != b"\x01\x00":
            return answer
        sock.sendall(b"\x05\x01\x00\x03" + bytes([len(name)]) + name.encode() + port.to_bytes(2))
        answer = sock.recv(10)
        if answer[1] == 0:
            sock.sendall(b"hello\n")
            return sock.recv(100)
        return answer


async def refusals(session: ProcessSession) -> list[Connection]:
    return [row for row in (await session.log()).connections if not row.allowed]


@kinds
async def test_programs_reach_what_the_policy_names(shared_gate: ProcessGate, kind: EndpointKind) -> None:
    async with Server(echo) as server, opened(shared_gate, "run", server, kind) as (session, endpoint):
        for answer in (
            await asyncio.to_thread(http, endpoint, f"api.test:{server.port}"),
            await asyncio.to_thread(socks, endpoint, "api.test", server.port),
        ):
            assert answer.endswith(b"hello\n"), answer
        assert b" 403 " in await asyncio.to_thread(http, endpoint, f"other.test:{server.port}")
        assert (await asyncio.to_thread(socks, endpoint, "other.test", server.port))[:2] == b"\x05\x02"
        await session.change(policy())
        assert b" 403 " in await asyncio.to_thread(http, endpoint, f"api.test:{server.port}")
        rows = (await session.log()).connections
        assert {(row.via, row.host, row.allowed) for row in rows} == {
            ("connect", "api.test", True),
            ("socks5", "api.test", True),
            ("connect", "other.test", False),
            ("socks5", "other.test", False),
            ("connect", "api.test", False),
        }


async def test_usual_clients_find_it_by_their_variables(
    shared_gate: ProcessGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()

    async with Server(answer) as server, opened(shared_gate, "run", server, EndpointKind.TCP) as (_, endpoint):
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        for name, value in endpoint.env(endpoint.address).items():
            monkeypatch.setenv(name, value)

        def fetch() -> bytes:
            # urlopen would keep these variables for the process: it makes its opener once
            with urllib.request.build_opener().open(f"http://api.test:{server.port}/", timeout=10) as got:
                return bytes(got.read())

        assert await asyncio.to_thread(fetch) == b"hello"


@kinds
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "198.18.0.2"])
async def test_the_floor_is_below_it(shared_gate: ProcessGate, kind: EndpointKind, address: str) -> None:
    async with Server(echo) as server:
        session = await shared_gate.open("run", replace(reaching(server, "api.test"), policy=policy("*:*")))
        endpoint = await shared_gate.endpoint("run", kind)
        assert b" 403 " in await asyncio.to_thread(http, endpoint, f"{address}:{server.port}")
        assert server.taken == 0
        assert [row.layer for row in await refusals(session)] == ["floor"]
        await session.close()


@kinds
async def test_without_the_credential_nobody_gets_in(shared_gate: ProcessGate, kind: EndpointKind) -> None:
    async with Server(echo) as server, opened(shared_gate, "run", server, kind) as (session, endpoint):
        target = f"api.test:{server.port}"
        for wrong in ("", "x", endpoint.credential[:-1], endpoint.credential + "x", endpoint.credential.swapcase()):
            answer = await asyncio.to_thread(http, endpoint, target, wrong)
            assert answer.startswith(b"HTTP/1.1 407 "), answer
            assert b"Proxy-Authenticate: Basic" in answer
            refused = await asyncio.to_thread(socks, endpoint, "api.test", server.port, wrong)
            assert refused == (b"\x01\x01" if wrong else b"\x05\xff")
        assert b" 407 " in await asyncio.to_thread(http, endpoint, target, None, "other")
        assert server.taken == 0
        rows = await refusals(session)
        assert {row.reason for row in rows} == {"the credential of the endpoint is missing or wrong"}
        assert sum(row.count for row in rows) == 11
        assert endpoint.credential not in repr(rows) + repr(endpoint)


@kinds
async def test_each_request_of_a_connection_shows_it(shared_gate: ProcessGate, kind: EndpointKind) -> None:
    async with Server(echo) as server, opened(shared_gate, "run", server, kind) as (_, endpoint):
        shown = base64.b64encode(f"{ENDPOINT_USER}:{endpoint.credential}".encode()).decode()

        def talk() -> bytes:
            with connected(endpoint) as sock:
                get = "GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n"
                sock.sendall(f"{get}Proxy-Authorization: Basic {shown}\r\nX: y\r\n\r\n{get}\r\n".encode())
                said = b""
                while piece := sock.recv(4096):
                    said += piece
                return said

        said = await asyncio.to_thread(talk)
        assert said.count(b"HTTP/1.1 ") == 1
        assert b" 403 " in said


@kinds
async def test_the_credential_of_another_session_is_worth_nothing(shared_gate: ProcessGate, kind: EndpointKind) -> None:
    async with (
        Server(echo) as server,
        opened(shared_gate, "one", server, kind) as (first, mine),
        opened(shared_gate, "two", server, kind) as (_, theirs),
    ):
        target = f"api.test:{server.port}"
        assert b" 407 " in await asyncio.to_thread(http, mine, target, theirs.credential)
        assert await asyncio.to_thread(socks, mine, "api.test", server.port, theirs.credential) == b"\x01\x01"
        assert (await asyncio.to_thread(http, theirs, target)).endswith(b"hello\n")
        again = await shared_gate.endpoint("one", kind)
        assert b" 407 " in await asyncio.to_thread(http, again, target, mine.credential), "each has one of its own"
        assert not [row for row in (await first.log()).connections if row.allowed]


@kinds
async def test_it_ends_with_its_session(shared_gate: ProcessGate, kind: EndpointKind) -> None:
    async with Server(echo) as server:
        async with opened(shared_gate, "run", server, kind) as (session, endpoint):
            held = connected(endpoint)
            await session.close()
            await until(lambda: _over(held))
            held.close()
        await until(lambda: closed(endpoint))
        if kind is EndpointKind.UNIX:
            assert not Path(endpoint.address).exists()
        async with opened(shared_gate, "run", server, kind) as (_, other):
            answer = await asyncio.to_thread(http, other, f"api.test:{server.port}", endpoint.credential)
            assert b" 407 " in answer
        with pytest.raises(GateFault, match="no open session 'run'"):
            await shared_gate.endpoint("run", kind)


def closed(endpoint: Endpoint) -> bool:
    try:
        connected(endpoint).close()
    except OSError:
        return True
    return False


@kinds
async def test_strangers_take_nothing_of_the_session(shared_gate: ProcessGate, kind: EndpointKind) -> None:
    limits = EgressLimits(connections=2, connections_total=4, header_s=1.0)
    async with Server(echo) as server, opened(shared_gate, "run", server, kind, limits) as (session, endpoint):
        silent = [connected(endpoint) for _ in range(40)]
        target = f"api.test:{server.port}"
        for _ in range(4):
            assert (await asyncio.to_thread(http, endpoint, target)).endswith(b"hello\n")
        assert b" 403 " in await asyncio.to_thread(http, endpoint, target), "its own count"
        await until(lambda: all(_over(sock) for sock in silent))
        for sock in silent:
            sock.close()
        assert "more than 4 connections" in [row.reason for row in await refusals(session)]


def _tried(endpoint: Endpoint, target: str) -> bytes:
    try:
        return http(endpoint, target)
    except OSError:
        return b""


def _over(sock: socket.socket) -> bool:
    sock.settimeout(0)  # with a timeout, recv waits for bytes in spite of MSG_DONTWAIT
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def test_a_flood_of_strangers_is_turned_away(shared_gate: ProcessGate) -> None:
    async with Server(echo) as server, opened(shared_gate, "run", server, EndpointKind.TCP) as (_, endpoint):
        flood = []
        for _ in range(80):
            with suppress(OSError):  # turned away at once
                flood.append(connected(endpoint))
        await until(lambda: 80 - len(flood) + sum(_over(sock) for sock in flood) >= 16)
        for sock in flood:
            sock.close()
        async with asyncio.timeout(20):
            while not (await asyncio.to_thread(_tried, endpoint, f"api.test:{server.port}")).endswith(b"hello\n"):
                await asyncio.sleep(0.05)


async def test_sockets_lie_where_others_cannot_go(shared_gate: ProcessGate) -> None:
    async with Server(echo) as server, opened(shared_gate, "run", server, EndpointKind.UNIX) as (_, endpoint):
        path = Path(endpoint.address)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o666


def vsock_listens() -> bool:
    try:
        with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as sock:
            sock.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
            sock.listen()
    except OSError:
        return False
    return True


async def test_a_kind_that_the_host_lacks_is_refused_by_name(shared_gate: ProcessGate) -> None:
    async with Server(echo) as server:
        session = await shared_gate.open("run", reaching(server, "api.test"))
        if vsock_listens():
            assert (await shared_gate.endpoint("run", EndpointKind.VSOCK)).address.startswith("2:")
        else:
            with pytest.raises(GateFault, match="no endpoint of the kind vsock can be had here"):
                await shared_gate.endpoint("run", EndpointKind.VSOCK)
        await session.close()


def knocked(endpoint: Endpoint, words: bytes, after: bytes, pieces: int = 0) -> bytes:
    """All that the gate says to a connection of a server that shows ``words``, some bytes at a time."""
    with connected(endpoint) as sock:
        for at in range(pieces):
            sock.sendall(words[at : at + 1])
        sock.sendall(words[pieces:] + after)
        said = b""
        # A gate that hung up with bytes unread has reset the connection: there is nothing more to end or to read then.
        with suppress(ConnectionResetError):
            try:
                sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                if error.errno != errno.ENOTCONN:
                    raise
            while piece := sock.recv(4096):
                said += piece
        return said


@kinds
async def test_a_server_shows_the_credential_once_for_all_requests(
    shared_gate: ProcessGate, kind: EndpointKind
) -> None:
    """Then the connection is as one of a sandbox's own network: no request shows anything."""
    async with Server(echo) as server, opened(shared_gate, "run", server, kind) as (session, endpoint):
        connect = f"CONNECT api.test:{server.port} HTTP/1.1\r\nHost: api.test\r\n\r\n".encode()
        for pieces in (0, 5):
            said = await asyncio.to_thread(knocked, endpoint, endpoint.knock(), connect + b"hello\n", pieces)
            assert said.startswith(b"HTTP/1.1 200 ")
            assert said.endswith(b"hello\n")
        both = b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n" * 2
        said = await asyncio.to_thread(knocked, endpoint, endpoint.knock(), both)
        assert said.count(b"HTTP/1.1 403 ") >= 1
        assert b" 407 " not in said
        socks5 = b"\x05\x01\x00\x05\x01\x00\x03\x08api.test" + server.port.to_bytes(2) + b"hello\n"
        assert (await asyncio.to_thread(knocked, endpoint, endpoint.knock(), socks5)).endswith(b"hello\n")
        rows = (await session.log()).connections
        assert {(row.via, row.host, row.allowed) for row in rows} == {
            ("connect", "api.test", True), ("http", "other.test", False), ("socks5", "api.test", True),
        }  # fmt: skip


@kinds
async def test_a_wrong_knock_opens_nothing(shared_gate: ProcessGate, kind: EndpointKind) -> None:
    limits = EgressLimits(header_s=0.5)
    async with Server(echo) as server, opened(shared_gate, "run", server, kind, limits) as (session, endpoint):
        connect = f"CONNECT api.test:{server.port} HTTP/1.1\r\nHost: api.test\r\n\r\n".encode()
        right = endpoint.knock()
        for wrong in (b"\0\n", right[:-2] + b"\n", b"\0x" + right[1:], right[:-1] + b"x\n", right[:-1], b"\0" * 600):
            assert await asyncio.to_thread(knocked, endpoint, wrong, connect) == b"", wrong
        assert server.taken == 0
        assert {row.reason for row in await refusals(session)} == {"the credential of the endpoint is missing or wrong"}
        silent = connected(endpoint)
        silent.sendall(right[:9])
        await until(lambda: _over(silent))
        silent.close()


async def test_a_knock_counts_for_the_session(shared_gate: ProcessGate) -> None:
    limits = EgressLimits(connections_total=2)
    async with Server(echo) as server, opened(shared_gate, "run", server, EndpointKind.UNIX, limits) as (run, endpoint):
        connect = f"CONNECT api.test:{server.port} HTTP/1.1\r\nHost: api.test\r\n\r\n".encode()
        said = [await asyncio.to_thread(knocked, endpoint, endpoint.knock(), connect) for _ in range(3)]
        assert [bool(words) for words in said] == [True, True, False]
        assert [row.reason for row in await refusals(run)] == ["more than 2 connections"]


async def test_the_way_of_a_session_is_one_endpoint(shared_gate: ProcessGate) -> None:
    async with Server(echo) as server:
        session = await shared_gate.open("run", reaching(server, "api.test"))
        first, second = await asyncio.gather(shared_gate.way(session.id), shared_gate.way(session.id))
        assert first == second
        assert first.kind is EndpointKind.UNIX
        await session.close()
        with pytest.raises(GateFault, match="no such session"):
            await shared_gate.way(session.id)
