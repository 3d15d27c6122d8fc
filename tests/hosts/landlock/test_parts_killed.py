"""Init and keeper are killed from outside: nothing of a sandbox is left, whatever its programs do."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard.domain.work.record import Outcome
from skillyard.sandbox.native.grounds.landlock.backend import LandlockBackend
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import eventually, fresh, look, processes, python, run, start, until
from skillyard.testing.sandbox_suite.programs import STUBBORN, WAIT
from tests.hosts.landlock.host import need

pytestmark = pytest.mark.anyio

BOUND_S = 15.0
FORKING = """
import os, signal, time
for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
print('ready', flush=True)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            os._exit(0) if os.fork() else time.sleep(0.01)
        else: os.wait()
    except OSError: pass
"""
"""Always on the move: each child has left its parent before anybody looks."""


@pytest.fixture
async def apart(tmp_path: Path) -> AsyncIterator[Ground]:
    """A keeper that may be killed."""
    backend = LandlockBackend(tmp_path / "run")
    need(await backend.probe())
    yield Ground(backend, tmp_path)
    await backend.close()


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return int(stat.rpartition(")")[2].split()[1])


@pytest.mark.parametrize("source", [STUBBORN + WAIT, FORKING], ids=["stubborn", "forking"])
async def test_init_is_killed(source: str, apart: Ground) -> None:
    marker = fresh("tree")
    async with apart.sandbox() as sandbox:
        home = await look(sandbox, "import json; print(json.dumps(HERE))")
        process = await start(sandbox, python("import os\nprint(os.getpid(), flush=True)\n" + source, marker))
        leader = int((await until(process, b"ready\n")).split()[0])
        os.kill(parent_of(leader), signal.SIGKILL)
        async with asyncio.timeout(BOUND_S):
            ending = await process.wait()
        assert ending.outcome is Outcome.LOST
        assert processes(marker) == []
        assert not os.path.lexists(home)
    assert (await apart.run(python("print(1)"))).stdout == b"1\n"


async def test_keeper_is_killed(apart: Ground) -> None:
    assert isinstance(apart.backend, LandlockBackend)
    marker = fresh("tree")
    sandbox = await apart.backend.create(await apart.spec(), fresh("key"))
    home = await look(sandbox, "import json; print(json.dumps(HERE))")
    for source in (STUBBORN + WAIT, FORKING):
        await until(await start(sandbox, python(source, marker)), b"ready\n")
    os.kill((await apart.backend.stats())["pid"], signal.SIGKILL)
    await eventually(lambda: not processes(marker), "all ends with the keeper", BOUND_S)
    assert (await apart.run(python("print(1)"))).stdout == b"1\n"
    assert not os.path.lexists(home)


async def test_a_closed_backend_leaves_no_directory(tmp_path: Path) -> None:
    backend = LandlockBackend(tmp_path / "run")
    need(probe := await backend.probe())
    async with Ground(backend, tmp_path).sandbox() as sandbox:
        await run(sandbox, python("open('file', 'w').write('x')"))
    await backend.close()
    assert not os.path.lexists(Path(probe.facts["sandboxes"]).parent)
