"""The port is not shaped by fork: create, channel and destroy around an agent pass the same suite."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard.domain.errors import SandboxGone
from skillyard.domain.sandbox.spec import Owner, Stream
from skillyard.testing.sandbox_suite import Check, Ground
from skillyard.testing.twin_gate import TwinGate
from tests.agents import gone
from tests.conformance.sandbox import exec_walls
from tests.conformance.sandbox.conftest import Hold
from tests.conformance.sandbox.exec_backend import ExecBackend

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(exec_walls.missing_tools()), reason=exec_walls.missing_tools()),
]


ROOT = Path(__file__).parents[3]
_BEYOND = """
proc-dangerous-files proc-dangerous-directories proc-places special-files-sysfs
files-search writing-everywhere special-files-host-devices
writing-metadata leftovers-shared-times
namespaces-enter processes-starve-init
terminals-they_are_few
"""
BEYOND = frozenset(_BEYOND.split())
"""Attacks that bubblewrap alone does not stop: it masks nothing of /proc, gives the host's device files and terminals
without number, and filters no system call; the agent has the user of its programs, so they may take its limits away."""


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    base, other = tmp_path_factory.mktemp("exec"), tmp_path_factory.mktemp("other")
    gate = TwinGate()
    backend = ExecBackend(base, gate)

    async def reopen() -> ExecBackend:
        return ExecBackend(other, gate)

    yield Ground(backend, scratch=tmp_path_factory.mktemp("scratch"), hidden=(base,), reopen=reopen, gate=gate)
    await backend.close()
    await gate.close()
    assert [*base.glob("exec-*"), *other.glob("exec-*")] == []


async def test_conformance(check: Check, ground: Ground, hold: Hold) -> None:
    if check.id in BEYOND:
        pytest.skip("bubblewrap alone does not stop it")
    await hold(check, ground)


SERVER = """
import asyncio, os, signal, sys
from pathlib import Path
from skillyard.domain.sandbox.spec import Argv, Owner, Stream
from skillyard.testing.sandbox_suite.ground import Ground
from tests.conformance.sandbox import exec_backend

async def main(base: Path) -> None:
    exec_backend.LEASE_S = 2.0
    backend = exec_backend.ExecBackend(base)
    for owner in Owner:
        sandbox = await backend.create(await Ground(backend, base).spec(owner=owner), owner.value)
        program = "import sys; print('begun', flush=True); print(sys.stdin.readline(), end='')"
        process = await sandbox.start(Argv(("python3", "-I", "-c", program), stdin=True), id="one")
        await anext(process.output(Stream.STDOUT))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_a_server_that_is_killed_loses_no_task_and_leaves_no_run(tmp_path: Path) -> None:
    base = tmp_path / "exec"
    base.mkdir()
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, str(base), cwd=ROOT)
    async with asyncio.timeout(60):
        assert await killed.wait() == -signal.SIGKILL
    backend = ExecBackend(base)
    held = {one.key: one for one in await backend.survey()}
    assert {key: one.owner for key, one in held.items()} == {owner.value: owner for owner in Owner}
    process = await (await backend.attach(held["task"].handle)).process("one")
    await process.send(b"went on\n")
    assert b"".join([data async for data in process.output(Stream.STDOUT)]) == b"begun\nwent on\n"
    assert (await process.wait()).code == 0
    pid = json.loads((base / held["run"].handle / "state.json").read_text())["pid"]
    await gone(pid)
    with pytest.raises(SandboxGone):
        await backend.attach(held["run"].handle)
    for one in held.values():
        await backend.destroy(one.handle)
    await backend.close()
    assert list(base.iterdir()) == []
