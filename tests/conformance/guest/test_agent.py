"""The agent: programs that outlive their channels, channels of every kind, the lease, and the end."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import tarfile
import tty
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from skillyard.domain.errors import FileNotFound, InvalidInput, OutputDropped, SandboxFault, SandboxGone
from skillyard.domain.sandbox.spec import AtCap, Stream, StreamLimits
from skillyard.domain.work.record import Outcome
from tests.agents import BOUND_S, READY, WAIT, AgentBox, alive, collect, gone, python, until

pytestmark = pytest.mark.anyio

COUNT = """
import os, sys
for number in range(1000):
    print(number, flush=True)
    while number == 500 and not os.path.exists('go'): os.read(0, 1)
sys.exit(9)
"""
ALL = b"".join(b"%d\n" % number for number in range(1000))


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[AgentBox]:
    box = AgentBox(tmp_path)
    box.listen()
    yield box
    await box.close()


async def test_a_program_goes_on_without_a_channel_and_another_server_reads_from_any_offset(box: AgentBox) -> None:
    first = box.client()
    process = await first.start(python(COUNT, stdin=True), id="count")
    await until(process, b"500\n")
    await first.close()
    second = box.client()
    again = await second.process("count")
    (box.workspace / "go").touch()
    await again.send(b"\n")
    assert ((await again.wait()).outcome, (await again.wait()).code) == (Outcome.EXIT, 9)
    assert await collect(again) == ALL
    assert await collect(again, offset=1234) == ALL[1234:]


async def test_servers_that_start_at_once_start_once(box: AgentBox) -> None:
    program = python("open('count', 'a').write('x')")
    clients = [box.client() for _ in range(5)]
    started = await asyncio.gather(*(client.start(program, id="same") for client in clients))
    await asyncio.gather(*(process.wait() for process in started))
    assert (box.workspace / "count").read_text() == "x"


async def test_readers_and_waiters_go_on_over_a_new_channel(box: AgentBox) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(str(box.socket))
        writers.append(writer)
        return reader, writer

    client = box.client(opened)
    process = await client.start(python("print('a', flush=True)\ninput()\nprint('b')", stdin=True), id="one")
    reading, waiting = asyncio.create_task(collect(process)), asyncio.create_task(process.wait())
    await until(process, b"a\n")
    writers[0].close()
    await writers[0].wait_closed()
    await process.send(b"\n")
    assert (await reading, (await waiting).code) == (b"a\nb\n", 0)
    assert len(writers) == 2


async def test_a_new_agent_is_not_taken_for_the_one_that_died(box: AgentBox) -> None:
    client = box.client()
    process = await client.start(python(WAIT), id="long")
    await until(process, b"ready\n")
    os.kill(box.pid, signal.SIGKILL)
    assert box.process is not None
    await asyncio.to_thread(box.process.wait, BOUND_S)
    box.socket.unlink()
    box.listen()
    assert (await process.wait()).outcome is Outcome.LOST
    for attempt in (client.start(python("print(1)"), id="again"), process.send(b"x"), client.process("other")):
        with pytest.raises(SandboxGone):
            await attempt


async def test_the_lease_ends_everything_unless_it_is_renewed(tmp_path: Path) -> None:
    box = AgentBox(tmp_path, {"lease_s": 1.5})
    box.listen()
    kept, pid = box.client(lease_s=1.5), box.pid
    process = await kept.start(
        python("import os, sys; print(os.getpid(), flush=True); sys.stdin.read()", stdin=True), id="p"
    )
    program = int(await until(process, b"\n"))
    with suppress(TimeoutError):
        async with asyncio.timeout(3):
            await process.wait()
    assert alive(program)
    await kept.close()
    await gone(pid)
    assert not alive(program)
    await box.close()


async def test_an_agent_that_is_kept_has_no_lease_any_more(tmp_path: Path) -> None:
    box = AgentBox(tmp_path, {"lease_s": 3.0})
    box.listen()
    kept = box.client(lease_s=3.0)
    await kept.keep()
    await kept.close()
    waited = await asyncio.create_subprocess_exec("sleep", "4")
    await waited.wait()
    other = box.client()
    await other.keep()
    assert (await (await other.start(python("print(1)"), id="p")).wait()).outcome is Outcome.EXIT
    await box.close()


async def test_the_end_takes_all_along_and_tells_the_usage(box: AgentBox) -> None:
    client = box.client()
    burn = "import time\nwhile time.process_time() < 0.2: pass\n"
    process = await client.start(python(burn + WAIT), id="long")
    await until(process, b"ready\n")
    waiting = asyncio.create_task(process.wait())
    usage = await client.end()
    assert usage.cpu_ms is not None
    assert usage.cpu_ms >= 200
    with suppress(SandboxGone):
        assert (await waiting).outcome is Outcome.CANCELLED
    await gone(box.pid)


async def test_a_ring_keeps_the_newest_and_the_program_lives_on(box: AgentBox) -> None:
    flood = "import sys\nfor i in range(100_000): sys.stdout.write(f'{i:09d}\\n')\nsys.stdout.flush()\n"
    streams = StreamLimits(log_bytes=200_000, at_cap=AtCap.RING)
    process = await box.client().start(python(flood), id="ring", streams=streams)
    assert (await process.wait()).outcome is Outcome.EXIT
    with pytest.raises(OutputDropped) as dropped:
        await collect(process)
    assert dropped.value.first == 800_000
    assert await collect(process, offset=800_000) == b"".join(b"%09d\n" % i for i in range(80_000, 100_000))


async def test_a_program_waits_for_its_reader_and_loses_nothing(box: AgentBox) -> None:
    """It is a few MiB ahead at the most, and none of its bytes is dropped, also where it ends before it was read."""
    flood = """
import os
for n in range(512):
    os.write(2, b".")
    os.write(1, bytes([n % 251]) * 65_536)
"""
    process = await box.client().start(python(flood), id="waits", streams=StreamLimits(at_cap=AtCap.WAIT))
    ahead = 0
    async for dots in process.output(Stream.STDERR):
        ahead += len(dots)
        if ahead > 15:  # 1 MiB: all that comes beyond it is a piece and a pipe
            break
    seen = bytearray()
    async for piece in process.output(Stream.STDOUT):
        seen += piece
    assert seen == b"".join(bytes([n % 251]) * 65_536 for n in range(512))
    assert (await process.wait()).outcome is Outcome.EXIT
    short = await box.client().start(python("print('x' * 3000)"), id="short", streams=StreamLimits(at_cap=AtCap.WAIT))
    assert (await short.wait()).outcome is Outcome.EXIT
    assert await collect(short) == b"x" * 3000 + b"\n"


async def test_a_program_that_waits_for_nobody_ends_with_its_deadline(box: AgentBox) -> None:
    """Nobody reads it, and it writes no more than a few MiB."""
    flood = "import os\nwhile True: os.write(1, b'x' * 65_536)"
    streams = StreamLimits(log_bytes=1000, at_cap=AtCap.WAIT)
    process = await box.client().start(python(flood), id="alone", timeout_ms=1500, streams=streams)
    assert (await process.wait()).outcome is Outcome.TIMEOUT
    assert 1 << 20 <= len(await collect(process)) <= 4 << 20


async def test_output_that_cannot_be_kept_ends_the_program(tmp_path: Path) -> None:
    box = AgentBox(tmp_path, {"spool": str(tmp_path / "none")})
    box.listen()
    process = await box.client().start(python("while True: print('x' * 1000)"), id="full")
    ending = await process.wait()
    assert ending.outcome is Outcome.DISK
    assert "cannot be kept" in ending.reason
    await box.close()


@pytest.mark.root
async def test_a_kill_for_want_of_memory_is_told_where_the_kernel_tells_it(tmp_path: Path) -> None:
    group, limit = _memory_group(tmp_path.name)
    try:
        limit.write_text(str(64 << 20))
        join = ("sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(group))
        box = AgentBox(tmp_path, prefix=join)
        box.listen()
        client = box.client()
        small = await client.start(python("import time; time.sleep(600)"), id="small")
        killed = await client.start(python("import os; os.kill(os.getpid(), 9)"), id="killed")
        assert (await killed.wait()).outcome is Outcome.SIGNAL
        large = await client.start(python("held = b'x' * (256 << 20)"), id="large")
        assert (await large.wait()).outcome is Outcome.MEMORY
        await small.kill()
        assert (await small.wait()).hits == {"memory"}
        await box.close()
    finally:
        group.rmdir()


def _memory_group(name: str) -> tuple[Path, Path]:
    """Makes a control group with a limit of memory; skips where the host gives none."""
    unified, apart = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
    try:
        if "memory" in (unified / "cgroup.subtree_control").read_text().split():
            group, limit = unified / f"skillyard-{name}", "memory.max"
        else:
            pytest.skip("this host gives no control group of memory")
    except FileNotFoundError:
        group, limit = apart / f"skillyard-{name}", "memory.limit_in_bytes"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"this host gives no control group of memory: {error}")
    return group, group / limit


async def test_trees_and_files_go_in_and_out(box: AgentBox) -> None:
    client, place = box.client(), str(box.workspace / "tree")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for number in range(50):
            info = tarfile.TarInfo(f"d{number % 5}/{number}")
            info.size = number
            archive.addfile(info, io.BytesIO(b"x" * number))

    async def chunks() -> AsyncIterator[bytes]:
        yield stream.getvalue()

    await client.put(place, chunks())
    entry = await client.stat(f"{place}/d4/49")
    assert (entry.kind, entry.size) == ("file", 49)
    back = b"".join([piece async for piece in client.get(place)])
    with tarfile.open(fileobj=io.BytesIO(back)) as archive:
        sizes = {member.name: member.size for member in archive if member.isreg()}
    assert sizes == {f"d{number % 5}/{number}": number for number in range(50)}
    await client.remove(place)
    with pytest.raises(FileNotFound):
        await client.stat(place)


async def test_a_port_inside_is_a_byte_stream_outside(box: AgentBox) -> None:
    serve = """
import socket
server = socket.create_server(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
while data := connection.recv(65536): connection.sendall(data.upper())
"""
    client = box.client()
    process = await client.start(python(serve), id="server")
    port = int(await until(process, b"\n"))
    stream = await client.forward(port)
    sent, got = b"abc" * 500_000, bytearray()

    async def write() -> None:
        for at in range(0, len(sent), 100_000):
            await stream.write(sent[at : at + 100_000])

    async with asyncio.timeout(BOUND_S):
        writing = asyncio.create_task(write())
        while len(got) < len(sent):
            got += await stream.read()
        await writing
    assert bytes(got) == sent.upper()
    await stream.close()
    assert (await process.wait()).code == 0
    with pytest.raises(InvalidInput, match="listens"):
        await client.forward(port)


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_a_port_that_cannot_be_is_refused(box: AgentBox, port: int) -> None:
    with pytest.raises(InvalidInput):
        await box.client().forward(port)


async def test_an_id_that_is_too_long_or_an_order_without_words_is_refused(box: AgentBox) -> None:
    client = box.client()
    with pytest.raises(SandboxFault, match="refuses"):
        await client.start(python("pass"), id="x" * 300)
    with pytest.raises(SandboxFault, match="refuses"):
        await client.start(python("pass").__class__(()), id="none")
    with pytest.raises(InvalidInput, match="bytes together"):
        await client.start(python("pass", "x" * (5 << 20)), id="large")
    assert (await (await client.start(python("pass"), id="fine")).wait()).code == 0


async def test_what_a_program_leaves_lives_on_and_ends_with_the_sandbox(box: AgentBox) -> None:
    leave = f"""
import subprocess, sys
left = subprocess.Popen([sys.executable, '-c', {WAIT!r}], stdout=subprocess.DEVNULL, start_new_session=True)
print(left.pid)
"""
    client = box.client()
    process = await client.start(python(leave), id="leaves")
    assert (await process.wait()).code == 0
    left = int(await collect(process))
    assert alive(left)
    await client.end()
    await gone(left)


async def test_the_socket_can_be_joined_to_standard_input_and_output(box: AgentBox) -> None:
    bridges: list[asyncio.subprocess.Process] = []

    async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        command = box.command("connect", str(box.socket))
        pipe = asyncio.subprocess.PIPE
        bridge = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        bridges.append(bridge)
        assert bridge.stdin is not None
        assert bridge.stdout is not None
        return bridge.stdout, bridge.stdin

    client = box.client(opened)
    process = await client.start(python("import sys; print(len(sys.stdin.read()))", stdin=True), id="one")
    await process.send(b"x" * 3_000_000)
    await process.close_stdin()
    assert await collect(process) == b"3000000\n"
    await client.close()
    async with asyncio.timeout(BOUND_S):
        assert await bridges[0].wait() == 0
    assert (await (await box.client().process("one")).wait()).code == 0


async def test_an_agent_is_started_in_the_background_once(tmp_path: Path) -> None:
    box = AgentBox(tmp_path)

    async def start() -> None:
        command, pipe = box.command("start", str(box.socket)), asyncio.subprocess.PIPE
        started = await asyncio.create_subprocess_exec(*command, env=box.environment(), stdout=pipe)
        async with asyncio.timeout(BOUND_S):
            assert (await started.communicate())[0] == b"ready\n"

    await asyncio.gather(*(start() for _ in range(4)))
    first = box.client()
    await (await first.start(python("pass"), id="one")).wait()
    await start()
    assert (await (await box.client().process("one")).wait()).code == 0
    assert (box.socket.stat().st_mode & 0o777) == 0o600
    await box.client().end()
    await box.close()


async def test_a_device_is_served_again_after_a_hang_up(tmp_path: Path) -> None:
    box, place = AgentBox(tmp_path), tmp_path / "device"
    readings: list[asyncio.ReadTransport] = []
    master, slave = os.openpty()
    tty.setraw(slave)
    place.symlink_to(os.ttyname(slave))
    agent = await asyncio.create_subprocess_exec(*box.command("device", str(place)), env=box.environment())

    async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        readable = os.fdopen(os.dup(master), "rb", buffering=0)
        reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), readable)
        readings.append(reading)
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(os.dup(master), "wb", buffering=0)
        )
        return reader, asyncio.StreamWriter(transport, protocol, None, loop)

    client = box.client(opened)
    process = await client.start(python(READY + "input()", stdin=True), id="one")
    await until(process, b"ready\n")
    await client.close()
    readings[0].close()
    os.close(slave)
    os.close(master)
    master, slave = os.openpty()
    tty.setraw(slave)
    place.unlink()
    place.symlink_to(os.ttyname(slave))
    again = box.client(opened)
    process = await again.process("one")
    await process.send(b"\n")
    assert (await process.wait()).code == 0
    await again.end()
    await box.close()
    async with asyncio.timeout(BOUND_S):
        assert await agent.wait() == 0
    readings[1].close()
    os.close(slave)
    os.close(master)


@pytest.mark.parametrize("words", [(), ("listen",), ("none", "x"), ("listen", "fd:99"), ("connect", "/none/s")])
async def test_a_command_that_cannot_be_says_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    box = AgentBox(tmp_path)
    told = await asyncio.create_subprocess_exec(
        *box.command(*words), env=box.environment(), stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(BOUND_S):
        _, said = await told.communicate()
    assert told.returncode == 64
    assert said


@pytest.mark.parametrize("settings", ["{}", "[]", "{", '{"key": "00"}', '{"key": "%s", "more": 1}' % ("00" * 32)])
async def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: str) -> None:
    box = AgentBox(tmp_path)
    told = await asyncio.create_subprocess_exec(
        *box.command("listen", str(box.socket)), env={"SKILLYARD_AGENT": settings}, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(BOUND_S):
        _, said = await told.communicate()
    assert (told.returncode, bool(said)) == (64, True)
