"""Programs that attack the agent which supervises them."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from skillyard.domain.errors import InvalidInput, SandboxGone
from skillyard.domain.sandbox.spec import Guest, GuestCall, Stream, StreamLimits, command_request
from skillyard.domain.work.command import Command
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.agent_channel import ChannelLost
from tests.agents import BOUND_S, NOBODY, WAIT, AgentBox, alive, collect, gone, other_user, python, until

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]

TREE = """
import os, subprocess, sys
hold = [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)']
left = [subprocess.Popen(hold, start_new_session=True).pid for _ in range(3)]
print(*left, flush=True)
"""


@pytest.fixture
def passable() -> Iterator[Path]:
    """A directory that another user can pass. Those of pytest are closed again whenever a session of it begins."""
    with tempfile.TemporaryDirectory(prefix="skillyard-agent-") as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


@pytest.fixture
async def box(passable: Path) -> AsyncIterator[AgentBox]:
    """An agent and programs of one user that is not root, as in most containers."""
    box = AgentBox(passable, {"spool": "/tmp"}, as_user=other_user())
    box.listen()
    yield box
    await box.close()


async def test_a_program_that_kills_its_supervisor_is_lost_and_leaves_nothing(box: AgentBox) -> None:
    client = box.client()
    other = await client.start(python(WAIT), id="other")
    await until(other, b"ready\n")
    kill = TREE + "os.kill(os.getppid(), 9)\nimport time\ntime.sleep(600)"
    process = await client.start(python(kill), id="kills")
    left = [int(word) for word in (await until(process, b"\n")).split()]
    ending = await process.wait()
    assert (ending.outcome, "supervisor" in ending.reason) == (Outcome.LOST, True)
    assert not [pid for pid in left if alive(pid)]
    await other.kill()
    assert (await other.wait()).outcome is Outcome.CANCELLED


STARES = """
cd /proc/$PPID
tr '\\0' ' ' <cmdline
for file in environ mem maps fd/0; do head -c 1 $file >/dev/null 2>&1 && echo "reads $file"; done
ls fd >/dev/null 2>&1 && echo "lists its descriptors"
ls /proc/$$/fd | tr '\\n' ' '
"""


async def test_nobody_looks_into_the_fork_of_the_agent_that_runs_a_command(box: AgentBox, passable: Path) -> None:
    if os.geteuid() == 0 and other_user() is None:
        pytest.skip("no other user can be had, and root looks into every process")
    (passable / "skill").mkdir()
    command = command_request(GuestCall("blob:0-", code=""), "a.b", Command(STARES))
    skills = {"a.b": {"root": str(passable / "skill"), "entry": None}}
    request = Guest({**command, "workspace": str(box.workspace), "skills": skills})
    process = await box.client().start(request, id="stares")
    channel = await collect(process, Stream.CHANNEL)
    said = (await collect(process)).decode()
    assert (await process.wait()).code == 0, (channel, said)
    assert "agent listen" in said, "no interpreter of its own began"
    assert "reads" not in said, said
    assert "lists" not in said, said
    assert said.endswith(" 0 1 2 "), f"the command has more descriptors than its own: {said}"


async def test_a_supervisor_that_is_stopped_does_not_hold_up_the_deadline(box: AgentBox) -> None:
    stop = TREE + "import signal\nos.kill(os.getppid(), signal.SIGSTOP)\nimport time\ntime.sleep(600)"
    process = await box.client().start(python(stop), id="stops", timeout_ms=1000)
    left = [int(word) for word in (await until(process, b"\n")).split()]
    async with asyncio.timeout(BOUND_S):
        ending = await process.wait()
    assert ending.outcome is Outcome.TIMEOUT
    assert not [pid for pid in left if alive(pid)]


async def test_a_program_that_kills_the_agent_ends_with_it(box: AgentBox) -> None:
    client = box.client()
    kill = TREE + f"input()\nos.kill({box.pid}, 9)\nimport time\ntime.sleep(600)"
    process = await client.start(python(kill, stdin=True), id="kills")
    left = [int(word) for word in (await until(process, b"\n")).split()]
    with suppress(SandboxGone):  # the answer may be lost with the agent
        await process.send(b"\n")
    assert (await process.wait()).outcome is Outcome.LOST
    with pytest.raises(SandboxGone):
        await client.start(python("pass"), id="more")
    for pid in left:
        await gone(pid)


async def test_signals_that_can_be_ignored_do_nothing_to_the_agent(box: AgentBox) -> None:
    client = box.client()
    source = f"""
import os, signal
kept = 'KILL STOP ABRT BUS FPE ILL SEGV SYS TRAP'.split()
for number in signal.valid_signals() - {{getattr(signal, 'SIG' + name) for name in kept}}:
    for pid in (os.getppid(), {box.pid}): os.kill(pid, number)
print('done')
"""
    process = await client.start(python(source), id="signals")
    assert await collect(process) == b"done\n"
    assert (await process.wait()).code == 0


async def test_the_agent_and_its_supervisors_cannot_be_read_or_traced(box: AgentBox) -> None:
    if os.geteuid() == 0 and other_user() is None:
        pytest.skip("root alone can reach the interpreter, and root traces everything")
    source = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in ({box.pid}, os.getppid()):
    for name in ('mem', 'environ', 'maps', 'auxv', 'stack', 'syscall'):
        try:
            with open(f'/proc/{{pid}}/{{name}}', 'rb') as file: file.read(1)
        except OSError: continue
        print('read', pid, name)
    try: print('listed', os.listdir(f'/proc/{{pid}}/fd'))
    except OSError: pass
    if libc.ptrace(16, pid, 0, 0) == 0: print('traced', pid)
    try:
        os.pidfd_open(pid)
        if libc.syscall(438, os.pidfd_open(pid), 0, 0) >= 0: print('took a descriptor')
    except OSError: pass
print('looked')
"""
    process = await box.client().start(python(source), id="looks")
    assert (await collect(process), await collect(process, Stream.STDERR)) == (b"looked\n", b"")


async def test_nothing_of_the_agent_is_open_in_a_program(box: AgentBox) -> None:
    source = "import os; print(sorted(os.listdir('/proc/self/fd'), key=int), dict(os.environ))"
    process = await box.client().start(python(source), id="looks")
    text = (await collect(process)).decode()
    assert text.startswith("['0', '1', '2', '3'] {")  # 3 is the directory that is listed
    assert "SKILLYARD" not in text
    assert box.key.hex() not in text


async def test_connections_without_the_key_get_nothing_and_keep_nobody_out(box: AgentBox) -> None:
    client = box.client()
    await client.connect()
    floods = []
    for number in range(100):
        flood = socket.socket(socket.AF_UNIX)
        flood.settimeout(BOUND_S)
        flood.connect(str(box.socket))
        floods.append(flood)
        if number % 2:
            flood.send(b"O\0\0\0\1\0\0\0\2{}" * 10 if number % 4 == 1 else b"\xff" * 100)
            assert flood.recv(100) == b""
    assert (await (await box.client().start(python("pass"), id="one")).wait()).code == 0
    assert (await (await client.start(python("pass"), id="two")).wait()).code == 0
    for flood in floods:
        flood.close()


async def test_a_socket_that_was_replaced_is_no_agent(box: AgentBox) -> None:
    await box.client().connect()
    box.socket.unlink()
    served: list[asyncio.StreamWriter] = []

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        await reader.read(9)
        said = b'{"version":1,"instance":"%s","nonce":"1","proof":"%s"}' % (b"0" * 32, b"0" * 64)
        writer.write(b"H" + bytes(4) + len(said).to_bytes(4, "big") + said)
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(pretend, str(box.socket))
    with pytest.raises(ChannelLost, match="not the agent"):
        await box.client().connect()
    server.close()
    box.socket.unlink()
    os.kill(box.pid, 9)


async def test_a_flood_of_output_is_bounded_and_the_agent_serves_on(box: AgentBox) -> None:
    client, limits = box.client(), StreamLimits(log_bytes=3_000_000)
    flood = "import os\nwhile True: os.write(1, b'x' * 65536)"
    floods = [await client.start(python(flood), id=f"flood-{n}", streams=limits) for n in range(4)]
    fine = await client.start(python("print('fine')"), id="fine")
    assert await collect(fine) == b"fine\n"
    for process in floods:
        assert (await process.wait()).outcome is Outcome.OUTPUT
        assert len(await collect(process)) == 3_000_000


async def test_a_fork_bomb_ends_at_its_deadline(box: AgentBox) -> None:
    bomb = """
import os, time
for _ in range(6): os.fork()
if os.getpid() != os.getsid(0): os.setsid()
print(os.getpid(), flush=True)
time.sleep(600)
"""
    process = await box.client().start(python(bomb), id="bomb", timeout_ms=3000)
    ending = await process.wait()
    assert ending.outcome is Outcome.TIMEOUT
    pids = [int(word) for word in (await collect(process)).split() if word.isdigit()]
    assert pids
    assert not [pid for pid in pids if alive(pid)]


async def test_a_reader_that_never_reads_stops_nobody_else(box: AgentBox) -> None:
    client = box.client()
    await client.start(python("import sys; sys.stdout.write('x' * 50_000_000)"), id="large")
    slow = (await client.process("large")).output(Stream.STDOUT)
    assert await anext(slow)
    fine = await client.start(python("print('fine')"), id="fine")
    assert await collect(fine) == b"fine\n"
    await slow.aclose()  # type: ignore[attr-defined]


@pytest.mark.root
async def test_programs_of_another_user_reach_neither_agent_nor_supervisor(passable: Path) -> None:
    if other_user() is None:
        pytest.skip("root alone can reach the interpreter")
    box = AgentBox(passable, {"user": [NOBODY, NOBODY], "spool": "/tmp"})
    box.listen()
    box.socket.chmod(0o600)
    source = f"""
import os, socket
for pid in ({box.pid}, os.getppid()):
    try: os.kill(pid, 9)
    except PermissionError: print('refused')
try: socket.socket(socket.AF_UNIX).connect({str(box.socket)!r})
except PermissionError: print('refused')
print(os.getuid(), os.getgid(), os.getgroups())
"""
    try:
        client = box.client()
        process = await client.start(python(source), id="kills")
        assert await collect(process) == b"refused\nrefused\nrefused\n%d %d []\n" % (NOBODY, NOBODY)
        assert (await process.wait()).code == 0
        await client.put(str(box.workspace), _empty())
        made = await client.write(str(box.workspace / "made"), _piece(b"x"))
        assert (made, (box.workspace / "made").stat().st_uid) == (1, NOBODY)
        with pytest.raises(InvalidInput, match="denied"):
            await _read(client.read("/etc/shadow"))
    finally:
        await box.close()


async def _piece(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _empty() -> AsyncIterator[bytes]:
    yield bytes(1024)


async def _read(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])
