"""Containers that are made ahead: each is used once, none is counted as lent, and none outlives its server."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from skillyard.config.backends import OciSettings
from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Argv, Mount, Owner, SandboxSpec, Stream
from skillyard.sandbox.agent_client import AgentSandbox
from skillyard.sandbox.oci.backend import OciBackend
from skillyard.sandbox.oci.probe import WITHOUT
from tests.conformance.sandbox import oci_ground
from tests.hosts.docker_engine import Docker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]
BOUND_S = 120.0
SPEC = SandboxSpec(single=True, allow_degraded=WITHOUT)
TASK = replace(SPEC, owner=Owner.TASK)

SERVER = """
import asyncio, os, signal, sys
from pathlib import Path
from skillyard.config.backends import OciSettings
from skillyard.sandbox.agent_client import AgentSandbox
from skillyard.sandbox.oci import container
from skillyard.sandbox.oci.backend import OciBackend
from skillyard.domain.sandbox.spec import Argv
from tests.conformance.sandbox.test_oci_pool import SPEC, TASK, stands

async def main(base: Path, settings: str) -> None:
    container.LEASE_S = 8.0
    backend = OciBackend(base, OciSettings.model_validate_json(settings))
    await backend.prepare(SPEC)
    await stands(backend, 1)
    await backend.create(SPEC, "lent")
    await backend.prepare(TASK)
    await stands(backend, 2)
    task = await backend.create(TASK, "task")
    await task.start(Argv(("head", "-n", "1"), stdin=True), id="waits", timeout_ms=300_000)
    await stands(backend, 2)
    AgentSandbox.keep = lambda self: asyncio.sleep(0)  # killed between the record and the word to the agent
    print(task.handle, (await backend.create(TASK, "begun")).handle, flush=True)
    await stands(backend, 2)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Docker, OciSettings]]:
    with oci_ground.engine(tmp_path_factory.mktemp("engine")) as found:
        yield found


@pytest.fixture
async def backend(engine: tuple[Docker, OciSettings], tmp_path: Path) -> AsyncIterator[OciBackend]:
    backend = OciBackend(tmp_path / "oci", engine[1])
    yield backend
    for held in await backend.survey():
        await backend.destroy(held.handle)
    await backend.close()
    assert engine[0]("ps", "-aq").stdout == ""


async def stands(backend: OciBackend, ready: int) -> None:
    await until(lambda: backend._pool.count == ready)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not holds():
            await asyncio.sleep(0.05)


def containers(docker: Docker) -> set[str]:
    return set(docker("ps", "-q", "--no-trunc").stdout.split())


async def said(sandbox: AgentSandbox, text: str) -> bytes:
    process = await sandbox.start(Argv(("sh", "-c", text)), id="says")
    return b"".join([data async for data in process.output(Stream.STDOUT)])


async def test_each_is_lent_once_and_counted_only_then(backend: OciBackend, engine: tuple[Docker, OciSettings]) -> None:
    await backend.prepare(SPEC)
    await stands(backend, 1)
    [ready] = containers(engine[0])
    assert await backend.survey() == []
    assert await backend.stats() == {"sandboxes": 1, "lent": 0, "ready": 1}
    assert backend.counts() == {"lent": 0, "ready": 1}
    with pytest.raises(SandboxGone):
        await backend.attach(ready)
    one, other = await asyncio.gather(backend.create(SPEC, "one"), backend.create(SPEC, "other"))
    assert one.handle != other.handle
    assert backend.counts()["lent"] == 2
    assert ready in (one.handle, other.handle)
    assert await backend.create(SPEC, "one") is one
    assert {held.key: held.handle for held in await backend.survey()} == {"one": one.handle, "other": other.handle}
    assert await said(one, "echo seen >/tmp/left; echo seen >/workspace/left; ls /tmp /workspace") != b""
    await backend.destroy(one.handle)
    await stands(backend, 1)
    third = await backend.create(SPEC, "third")
    assert third.handle not in (one.handle, other.handle)
    assert await said(third, "ls /workspace /tmp /dev/shm | grep left; echo none") == b"none\n"
    assert third.enforced == other.enforced


async def test_the_doctor_counts_those_of_every_server(
    backend: OciBackend, engine: tuple[Docker, OciSettings], tmp_path: Path
) -> None:
    other = OciBackend(tmp_path / "other", engine[1].model_copy(update={"ready": 0}))
    before, facts = await other.standing(), (await other.probe()).facts
    await backend.create(SPEC, "one")
    assert await other.standing() > before
    await other.close()
    again = OciBackend(tmp_path / "other", engine[1].model_copy(update={"ready": 0}))
    assert (await again.probe()).facts == facts, "sessions keep their sandboxes whatever else the engine runs"
    await again.close()


async def test_what_is_shown_inside_belongs_to_the_shape(backend: OciBackend, tmp_path: Path) -> None:
    skills = {name: tmp_path / name for name in ("a", "b")}
    for name, path in skills.items():
        path.mkdir()
        (path / "name").write_text(name)
    specs = {name: replace(SPEC, mounts=(Mount(Content(name, path), "/skills/s"),)) for name, path in skills.items()}
    await backend.prepare(specs["a"])
    await stands(backend, 1)
    for name, spec in specs.items():
        sandbox = await backend.create(spec, name)
        assert await said(sandbox, "cat /skills/s/name; touch /skills/s/x 2>/dev/null && echo written") == name.encode()
        await backend.destroy(sandbox.handle)


async def test_one_that_somebody_removed_is_not_lent(backend: OciBackend, engine: tuple[Docker, OciSettings]) -> None:
    await backend.prepare(SPEC)
    await stands(backend, 1)
    [ready] = containers(engine[0])
    await asyncio.to_thread(engine[0], "rm", "-f", ready)
    await until(lambda: backend._pool._ready[next(iter(backend._pool._ready))][0].cut_off)
    sandbox = await backend.create(SPEC, "one")
    assert sandbox.handle != ready
    assert await said(sandbox, "echo works") == b"works\n"


async def test_another_image_under_the_name_drains_them(engine: tuple[Docker, OciSettings], tmp_path: Path) -> None:
    docker, settings = engine
    docker("tag", oci_ground.IMAGE, "skillyard-tests/moves:1")
    backend = OciBackend(tmp_path, settings.changed(image="skillyard-tests/moves:1"))
    await backend.prepare(SPEC)
    await stands(backend, 1)
    before = containers(docker)
    docker("build", "-q", "-t", "skillyard-tests/moves:1", "-", stdin=f"FROM {oci_ground.IMAGE}\nLABEL a=b\n".encode())
    sandbox = await backend.create(SPEC, "one")
    assert sandbox.image == docker("inspect", "--format", "{{.Id}}", "skillyard-tests/moves:1").stdout.strip()
    await until(lambda: not before & containers(docker))
    await backend.close()
    assert docker("ps", "-aq").stdout == ""


async def test_a_killed_server_loses_no_task_and_leaves_nothing_else(
    backend: OciBackend, engine: tuple[Docker, OciSettings], tmp_path: Path
) -> None:
    words = [sys.executable, "-c", SERVER, str(tmp_path / "oci"), engine[1].model_dump_json()]
    killed = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(BOUND_S):
        said, _ = await killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    task, forgotten = said.decode().split()
    await backend.attach(forgotten)  # its agent was not told that it stays
    assert len(engine[0]("ps", "-aq").stdout.split()) == 5
    held = {one.key: one for one in await backend.survey()}
    assert {key: (one.handle, one.owner) for key, one in held.items()} == {
        "task": (task, Owner.TASK),
        "begun": (forgotten, Owner.TASK),
    }
    await until(lambda: containers(engine[0]) == {task, forgotten})  # without a lease the agents of the others end
    assert {one.key for one in await backend.survey()} == {"task", "begun"}
    sandbox = await backend.attach(task)
    process = await sandbox.process("waits")
    async with asyncio.timeout(BOUND_S):
        await process.send(b"went on\n")
        assert b"".join([data async for data in process.output(Stream.STDOUT)]) == b"went on\n"
    await backend.destroy(task)
    await asyncio.to_thread(engine[0], "rm", "-f", forgotten)
    assert await backend.survey() == []
    with pytest.raises(SandboxGone):
        await backend.attach(task)


async def test_a_task_gets_one_of_its_own_kind(backend: OciBackend, engine: tuple[Docker, OciSettings]) -> None:
    await backend.prepare(SPEC)
    await stands(backend, 1)
    await backend.prepare(TASK)
    await stands(backend, 2)
    ready = containers(engine[0])
    sandbox = await backend.create(TASK, "task")
    assert sandbox.handle in ready
    assert [held.owner for held in await backend.survey()] == [Owner.TASK]
    assert await backend.create(TASK, "task") is sandbox
    await backend.destroy(sandbox.handle)
    run = await backend.create(SPEC, "run")
    assert run.handle in ready


async def test_one_whose_agent_cannot_be_told_to_stay_is_not_left(
    backend: OciBackend, engine: tuple[Docker, OciSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: AgentSandbox) -> None:
        raise SandboxFault("the channel is lost")

    await backend.prepare(TASK)
    await stands(backend, 1)
    [ready] = containers(engine[0])
    monkeypatch.setattr(AgentSandbox, "keep", fails)
    with pytest.raises(SandboxFault):
        await backend.create(TASK, "task")
    assert ready not in containers(engine[0])
    assert await backend.survey() == []
    assert backend._lent.handles() == frozenset()
