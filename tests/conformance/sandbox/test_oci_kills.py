"""A server that is killed, a daemon that is killed, and containers that somebody else removes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skillyard.config.backends import OciSettings
from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.domain.sandbox.spec import Argv, Owner, SandboxSpec, Stream
from skillyard.domain.work.record import Outcome, Usage
from skillyard.ports.sandbox import Process
from skillyard.sandbox.oci.backend import OciBackend
from skillyard.sandbox.oci.probe import WITHOUT
from tests.conformance.sandbox import oci_ground
from tests.hosts.docker_engine import Docker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]
BOUND_S = 60.0
WAITS = "import sys; print('begun', flush=True); print(sys.stdin.readline(), end='')"

SERVER = """
import asyncio, json, os, signal, sys
from pathlib import Path
from skillyard.config.backends import OciSettings
from skillyard.domain.sandbox.spec import Owner
from skillyard.sandbox.oci import container
from skillyard.sandbox.oci.backend import OciBackend
from tests.conformance.sandbox.test_oci_kills import begun

async def main(base: Path, settings: str) -> None:
    container.LEASE_S = 3.0
    backend = OciBackend(base, OciSettings.model_validate_json(settings))
    for owner in Owner:
        await begun(backend, owner)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Docker, OciSettings]]:
    with oci_ground.engine(tmp_path_factory.mktemp("engine"), "--live-restore") as (docker, settings):
        yield docker, settings.changed(ready=0)  # those that were made ahead have tests of their own


@pytest.fixture
async def backend(engine: tuple[Docker, OciSettings], tmp_path: Path) -> AsyncIterator[OciBackend]:
    backend = OciBackend(tmp_path / "oci", engine[1])
    yield backend
    for held in await backend.survey():
        await backend.destroy(held.handle)
    await backend.close()
    assert engine[0]("ps", "-aq").stdout == ""


async def begun(backend: OciBackend, owner: Owner) -> tuple[str, Process]:
    """A program that waits for a line, in a container of its own."""
    sandbox = await backend.create(SandboxSpec(owner=owner, allow_degraded=WITHOUT), owner.value)
    process = await sandbox.start(Argv(("python3", "-I", "-c", WAITS), stdin=True), id="one")
    await anext(process.output(Stream.STDOUT))
    return sandbox.handle, process


async def finishes(process: Process) -> None:
    async with asyncio.timeout(BOUND_S):
        await process.send(b"went on\n")
        assert b"".join([data async for data in process.output(Stream.STDOUT)]) == b"begun\nwent on\n"
        assert (await process.wait()).code == 0


async def test_a_killed_server_loses_no_task_and_leaves_no_run(
    backend: OciBackend, engine: tuple[Docker, OciSettings], tmp_path: Path
) -> None:
    words = [sys.executable, "-c", SERVER, str(tmp_path / "oci"), engine[1].model_dump_json()]
    killed = await asyncio.create_subprocess_exec(*words, cwd=ROOT)
    async with asyncio.timeout(BOUND_S):
        assert await killed.wait() == -signal.SIGKILL
    held = {one.key: one for one in await backend.survey()}
    assert {key: one.owner for key, one in held.items()} == {owner.value: owner for owner in Owner}
    await finishes(await (await backend.attach(held["task"].handle)).process("one"))
    await asyncio.to_thread(engine[0], "wait", held["run"].handle)  # its lease ends it
    with pytest.raises(SandboxGone):
        await backend.attach(held["run"].handle)


async def test_a_daemon_that_is_killed_and_started_again_loses_nothing(
    backend: OciBackend, engine: tuple[Docker, OciSettings]
) -> None:
    docker, _ = engine
    _, process = await begun(backend, Owner.TASK)
    waiting = asyncio.create_task(process.wait())
    docker.stop(signal.SIGKILL)
    restarted = asyncio.create_task(asyncio.to_thread(docker.start))
    async with asyncio.timeout(BOUND_S):
        assert await anext(process.output(Stream.STDOUT)) == b"begun\n"
        await restarted
    await finishes(process)
    async with asyncio.timeout(BOUND_S):
        assert (await waiting).code == 0


async def test_without_a_daemon_everything_is_a_fault(backend: OciBackend, engine: tuple[Docker, OciSettings]) -> None:
    docker, _ = engine
    assert (await backend.probe()).ready
    docker.stop(signal.SIGKILL)
    try:
        with pytest.raises(SandboxFault, match="does not answer"):
            await backend.create(SandboxSpec(allow_degraded=WITHOUT), "away")
        with pytest.raises(SandboxFault, match="does not answer"):
            await backend.survey()
        with pytest.raises(SandboxFault, match="does not answer"):
            await backend.destroy("0" * 64)
        other = OciBackend(backend._home._state, backend._settings)
        probe = await other.probe()
        await other.close()
        assert not probe.ready
        assert "does not answer" in probe.facts["why"]
    finally:
        await asyncio.to_thread(docker.start)
    sandbox = await backend.create(SandboxSpec(allow_degraded=WITHOUT), "away")
    await backend.destroy(sandbox.handle)


async def test_a_container_that_somebody_removes_is_lost(
    backend: OciBackend, engine: tuple[Docker, OciSettings]
) -> None:
    handle, process = await begun(backend, Owner.TASK)
    await asyncio.to_thread(engine[0], "rm", "-f", handle)
    async with asyncio.timeout(BOUND_S):
        assert (await process.wait()).outcome is Outcome.LOST
        assert await backend.survey() == []
        assert await backend.destroy(handle) == Usage()
        with pytest.raises(SandboxGone):
            await backend.attach(handle)
        await finishes((await begun(backend, Owner.TASK))[1])


async def test_a_container_that_somebody_stops_is_made_anew(
    backend: OciBackend, engine: tuple[Docker, OciSettings]
) -> None:
    handle, process = await begun(backend, Owner.TASK)
    await asyncio.to_thread(engine[0], "kill", handle)
    async with asyncio.timeout(BOUND_S):
        assert (await process.wait()).outcome is Outcome.LOST
        assert [held.handle for held in await backend.survey()] == [handle]
        again, _ = await begun(backend, Owner.TASK)
    assert again != handle
