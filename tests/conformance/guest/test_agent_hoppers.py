"""Processes that go on as others faster than an agent finds them: it ends them, or the sandbox with them."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from skillyard.domain.sandbox.spec import Stream
from skillyard.domain.work.record import Outcome
from skillyard.testing.attacks.processes import HOPS
from tests.agents import BOUND_S, WAIT, AgentBox, collect, python, until

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
_ALONE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
_BESIDE = (*_ALONE, "/bin/sh", "-c", '"$@"; exit', "sh")
"""The shell is process 1, and all ends with it, as bubblewrap has it."""
_SAY = "\nprint('ready', flush=True)\n"
_FOREVER = f"{_SAY}while True: time.sleep(9)"
_BUSY = "import os\nwhile True:\n    if not os.fork(): os._exit(0)\n    os.wait()"
_OTHERS = """
libc, number = ctypes.CDLL(None), dict(x86_64=60).get(platform.machine(), 93)
import threading
def wake():
    while True: libc.kill(-1, signal.SIGCONT)
def traced():
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
def waits(): libc.system(b"sleep 600")
def headless():
    threading.Thread(target=time.sleep, args=(600,)).start()
    libc.syscall(number, 0)
for each in (wake, wake, traced, waits, headless):
    if os.fork() == 0:
        os.setpgid(0, 0)
        each()
        os._exit(0)
"""
_LOOK = "import os\nprint([n for n in os.listdir('/proc') if n.isdigit() and int(n) not in (1, os.getpid())])"
_WAYS = pytest.mark.parametrize("way", ["below", "beyond"])


_KILL = {"x86_64": 62, "aarch64": 129}
_NO_KILL = (
    struct.pack("HBBI", 0x20, 0, 0, 0)
    + struct.pack("HBBI", 0x15, 0, 1, _KILL[os.uname().machine])
    + struct.pack("HBBI", 0x06, 0, 0, 0x50000 | errno.EPERM)
    + struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
)
"""A filter that refuses kill(2) (linux/filter.h): what cannot be ended is not always a hopper."""


async def _box(place: Path, prefix: tuple[str, ...], **settings: object) -> AsyncIterator[AgentBox]:
    made = await asyncio.create_subprocess_exec(*prefix, "true", stderr=subprocess.PIPE)
    if (await made.communicate())[1]:
        pytest.skip("no namespaces here")
    box = AgentBox(place, settings, prefix=prefix)
    box.listen()
    yield box
    await box.close()


@pytest.fixture
async def first(tmp_path: Path) -> AsyncIterator[AgentBox]:
    """An agent that is process 1."""
    async for box in _box(tmp_path, _ALONE):
        yield box


@pytest.fixture
async def second(tmp_path: Path) -> AsyncIterator[AgentBox]:
    """An agent beside process 1."""
    async for box in _box(tmp_path, _BESIDE):
        yield box


@pytest.fixture(params=[_ALONE, _BESIDE], ids=["first", "second"])
async def powerless(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AgentBox]:
    """An agent that can end nobody."""
    async for box in _box(tmp_path, request.param, filters=[base64.b64encode(_NO_KILL).decode()]):
        yield box


def _beats(box: AgentBox) -> bytes:
    return (box.workspace / "beats").read_bytes()


async def _stand_still(box: AgentBox) -> None:
    """Fails when anything counts. A hopper counts many times while a program of ours starts and ends."""
    before = _beats(box)
    await (await asyncio.create_subprocess_exec("sleep", "0.2")).wait()
    assert _beats(box) == before


async def _come_to_rest(box: AgentBox) -> None:
    """Fails when they do not. A sandbox that ends with its agent takes a moment for it."""
    for _ in range(20):
        with suppress(AssertionError):
            await _stand_still(box)
            break
    else:
        await _stand_still(box)


def _program(way: str, then: str) -> str:
    return f"{HOPS}\nbegin({way!r}, 'beats')\n{then}"


@_WAYS
async def test_none_outlives_its_deadline_where_the_agent_is_process_1(first: AgentBox, way: str) -> None:
    client = first.client()
    process = await client.start(python(_program(way, _FOREVER)), id="hops", timeout_ms=2000)
    await until(process, b"ready\n")
    ending = await process.wait()
    assert (ending.outcome, ending.reason) == (Outcome.TIMEOUT, "")
    await _stand_still(first)
    assert (await (await client.start(python("pass"), id="next")).wait()).code == 0


@_WAYS
async def test_none_outlives_a_program_that_ends_where_the_agent_is_process_1(first: AgentBox, way: str) -> None:
    client = first.client()
    assert (await (await client.start(python(_program(way, "")), id="hops")).wait()).code == 0
    await _stand_still(first)
    assert (await (await client.start(python("pass"), id="next")).wait()).code == 0


async def test_nobody_wakes_the_others_while_they_are_stopped(first: AgentBox) -> None:
    """Beside hoppers are processes that wake all, one that is traced, one that waits for a child as vfork does, and one
    whose first thread has ended."""
    process = await first.client().start(python(_program("below", _OTHERS + _FOREVER)), id="all", timeout_ms=2500)
    await until(process, b"ready\n")
    ending = await process.wait()
    assert (ending.outcome, ending.reason) == (Outcome.TIMEOUT, "")
    assert await collect(await first.client().start(python(_LOOK), id="look")) == b"[]\n"
    await _stand_still(first)


async def test_other_programs_go_on_when_everybody_was_stopped(first: AgentBox) -> None:
    """One that stood still by itself stands still afterwards."""
    stops = "import os, signal, time\nchild = os.fork()\nif not child: os.kill(os.getpid(), signal.SIGSTOP)\n"
    stops += "while child:\n    status = open(f'/proc/{child}/stat').read().split()[2]\n    print(status, flush=True)\n"
    stops += "    time.sleep(0.01)"
    client = first.client()
    beside = await client.start(python(stops), id="beside")
    await until(beside, b"T\n")
    process = await client.start(python(_program("below", _FOREVER)), id="hops", timeout_ms=1500)
    assert (await process.wait()).outcome is Outcome.TIMEOUT
    await _stand_still(first)
    size = 0
    async with asyncio.timeout(BOUND_S):
        async for data in beside.output(Stream.STDOUT):
            size += len(data)
            assert b"S" not in data
            if size > 500:
                break
    await beside.kill()
    assert (await beside.wait()).outcome is Outcome.CANCELLED


@_WAYS
async def test_none_outlives_its_deadline_where_the_agent_is_beside_process_1(second: AgentBox, way: str) -> None:
    process = await second.client().start(python(_program(way, _FOREVER)), id="hops", timeout_ms=2000)
    await until(process, b"ready\n")
    assert (await process.wait()).outcome is Outcome.TIMEOUT
    await _come_to_rest(second)


async def test_none_goes_on_without_its_supervisor(second: AgentBox) -> None:
    """Another program that begins processes all the time does not hide it."""
    client = second.client()
    await client.start(python(_BUSY), id="busy")
    process = await client.start(python(_program("below", f"os.kill(os.getppid(), 9){_FOREVER}")), id="hops")
    assert (await process.wait()).outcome is Outcome.LOST
    await _come_to_rest(second)


async def test_the_sandbox_ends_with_a_program_that_cannot_be_ended_by_itself(powerless: AgentBox) -> None:
    client = powerless.client()
    beside = await client.start(python(WAIT), id="beside")
    process = await client.start(python(WAIT), id="one", timeout_ms=1000)
    ending = await process.wait()
    assert ending.outcome is Outcome.TIMEOUT
    assert "whole sandbox" in ending.reason
    assert powerless.process is not None
    await asyncio.to_thread(powerless.process.wait, BOUND_S)
    assert (await beside.wait()).outcome is Outcome.LOST


async def test_the_sandbox_ends_with_a_process_that_is_left_and_cannot_be_ended(tmp_path: Path) -> None:
    async for box in _box(tmp_path, _ALONE, filters=[base64.b64encode(_NO_KILL).decode()]):
        leaves = "import os, time\nif not os.fork(): time.sleep(600)\nos._exit(7)"
        ending = await (await box.client().start(python(leaves), id="leaves")).wait()
        assert (ending.outcome, ending.code) == (Outcome.EXIT, 7)
        assert "whole sandbox" in ending.reason
        assert box.process is not None
        await asyncio.to_thread(box.process.wait, BOUND_S)


async def test_a_tree_that_can_be_ended_takes_nothing_along(second: AgentBox) -> None:
    client = second.client()
    beside = await client.start(python(_BUSY), id="busy")
    tree = "import subprocess, sys\n[subprocess.Popen(['sleep', '99'], start_new_session=n % 2) for n in range(9)]\n"
    process = await client.start(python(tree + WAIT), id="tree", timeout_ms=1000)
    ending = await process.wait()
    assert (ending.outcome, ending.reason) == (Outcome.TIMEOUT, "")
    kills = await client.start(python("import os\nos.kill(os.getppid(), 9)"), id="kills")
    assert (await kills.wait()).outcome is Outcome.LOST
    assert not (await client.process("busy")).ended
    await beside.kill()
    assert (await beside.wait()).outcome is Outcome.CANCELLED
