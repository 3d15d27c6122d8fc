"""What the gate's callbacks are given, and what they fail of, ends one question or one connection: never the gate, and
never the server at the other end of its channel."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import EgressPlan
from skillyard.gate.dial import Dialer
from skillyard.gate.listener import Capacity, Listener
from skillyard.gate.process import Service
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Session
from skillyard.gate.wire import plan_out
from skillyard.ipc.channel import Channel, Header, encode

pytestmark = pytest.mark.anyio

PLAN = plan_out(EgressPlan(Policy()))
NO_QUESTIONS: list[Header] = [
    {},
    {"id": 1},
    {"op": "open"},
    {"id": 1, "op": "open"},
    {"id": 1, "op": "open", "session": [], "plan": 5, "trusted": ""},
    {"id": 1, "op": "plug", "session": {}},
    {"id": [], "op": "close", "session": "none"},
    {"id": 1, "op": "change", "session": "s", "policy": []},
    {"id": 1, "op": "log", "session": None},
    {"id": 1, "op": 7},
    {"id": 1, "op": "attach", "session": "none"},
    {"id": 1, "op": "discard"},
    {"id": 1, "op": "sealed", "session": "s"},
    {"id": 1, "op": "sealed", "session": "s", "next": "x"},
    {"id": 1, "op": "endpoint", "session": "s"},
    {"id": 1, "op": "endpoint", "session": "s", "endpoint": {}},
    {"id": 1, "op": "open", "session": "u", "key": "k", "plan": PLAN, "trusted": "", "before": {}},
]


@dataclass
class Gate:
    """A gate's service in this process, and the server's end of its channel."""

    service: Service
    channel: Channel
    sock: socket.socket
    told: asyncio.Queue[Header] = field(default_factory=asyncio.Queue)

    async def ask(self, message: Header, *sockets: socket.socket) -> Header:
        self.channel.send(message, sockets=sockets)
        async with asyncio.timeout(20):
            while "op" in (answer := await self.told.get()):
                pass
        return answer


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    service = Service(Dialer(frozenset), Capacity(10_000), {})
    service.connect(theirs)
    told: asyncio.Queue[Header] = asyncio.Queue()
    channel = Channel(asyncio.get_running_loop(), ours, lambda message, *_: told.put_nowait(message), lambda: None)
    yield Gate(service, channel, ours, told)
    channel.close()
    async with asyncio.timeout(20):
        await service.ended.wait()


async def opens(gate: Gate, session: str) -> None:
    answer = await gate.ask({"id": 9, "op": "open", "session": session, "plan": PLAN, "trusted": ""})
    assert answer == {"id": 9, "ok": {"trust": ""}}


async def test_what_is_not_a_question_is_answered_and_the_next_one_too(gate: Gate) -> None:
    await opens(gate, "s")
    before = len(os.listdir("/proc/self/fd"))
    for message in NO_QUESTIONS:
        sent, kept = socket.socketpair()
        answer = await gate.ask(message, sent)
        assert "error" in answer, message
        kept.close()
    assert len(os.listdir("/proc/self/fd")) == before, "sockets that nobody took are closed"
    await opens(gate, "t")


async def test_a_descriptor_that_is_not_a_socket_is_closed(gate: Gate) -> None:
    await opens(gate, "s")
    before = len(os.listdir("/proc/self/fd"))
    reading, writing = os.pipe()
    socket.send_fds(gate.sock, [encode({"id": 3, "op": "plug", "session": "s"}, sockets=2)], [reading, writing])
    os.close(reading)
    os.close(writing)
    async with asyncio.timeout(20):
        assert "error" in await gate.told.get()
    assert len(os.listdir("/proc/self/fd")) == before
    await opens(gate, "t")


async def test_a_connection_whose_service_fails_ends_alone() -> None:
    session = Session("s", EgressPlan(Policy()), Dialer(frozenset))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    faults: list[BaseException] = []
    served = 0

    async def serve(_: Session, client: Stream) -> None:
        nonlocal served
        served += 1
        if served == 1:
            raise ZeroDivisionError
        await client.write(b"served")
        client.close()

    door = Listener(session, listener, serve, Capacity(10_000), faults.append)
    try:
        for wanted in (b"", b"served"):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            async with asyncio.timeout(20):
                got = b""
                try:
                    got = await reader.read()
                except ConnectionResetError:
                    assert not wanted
            assert got == wanted
            writer.close()
    finally:
        door.close()
    assert [type(fault) for fault in faults] == [ZeroDivisionError]
