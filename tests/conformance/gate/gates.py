"""A gate with sandboxes' networks before it and servers behind it, for the tests of its own process."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence

from skillyard.domain.network.policy import OPERATOR, Layer, Policy, parse_rules
from skillyard.domain.network.session import Connection, EgressLimits, EgressPlan, NetworkLog
from skillyard.gate.client import ProcessGate
from skillyard.gate.client_session import ProcessSession
from tests.conformance.gate.rooms import Room

BOUND_S = 20.0


def policy(*rules: str, hosts: Sequence[str] = ()) -> Policy:
    """The operator's; ``hosts`` are names of this machine's loopback."""
    here = (ipaddress.ip_address("127.0.0.1"),)
    return Policy((Layer(OPERATOR, parse_rules(list(rules))),), dict.fromkeys(hosts, here))


def reaching(server: Server, *names: str, limits: EgressLimits | None = None) -> EgressPlan:
    """What may reach ``server`` by these names."""
    rules = [f"{name}:{server.port}" for name in names]
    return EgressPlan(policy(*rules, hosts=names), limits or EgressLimits())


class Server:
    """What ``talk`` says on each connection, on a port of the loopback. ``open`` are the connections under way."""

    def __init__(self, talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> None:
        self._talk = talk
        self.port = 0
        self.taken = 0
        self.open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_serving(self._server)
        for writer in list(self.open):
            writer.transport.abort()
        await until(lambda: not self.open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        self.open.add(writer)
        try:
            await self._talk(reader, writer)  # type: ignore[misc]
        except OSError:
            pass
        finally:
            writer.close()
            self.open.discard(writer)


async def stop_serving(server: asyncio.Server) -> None:
    """Closes a server. asyncio leaves the socket of a connection open that it accepts in the turn of the close."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(3):
        await asyncio.sleep(0)
    server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says everything again, to the end."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


class Plugged:
    """A session with a sandbox's network at it."""

    def __init__(self, gate: ProcessGate, session: ProcessSession, room: Room) -> None:
        self.gate = gate
        self.session = session
        self.room = room
        self._writers: list[asyncio.StreamWriter] = []

    async def close(self) -> NetworkLog:
        """The session, and what programs left open."""
        log = await self.session.close()
        for writer in self._writers:
            writer.transport.abort()
        return log

    async def log(self) -> list[Connection]:
        return list((await self.session.log()).connections)

    async def dial(self, name: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As a program does that knows no proxy: asks the name server, then connects."""
        return await self.connect(await self.resolve(name), port)

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = await asyncio.to_thread(self.room.dial, host, port)
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock)
        self._writers.append(writer)
        return reader, writer

    async def resolve(self, name: str) -> str:
        """Its IPv4 address. Raises LookupError."""
        return await asyncio.to_thread(ask, self.room, name)


async def plugged(gate: ProcessGate, room: Room, plan: EgressPlan, *ports: int, key: str = "run") -> Plugged:
    session = await gate.open(key, plan)
    await gate.plug(session.id, await asyncio.to_thread(room.listen, *ports))
    return Plugged(gate, session, room)


def ask(room: Room, name: str) -> str:
    """One question over UDP (RFC 1035 §4). Raises LookupError for an answer without an address."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    question = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + labels + b"\0\0\x01\0\x01"
    with room.program(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.53", 53))
        sock.send(question)
        answer = sock.recv(4096)
    if answer[3] & 15 or not answer[7]:
        raise LookupError(name)
    return socket.inet_ntoa(answer[-4:])


async def cut_off(reader: asyncio.StreamReader) -> int:
    """Reads until the connection is reset, which it must be; how much came before."""
    got = 0
    try:
        async with asyncio.timeout(BOUND_S):
            while data := await reader.read(1 << 16):
                got += len(data)
    except ConnectionResetError:
        return got
    raise AssertionError("the connection came to an orderly end")


async def turned_away(box: Plugged, host: str, port: int) -> None:
    """Connects, and must be reset without a word, before the program knows that it is connected or after."""
    try:
        reader, _ = await box.connect(host, port)
        assert not await cut_off(reader)
    except ConnectionResetError:
        return


async def until(condition: Callable[[], object]) -> None:
    """Wait for ``condition``, within bounds."""
    async with asyncio.timeout(BOUND_S):
        while not condition():
            await asyncio.sleep(0.01)
