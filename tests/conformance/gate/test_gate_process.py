"""The gate's own process: what it gave up, and what becomes of sessions when it or its server dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from skillyard.domain.errors import GateFault
from skillyard.domain.network.session import EgressPlan
from skillyard.gate.client import ProcessGate
from skillyard.sandbox.native.inside.walls import core_limit
from tests.conformance.gate.conftest import GATE_UID
from tests.conformance.gate.gates import Server, cut_off, echo, plugged, policy, reaching, until
from tests.conformance.gate.rooms import Rooms

CAP_SYS_PTRACE = 19
BOUND_S = 60.0
pytestmark = pytest.mark.anyio


def process_of(gate: ProcessGate) -> int:
    """Its gate's process id, as the kernel tells it."""
    assert gate._link is not None
    return gate._link.pid


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def test_it_has_given_everything_up_before_it_serves(gate: ProcessGate) -> None:
    facts = await gate.start()
    status = status_of(process_of(gate))
    uid = GATE_UID if os.geteuid() == 0 else os.geteuid()
    assert facts["uid"] == uid
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(uid)} or os.geteuid()
    assert status["NoNewPrivs"] == "1"
    assert {int(status[f"Cap{kind}"], 16) for kind in ("Eff", "Prm", "Inh", "Amb")} == {0}
    if os.geteuid() == 0:
        assert not status["Groups"]
        assert int(status["CapBnd"], 16) == 0
    assert not facts["missing"] or facts["landlock"] == 0
    environment = Path(f"/proc/{process_of(gate)}/environ")
    if os.geteuid() == 0:
        assert environment.stat().st_uid == 0, (
            "it is not dumpable (proc(5)), so that none of its own user looks into it"
        )
    if int(status_of(os.getpid())["CapEff"], 16) >> CAP_SYS_PTRACE & 1:  # a container's root has it not
        assert set(environment.read_bytes().rstrip(b"\0").split(b"\0")) == {b"LANG=C.UTF-8", b"LOCALDOMAIN=."}
    else:  # it is not dumpable
        with pytest.raises(PermissionError):
            environment.read_bytes()


_JAILED = """
import ctypes, json, os, resource, sys
from pathlib import Path
from skillyard.sandbox.native.linux import jail

def may(path, how):
    try:
        os.close(os.open(path, how))
    except OSError:
        return False
    return True

facts = jail.enter(int(sys.argv[1]), (sys.argv[2], *jail.for_the_network()))
print(json.dumps({
    "landlock": facts["landlock"],
    "reads": [may(sys.argv[2], os.O_RDONLY), may("/etc/hosts", os.O_RDONLY)],
    "not": [may(sys.argv[3], os.O_RDONLY), may("/proc/version", os.O_RDONLY), may(sys.argv[3], os.O_WRONLY),
            may("/dev/null", os.O_WRONLY)],
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
}))
"""


async def test_in_its_jail_no_other_file_can_be_opened() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        given, other = directory / "given", directory / "other"
        given.mkdir(mode=0o755)
        other.write_text("everybody's")
        other.chmod(0o666)
        command = [sys.executable, "-c", _JAILED, str(GATE_UID), str(given), str(other)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, timeout=30)
    told = json.loads(done.stdout)
    assert told["core"] == [core_limit()] * 2
    assert told["dumpable"] == 0
    assert told["reads"] == [True, True]
    if told["landlock"]:
        assert not any(told["not"])


async def test_a_gate_that_dies_takes_its_connections_and_the_next_session_gets_another(
    gate: ProcessGate, rooms: Rooms
) -> None:
    async with Server(echo) as server:
        room = rooms.room()
        box = await plugged(gate, room, reaching(server, "api.test"), server.port)
        reader, writer = await box.dial("api.test", server.port)
        writer.write(b"hello\n")
        await reader.readline()
        pid = process_of(gate)
        losing = asyncio.create_task(box.session.lost())
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(BOUND_S):
            assert (await losing).startswith("its process ended")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        await until(lambda: not server.open and not _runs(pid))
        with pytest.raises(ConnectionRefusedError):  # nobody listens any more: closed, not open
            await box.connect("198.18.0.2", server.port)
        with pytest.raises(GateFault, match="the gate is gone"):
            await box.session.change(policy("*"))
        with pytest.raises(GateFault):
            await gate.plug(box.session.id, [socket.socket()])
        for log in (await box.session.log(), await box.close()):
            lost = log.connections[-1]
            assert (lost.via, lost.allowed) == ("gate", False)
            assert lost.reason.startswith("the gate was lost: its process ended")
        again = await plugged(gate, room, reaching(server, "api.test"), server.port)
        reader, writer = await again.dial("api.test", server.port)
        writer.write(b"again\n")
        assert await reader.readline() == b"again\n"
        await again.close()


async def test_what_a_lost_gate_had_told_is_in_the_log(gate: ProcessGate, rooms: Rooms) -> None:
    async with Server(echo) as server:
        box = await plugged(gate, rooms.room(), reaching(server, "api.test"), server.port)
        reader, writer = await box.dial("api.test", server.port)
        writer.write(b"hello\n")
        await reader.readline()
        link = box.session._link
        await until(lambda: link.told.get(box.session.id))
        os.kill(process_of(gate), signal.SIGKILL)
        assert await cut_off_or_end(reader) == 0
        rows = (await box.close()).connections
    assert [row.host for row in rows] == ["api.test", ""]


async def cut_off_or_end(reader: asyncio.StreamReader) -> int:
    try:
        return await cut_off(reader)
    except AssertionError:
        return 0


async def test_a_session_that_nobody_knows_gets_no_sockets(gate: ProcessGate) -> None:
    await gate.start()
    sock = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(GateFault, match="knows no such session"):
        await gate.plug("nobody", [sock])
    assert sock.fileno() == -1


async def test_sockets_that_it_cannot_take_are_closed_and_told(gate: ProcessGate) -> None:
    session = await gate.open("run", EgressPlan(policy("*")))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        ours.setblocking(False)
        await gate.plug(session.id, [theirs])
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(ours, 1) == b""
    [row] = (await session.close()).connections
    assert (row.via, row.allowed) == ("gate", False)
    assert "did not take its sockets" in row.reason


async def test_closing_is_idempotent_and_ends_the_process(gate: ProcessGate) -> None:
    session = await gate.open("run", EgressPlan(policy("*")))
    assert await session.close() == await session.close()
    pid = process_of(gate)
    other = await gate.open("run", EgressPlan(policy("*")))
    await gate.close()
    await gate.close()
    assert not _runs(pid)
    assert (await other.log()).connections == ()
    with pytest.raises(GateFault, match="closed"):
        await gate.open("run", EgressPlan(policy("*")))


async def test_nothing_of_a_session_is_left(gate: ProcessGate, rooms: Rooms) -> None:
    """Descriptors, in the gate and here."""
    empty = [rooms.room() for _ in range(6)]
    async with Server(echo) as server:

        async def one() -> None:
            box = await plugged(gate, empty.pop(), reaching(server, "api.test"), server.port)
            reader, writer = await box.dial("api.test", server.port)
            writer.write(b"hello\n")
            await reader.readline()
            await box.close()
            await until(lambda: not server.open)

        await one()
        pid = process_of(gate)
        ours = len(os.listdir("/proc/self/fd"))
        if os.geteuid() == 0:
            await until(lambda: sockets_of(pid) <= 5)
            before = sockets_of(pid)
        for _ in range(5):
            await one()
        if os.geteuid() == 0:
            await until(lambda: sockets_of(pid) <= before)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= ours)


def sockets_of(pid: int) -> int:
    """Descriptors come and go while we look."""
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
    return count


_SERVER = """
import asyncio, sys
from pathlib import Path
from skillyard.gate.client import ProcessGate

async def main():
    gate = ProcessGate(Path(sys.argv[1]), uid=int(sys.argv[2]))
    await gate.start()
    print(gate._link.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_it_ends_with_its_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SERVER, str(tmp_path / "gate"), str(GATE_UID)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        told = await asyncio.to_thread(server.stdout.readline)
        [pid] = map(int, told.split())
        assert Path(f"/proc/{pid}").exists()
        server.kill()
        await until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return status_of(pid)["State"][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
