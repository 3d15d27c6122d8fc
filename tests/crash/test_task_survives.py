"""A sandbox owned as a task, through the port: its owner is killed, and it works on; who attaches misses nothing."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skillyard.domain.errors import SandboxGone
from skillyard.domain.sandbox.spec import Owner, Stream
from skillyard.domain.work.record import Ending, Outcome
from skillyard.ports.sandbox import Process
from skillyard.sandbox.native.backend import NativeBackend
from tests.crash import task_owner
from tests.crash.leftovers import Footprint, gone, idle

pytestmark = pytest.mark.anyio
SCRIPT = Path(task_owner.__file__)
MINUTE_MS = 60_000

COUNT = """
import sys, time
for number in range(4000):
    print(number, "." * 100)
    print(number, file=sys.stderr)
    if number % 40 == 0:
        sys.stdout.flush()
        time.sleep(0.01)
sys.stdout.flush()
sys.exit(7)
"""
"""A second or more of work, most of it spooled to a file."""
COUNTED = b"".join(b"%d %s\n" % (number, b"." * 100) for number in range(4000))
COUNTED_ERRORS = b"".join(b"%d\n" % number for number in range(4000))


async def test_owner_killed_while_it_writes(tmp_path: Path) -> None:
    handle = await _owner_killed(tmp_path, random.Random(1), "start", COUNT, str(MINUTE_MS))
    async with _heir(tmp_path, handle) as process:
        await _check_count(process)


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.long)])
async def test_owners_killed_one_after_another(tmp_path: Path, times: int) -> None:
    chance = random.Random(times)
    handle = await _owner_killed(tmp_path, chance, "start", COUNT, str(MINUTE_MS))
    for _ in range(times - 1):
        assert handle == await _owner_killed(tmp_path, chance, "attach", handle)
    async with _heir(tmp_path, handle) as process:
        await _check_count(process)


async def test_deadline_is_kept_without_an_owner(tmp_path: Path) -> None:
    code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    handle = await _owner_killed(tmp_path, random.Random(2), "start", code, "1500")
    async with _heir(tmp_path, handle) as process:
        ending = await _ending(process)
        assert ending.outcome is Outcome.TIMEOUT, ending
        assert await _output(process, Stream.STDOUT) == b"begun\n"


@pytest.mark.long
async def test_keeper_stays_longer_than_it_would_without_a_task(tmp_path: Path) -> None:
    """Six seconds alone: longer than a keeper stays that holds nothing."""
    code = "import time\ntime.sleep(6)\nprint('done')\nraise SystemExit(3)"
    handle = await _owner_killed(tmp_path, random.Random(3), "start", code, str(MINUTE_MS))
    await asyncio.sleep(6)
    async with _heir(tmp_path, handle) as process:
        assert (await _ending(process)).code == 3
        assert await _output(process, Stream.STDOUT) == b"done\n"


async def test_keeper_killed_takes_the_task_with_it(tmp_path: Path) -> None:
    footprint = Footprint(tmp_path)
    handle = await _owner_killed(tmp_path, random.Random(4), "start", COUNT, str(MINUTE_MS), footprint=footprint)
    footprint.kill_keeper()
    backend = NativeBackend(tmp_path / "run")
    try:
        with pytest.raises(SandboxGone):
            await backend.attach(handle)
        idle(footprint, ahead=True)
    finally:
        await backend.close()
    gone(footprint)


async def _owner_killed(home: Path, chance: random.Random, *words: str, footprint: Footprint | None = None) -> str:
    """Start an owner and kill it a moment after it has what it asked for. The sandbox's handle."""
    owner = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), str(home / "run"), *words, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    async with asyncio.timeout(30):
        handle = (await owner.stdout.readline()).decode().strip()
        assert handle, "the owner ended"
        await asyncio.sleep(chance.uniform(0, 0.15))
        if footprint is not None:
            footprint.look()
        owner.kill()
        await owner.wait()
    return handle


@asynccontextmanager
async def _heir(home: Path, handle: str) -> AsyncIterator[Process]:
    """The process, attached by a new backend; afterwards nothing is left."""
    backend, footprint = NativeBackend(home / "run"), Footprint(home)
    try:
        [held] = await backend.survey()
        assert (held.handle, held.key, held.owner) == (handle, "the-task", Owner.TASK)
        footprint.look()
        yield await (await backend.attach(handle)).process(task_owner.PROCESS)
        usage = await backend.destroy(handle)
        assert usage.cpu_ms is not None
        assert await backend.survey() == []
    finally:
        await backend.close()
    gone(footprint)


async def _check_count(process: Process) -> None:
    ending = await _ending(process)
    assert (ending.outcome, ending.code) == (Outcome.EXIT, 7), ending
    assert await _output(process, Stream.STDOUT) == COUNTED
    assert await _output(process, Stream.STDERR) == COUNTED_ERRORS


async def _ending(process: Process) -> Ending:
    async with asyncio.timeout(60):
        return await process.wait()


async def _output(process: Process, stream: Stream) -> bytes:
    async with asyncio.timeout(30):
        return b"".join([piece async for piece in process.output(stream)])
