"""The conformance suite of the gate port: kept sessions, and endpoints.

Programs are played by this process, which talks to endpoints. How sockets in a sandbox's namespace are served is the
matter of the section ``egress`` of the sandbox suite.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from skillyard.domain.errors import GateFault
from skillyard.domain.network.policy import OPERATOR, Layer, Policy, parse_rules
from skillyard.domain.network.session import ENDPOINT_USER, EgressLimits, EgressPlan, Endpoint, EndpointKind, NetworkLog
from skillyard.ports.gate import Gate
from skillyard.testing.store_check import Checks, expect, refused

KEY, NAME = "run_1", "api.test"
_BOUND_S = 20.0


@dataclass(frozen=True, slots=True)
class GateGround:
    """A data directory. ``server`` gives the gate of its next server, after the one before was killed; ``kill`` kills
    the process of a gate, and returns when another one serves the kept sessions."""

    server: Callable[[], Gate]
    kill: Callable[[Gate], Awaitable[None]]


check = Checks[GateGround]()
CHECKS = check.all


@check
async def a_kept_session_is_attached_by_the_next_server(ground: GateGround) -> None:
    async with _echo() as port:
        first = ground.server()
        session = await first.open(KEY, _plan(port), kept=True)
        endpoint = await first.endpoint(KEY, EndpointKind.TCP)
        expect(await _says(endpoint, port), "it is served")
        again = ground.server()
        expect(list(await again.held()) == [KEY], "the next server is told of it", await again.held())
        attached = await again.attach(KEY)
        expect(attached.id == session.id, "it is the same session", attached.id)
        expect(attached.policy == session.policy, "under the same rules")
        expect(await _says(endpoint, port), "and goes on")
        log = await attached.close()
        expect(_count(log, allowed=True) == 2, "its log goes on too", log)
        expect(not _lost(log), "and nothing was lost", log)


@check
async def a_session_of_a_run_ends_with_its_server(ground: GateGround) -> None:
    async with _echo() as port:
        first = ground.server()
        await first.open(KEY, _plan(port))
        endpoint = await first.endpoint(KEY, EndpointKind.TCP)
        again = ground.server()
        expect(list(await again.held()) == [], "nothing is kept")
        await refused(GateFault, again.attach(KEY), "there is nothing to attach")
        await _until(lambda: _closed(endpoint), "nobody listens any more")


@check
async def a_kept_session_outlives_its_gate(ground: GateGround) -> None:
    async with _echo() as port:
        gate = ground.server()
        session = await gate.open(KEY, _plan(port), kept=True)
        endpoint = await gate.endpoint(KEY, EndpointKind.TCP)
        expect(await _says(endpoint, port), "it is served")
        await session.change(_policy())
        await ground.kill(gate)
        expect(not await _says(endpoint, port), "a change is in force still")
        await session.change(_policy(f"{NAME}:{port}"))
        expect(await _says(endpoint, port), "and can be taken back")
        log = await session.close()
        expect(_lost(log) == 1, "the log tells of the loss", log)
        expect(_count(log, allowed=False) == 1 + _lost(log), "and of what was refused since", log)


@check
async def it_outlives_both(ground: GateGround) -> None:
    async with _echo() as port:
        gate = ground.server()
        await gate.open(KEY, _plan(port), kept=True)
        endpoint = await gate.endpoint(KEY, EndpointKind.TCP)
        for _ in range(3):
            await ground.kill(gate)
            gate = ground.server()
            session = await gate.attach(KEY)
            expect(await _says(endpoint, port), "each next gate serves it")
        expect(_lost(await session.close()) == 3, "the log tells of each loss")


@check
async def a_session_that_is_over_is_not_kept(ground: GateGround) -> None:
    for way in ("close", "discard", "discard by the next server"):
        gate = ground.server()
        session = await gate.open(KEY, _plan(1), kept=True)
        endpoint = await gate.endpoint(KEY, EndpointKind.UNIX)
        if way == "close":
            await session.close()
        else:
            gate = ground.server() if "next" in way else gate
            for _ in range(2):
                await gate.discard(KEY)
        expect(list(await gate.held()) == [], f"after {way} nothing is held")
        await refused(GateFault, gate.attach(KEY), f"after {way} there is nothing to attach")
        await _until(lambda at=endpoint: _closed(at), f"after {way} nobody listens")  # type: ignore[misc]
        expect((await session.close()) == (await session.log()), "closing can be repeated")


@check
async def a_key_that_is_open_goes_on_under_the_new_plan(ground: GateGround) -> None:
    async with _echo() as port:
        gate = ground.server()
        first = await gate.open(KEY, _plan(1), kept=True)
        endpoint = await gate.endpoint(KEY, EndpointKind.TCP)
        expect(not await _says(endpoint, port), "the first plan does not allow it")
        again = await ground.server().open(KEY, _plan(port), kept=True)
        expect(again.id == first.id, "it is the same session")
        expect(await _says(endpoint, port), "the new plan holds")
        expect(_count(await again.close(), allowed=False) == 1, "the log goes on")


@check
async def endpoints_ask_for_their_own_credential(ground: GateGround) -> None:
    async with _echo() as port:
        gate = ground.server()
        for key in (KEY, "run_2"):
            await gate.open(key, _plan(port))
        for kind in (EndpointKind.TCP, EndpointKind.UNIX):
            mine, theirs = await gate.endpoint(KEY, kind), await gate.endpoint("run_2", kind)
            expect(mine.credential != theirs.credential, "each has a credential of its own")
            expect(mine.credential not in repr(mine), "which its text does not show")
            expect(await _says(mine, port), f"{kind.value}: it is served")
            for wrong in ("", "x", theirs.credential):
                expect(not await _says(mine, port, wrong), f"{kind.value}: not without it")
            expect(not await _says(mine, port, name="127.0.0.1"), f"{kind.value}: the floor is below it")
        await refused(GateFault, gate.endpoint("run_3", EndpointKind.TCP), "a session that is not open has none")


def _policy(*rules: str) -> Policy:
    here = (ipaddress.ip_address("127.0.0.1"),)
    return Policy((Layer(OPERATOR, parse_rules(list(rules))),), {NAME: here})


def _plan(port: int) -> EgressPlan:
    return EgressPlan(_policy(f"{NAME}:{port}"), EgressLimits())


def _lost(log: NetworkLog) -> int:
    return sum(row.count for row in log.connections if row.via == "gate")


def _count(log: NetworkLog, *, allowed: bool) -> int:
    return sum(row.count for row in log.connections if row.allowed == allowed)


@asynccontextmanager
async def _echo() -> AsyncIterator[int]:
    """The port of a server on the loopback that says everything again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _says(endpoint: Endpoint, port: int, credential: str | None = None, name: str = NAME) -> bool:
    """Returns whether a program reaches the server through the endpoint."""
    shown = f"{ENDPOINT_USER}:{endpoint.credential if credential is None else credential}".encode()
    head = f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n"
    async with asyncio.timeout(_BOUND_S):
        try:
            reader, writer = await _connected(endpoint)
        except OSError:
            return False
        try:
            writer.write(f"{head}Proxy-Authorization: Basic {base64.b64encode(shown).decode()}\r\n\r\n".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200 "):
                return False
            writer.write(b"hello\n")
            return await reader.readline() == b"hello\n"
        except (OSError, asyncio.IncompleteReadError):
            return False
        finally:
            writer.transport.abort()


async def _connected(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if endpoint.kind is EndpointKind.UNIX:
        return await asyncio.open_unix_connection(endpoint.address)
    host, _, port = endpoint.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def _closed(endpoint: Endpoint) -> bool:
    try:
        _, writer = await _connected(endpoint)
    except OSError:
        return True
    writer.transport.abort()
    return False


async def _until(condition: Callable[[], Awaitable[bool]], promise: str) -> None:
    """Waits until the condition holds. Raises Failed."""
    for _ in range(500):
        if await condition():
            return
        await asyncio.sleep(0.01)
    expect(False, promise)
