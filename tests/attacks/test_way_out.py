"""Programs that attack the way out of a sandbox with an agent: floods, silence, and what is not theirs."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX, socket

import pytest

from skillyard.domain.errors import GateFault, InvalidInput
from skillyard.domain.network.session import PROXY_PORT, Egress, Endpoint, EndpointKind
from skillyard.sandbox import agent_way_out
from skillyard.sandbox.agent_client import AgentSandbox
from skillyard.sandbox.agent_link import Reach
from skillyard.sandbox.agent_way_out import MOST, WINDOW
from tests.agents import BOUND_S, WAIT, AgentBox, collect, python, until
from tests.conformance.sandbox import exec_walls

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(exec_walls.missing_tools()), reason=exec_walls.missing_tools()),
]

EGRESS = Egress("session")
APART = ("bwrap", "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-net", "--die-with-parent", "--")
"""A network of its own, so that the agent listens where no other test does."""
AT = f"('127.0.0.1', {PROXY_PORT})"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Far:
    """A gate with one session, whose connections ``talk`` serves once they have knocked."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._place = tempfile.mkdtemp(prefix="skillyard-far-")
        self._endpoint = Endpoint(EndpointKind.UNIX, f"{self._place}/s", "secret")
        self._listener = socket(AF_UNIX)
        self._tasks: set[asyncio.Task[None]] = set()
        self.now = self.most = self.all = 0

    async def __aenter__(self) -> Far:
        self._listener.bind(self._endpoint.address)
        self._listener.listen(100)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        await self.cut()
        Path(self._endpoint.address).unlink(missing_ok=True)
        Path(self._place).rmdir()

    async def cut(self) -> None:
        """Ends all connections, as the gate does with those in which nothing moves."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        # not by a server of asyncio: one that is closed leaves those open that it has accepted just now
        connection, _ = self._listener.accept()
        task = asyncio.create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: connection.close())  # also of one that is cut before it begins

    async def _serve(self, connection: socket) -> None:
        self.now, self.all = self.now + 1, self.all + 1
        self.most = max(self.most, self.now)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):  # the last at the test's end
                reader, writer = await asyncio.open_connection(sock=connection, limit=WINDOW)
                try:
                    assert await reader.readexactly(len(self._endpoint.knock())) == self._endpoint.knock()
                    await self._talk(reader, writer)
                finally:
                    writer.transport.abort()
        finally:
            self.now -= 1

    async def way(self, session: str) -> Endpoint:
        assert session == EGRESS.session
        return self._endpoint

    async def plug(self, session: str, sockets: Sequence[socket]) -> None:
        raise GateFault(f"{session}: no sockets are given to it: {len(sockets)}")

    def served(self, session: str) -> Collection[int]:
        del session
        return ()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    await reader.read()


async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Neither reads nor writes."""
    del reader
    await writer.wait_closed()


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    while True:
        writer.write(bytes(65536))
        await writer.drain()


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[AgentBox]:
    box = AgentBox(tmp_path, prefix=APART)
    box.listen()
    yield box
    await box.close()


def client(box: AgentBox, far: Far) -> AgentSandbox:
    sandbox = AgentSandbox(Reach(box.opener(), box.key), "box", {}, timeout_ms=60_000, gate=far)
    box.clients.append(sandbox)
    return sandbox


def agent_memory(box: AgentBox) -> int:
    """Bytes of the agent, the child of the process that made its place."""
    agent = Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text().split()[0]
    line = next(x for x in Path(f"/proc/{agent}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) << 10


async def answers(sandbox: AgentSandbox) -> None:
    """Other traffic of the channel goes on: output, files and kills."""
    async with asyncio.timeout(BOUND_S):
        name = f"quick-{os.urandom(4).hex()}"
        assert await collect(await sandbox.start(python("print('x' * 300_000)"), id=name)) == b"x" * 300_000 + b"\n"
        await sandbox.entries("/")
        waits = await sandbox.start(python(WAIT), id=f"{name}-waits")
        await until(waits, b"ready\n")
        await waits.kill()
        await waits.wait()


MANY = f"""
import socket, sys
held = []
for _ in range(10_000):
    try: peer = socket.socket()
    except OSError: break  # an ordinary user's limit of descriptors
    peer.setblocking(False)
    try: peer.connect_ex({AT})
    except OSError: break
    held.append(peer)
    try: peer.send(bytes(65536))
    except OSError: pass
    if len(held) > 3000: break
print('all', flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("talk", [hold, pour], ids=["nobody reads there", "floods come back"])
async def test_a_crowd_of_silent_connections_is_bounded_and_starves_nobody(box: AgentBox, talk: Talk) -> None:
    async with Far(talk) as far:
        sandbox = client(box, far)
        await sandbox.plug(EGRESS)
        crowd = await sandbox.start(python(MANY, stdin=True), id="crowd")
        await until(crowd, b"all\n")
        async with asyncio.timeout(BOUND_S):
            while far.now < MOST - agent_way_out.READY:
                await asyncio.sleep(0.01)
        await answers(sandbox)
        assert far.most <= MOST
        assert len(sandbox.way_out._carried) <= MOST
        assert agent_memory(box) < 128 << 20, "windows bound what it holds"
        await crowd.kill()
        await answers(sandbox)
        async with asyncio.timeout(BOUND_S):
            while len(sandbox.way_out._carried) > agent_way_out.READY:
                await far.cut()  # also those that waited in the kernel until others were cut
                await asyncio.sleep(0.01)
        again = f"import socket; socket.create_connection({AT}, 10)"
        assert (await (await sandbox.start(python(again), id="again")).wait()).code == 0


FLOOD = f"""
import socket, threading
def pour():
    peer = socket.create_connection({AT}, 10)
    while True: peer.sendall(bytes(1 << 20))
threads = [threading.Thread(target=pour, daemon=True) for _ in range(8)]
for thread in threads: thread.start()
print('pours', flush=True)
threads[0].join()
"""


@pytest.mark.parametrize("talk", [hold, echo], ids=["nobody reads there", "all is read and comes back"])
async def test_a_flood_starves_nobody(box: AgentBox, talk: Talk) -> None:
    async with Far(talk) as far:
        sandbox = client(box, far)
        await sandbox.plug(EGRESS)
        flood = await sandbox.start(python(FLOOD), id="flood")
        await until(flood, b"pours\n")
        async with asyncio.timeout(BOUND_S):
            while far.now < 8:
                await asyncio.sleep(0.01)
        for _ in range(3):
            await answers(sandbox)
        assert agent_memory(box) < 128 << 20
        await flood.kill()


async def test_connections_are_paced(box: AgentBox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs make them faster than the server has time for them."""
    monkeypatch.setattr(agent_way_out, "A_SECOND", 50)
    monkeypatch.setattr(agent_way_out, "MOST", 20)
    hurry = f"""
import socket, time
began, count = time.monotonic(), 0
while time.monotonic() - began < 2:
    with socket.create_connection({AT}, 10) as peer:
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)
        count += 1
print(count)
"""
    async with Far(echo) as far:
        sandbox = client(box, far)
        await sandbox.plug(EGRESS)
        count = int(await collect(await sandbox.start(python(hurry), id="hurry")))
        assert 50 <= count <= 20 + 50 * 3
        assert far.all >= count


async def test_connections_wait_for_the_next_server(box: AgentBox) -> None:
    """Those of the server before end; the listener stays, and who comes between two servers waits."""
    talk = f"""
import socket, sys
first = socket.create_connection({AT}, 10)
first.sendall(b'one'); print(first.recv(3).decode(), flush=True)
try: print(first.recv(1) or 'ended', flush=True)
except ConnectionResetError: print('ended', flush=True)
second = socket.create_connection({AT}, 30)
second.sendall(b'two'); print('waits', flush=True); print(second.recv(3).decode(), flush=True)
"""
    async with Far(echo) as far:
        first = client(box, far)
        await first.plug(EGRESS)
        program = await first.start(python(talk), id="talk")
        await until(program, b"one\n")
        await first.close()
        second = client(box, far)
        program = await second.process("talk")
        await until(program, b"waits\n")
        assert far.all == 1
        await second.plug(EGRESS)
        assert await collect(program) == b"one\nended\nwaits\ntwo\n"
        assert (await program.wait()).code == 0


async def test_a_lost_channel_is_followed_by_another(box: AgentBox) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(str(box.socket))
        writers.append(writer)
        return reader, writer

    talk = f"""
import socket, time
for _ in range(2):
    with socket.create_connection({AT}, 20) as peer:
        peer.sendall(b'x'); print(peer.recv(1), flush=True)
        try: peer.recv(1)
        except OSError: pass
"""
    async with Far(echo) as far:
        sandbox = AgentSandbox(Reach(opened, box.key), "box", {}, timeout_ms=60_000, gate=far)
        box.clients.append(sandbox)
        await sandbox.plug(EGRESS)
        program = await sandbox.start(python(talk), id="talk")
        await until(program, b"b'x'\n")
        writers[0].close()
        async with asyncio.timeout(BOUND_S):
            while far.all < 2:
                await asyncio.sleep(0.01)
        await program.kill()


async def test_a_port_that_a_program_holds_is_no_way_out(box: AgentBox) -> None:
    take = f"import socket\nserver = socket.create_server({AT})\n{WAIT}"
    async with Far(echo) as far:
        sandbox = client(box, far)
        await until(await sandbox.start(python(take), id="takes"), b"ready\n")
        with pytest.raises(GateFault, match=f"port {PROXY_PORT} of the sandbox cannot be had"):
            await sandbox.plug(EGRESS)


async def test_nobody_comes_in_by_the_way_out(box: AgentBox) -> None:
    async with Far(echo) as far:
        sandbox = client(box, far)
        await sandbox.plug(EGRESS)
        with pytest.raises(InvalidInput, match="no program of the sandbox listens there"):
            await sandbox.forward(PROXY_PORT)
        assert far.all == 0


async def test_without_a_gate_nothing_is_listened_on(box: AgentBox) -> None:
    sandbox = box.client()
    with pytest.raises(GateFault, match="the server has no gate"):
        await sandbox.plug(EGRESS)
    tried = await sandbox.start(python(f"import socket; socket.create_connection({AT}, 5)"), id="tries")
    assert (await tried.wait()).code == 1


async def test_many_streams_at_once_arrive_whole(box: AgentBox) -> None:
    """One that is ready to be read when another has taken the last room is not taken for ended."""
    counts: list[int] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        size = 0
        while data := await reader.read(65536):
            size += len(data)
        counts.append(size)

    pour = f"""
import socket, threading
def pour():
    with socket.create_connection({AT}, 10) as peer:
        peer.sendall(bytes(2_000_000))
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)
threads = [threading.Thread(target=pour) for _ in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    async with Far(count) as far:
        sandbox = client(box, far)
        await sandbox.plug(EGRESS)
        assert (await (await sandbox.start(python(pour), id="pour")).wait()).code == 0
        assert counts == [2_000_000] * 40
