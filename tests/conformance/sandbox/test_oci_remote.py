"""An engine on another machine: its socket as ssh forwards it, with this machine's files there and without."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skillyard.config.backends import OciSettings
from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.content import Content, HostDirectory
from skillyard.domain.sandbox.spec import EnvironmentRef, Mount, Owner, SandboxSpec
from skillyard.sandbox.oci.backend import OciBackend
from skillyard.sandbox.oci.engine import Engine
from skillyard.sandbox.oci.probe import WITHOUT
from skillyard.testing.sandbox_suite import CHECKS, Check, Ground
from skillyard.testing.twin_gate import TwinGate
from tests import waiting
from tests.conformance.sandbox import oci_ground
from tests.conformance.sandbox.conftest import Hold
from tests.conformance.sandbox.reading import ran, said
from tests.conformance.sandbox.test_oci_backend import BEYOND
from tests.conformance.sandbox.test_oci_podman import Podman, podman
from tests.hosts.docker_engine import Docker

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket.*sock:ResourceWarning"),
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("socat") is None, reason="socat is not installed"),
]
BOUND_S = 60.0
ROOT = Path(__file__).parents[3]
PARTS = ("endings-kill_ends_the_whole_tree", "guest-skills_and_blobs_are_read", "trees-tree_goes_in_and_comes_out")
UPLOADED = (*PARTS, "limits-full_disk_is_no_memory_kill", "egress-proxy_clients_find_the_gate_and_nobody_elses")
SECTIONS = ("content", "mounts", "writing")
LOADER, OURS = "label=skillyard.loader-of", "label=skillyard.content-of"
SPEC = SandboxSpec(single=True, allow_degraded=frozenset({*WITHOUT, "own_uid", "cgroup_namespace"}))


@dataclasses.dataclass
class Far:
    """An engine of whose machine ``hidden`` is another directory, so that it does not see ours."""

    docker: Docker
    settings: OciSettings
    hidden: Path

    def volumes(self) -> set[str]:
        return set(self.docker("volume", "ls", "-q", "--filter", OURS).stdout.split())

    def loads(self, since: float) -> tuple[int, int]:
        """How many loaders were made since that took content, and that looked at it."""
        words = ("--since", f"{since:.9f}", "--until", f"{time.time():.9f}", "--filter", "event=create")
        lines = self.docker("events", *words, "--filter", LOADER, "--format", "{{json .Actor.Attributes}}").stdout
        fills = [bool(json.loads(line)["skillyard.fills"]) for line in lines.splitlines()]
        return sum(fills), len(fills) - sum(fills)

    def most_loaders(self, since: float) -> int:
        """How many loaders there were at a time since."""
        words = ("--since", f"{since:.9f}", "--until", f"{time.time():.9f}", "--filter", "type=container")
        lines = self.docker("events", *words, "--filter", LOADER, "--format", "{{.Action}}").stdout.split()
        there = itertools.accumulate({"create": 1, "destroy": -1}.get(line, 0) for line in lines)
        return max(there)

    def check_events(self) -> None:
        if isinstance(self.docker, Podman):
            pytest.skip("loaders are counted by events, which Podman tells no client of Docker's in that form")

    def inside(self, *words: str) -> None:
        """Runs a command among the files that the engine sees."""
        assert self.docker.daemon is not None
        subprocess.run(["nsenter", "-t", str(self.docker.daemon.pid), "-m", *words], check=True, timeout=BOUND_S)


@contextmanager
def forwarded(socket: str, place: Path) -> Iterator[str]:
    """A socket of this machine that leads to another one, through a connection of TCP as between two machines."""
    local = str(place / "forwarded.sock")
    words = ["socat", "-d", "-d", "-lf", str(place / "far.log"), "TCP-LISTEN:0,bind=127.0.0.1,fork"]
    (place / "far.log").touch()
    ends = [subprocess.Popen([*words, f"UNIX-CONNECT:{socket}"])]
    try:
        waiting.until(lambda: b"listening on" in (place / "far.log").read_bytes(), BOUND_S)
        port = (place / "far.log").read_text().rpartition("listening on AF=2 127.0.0.1:")[2].split()[0]
        ends.append(subprocess.Popen(["socat", f"UNIX-LISTEN:{local},fork", f"TCP:127.0.0.1:{port}"]))
        waiting.until(Path(local).exists, BOUND_S)
        yield local
    finally:
        for end in ends:
            end.terminate()
            end.wait(BOUND_S)


@pytest.fixture(scope="module", params=["docker", pytest.param("podman", marks=pytest.mark.long)])
def far(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    hidden = tmp_path_factory.mktemp("hidden")
    if request.param == "podman" and os.geteuid() != 0:
        pytest.skip("root alone hides files from an engine")
    with (
        podman(hidden)
        if request.param == "podman"
        else oci_ground.engine(tmp_path_factory.mktemp("engine"), hidden=hidden) as (docker, settings),
        tempfile.TemporaryDirectory() as place,
        forwarded(settings.socket, Path(place)) as socket,
    ):
        yield Far(docker, settings.changed(socket=socket, ready=0), hidden)
        assert docker("ps", "-aq").stdout == ""


@pytest.fixture(scope="module")
async def ground(far: Far) -> AsyncIterator[Ground]:
    gate = TwinGate()
    backend = OciBackend(far.hidden / "oci", far.settings.changed(ready=1), gate)

    async def reopen() -> OciBackend:
        return OciBackend(far.hidden / "again", far.settings, gate)

    probe = await backend.probe()
    assert probe.ready, probe.facts
    assert probe.facts["content"] == "uploaded"
    yield Ground(backend, far.hidden, (far.hidden / "oci",), reopen, patience=3.0, gate=gate)
    await backend.close()
    await gate.close()


async def test_one_that_sees_our_files_is_as_any_other(far: Far, hold: Hold, tmp_path: Path) -> None:
    backend = OciBackend(tmp_path / "oci", far.settings)
    ground = Ground(backend, tmp_path)
    probe = await backend.probe()
    assert probe.ready, probe.facts
    assert probe.facts["content"] == "bound"
    before = far.volumes()
    for check in CHECKS:
        if check.id in PARTS:
            await hold(check, ground)
    assert far.volumes() == before
    await backend.close()


@pytest.mark.parametrize(
    "promise", [pytest.param(one, id=one.id) for one in CHECKS if one.id in UPLOADED or one.section in SECTIONS]
)
async def test_one_that_does_not_see_them_gets_content(promise: Check, ground: Ground, hold: Hold) -> None:
    if promise.id in BEYOND:
        pytest.skip(BEYOND[promise.id])
    await hold(promise, ground)


def content(place: Path, value: object = 1) -> SandboxSpec:
    """A skill, a package and a blob."""
    files = {"skill/a/main.py": f"A = {value!r}\n", "packages/far.py": "B = 2\n", "blob": "bytes"}
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "skill/a/tool").write_text("#!/bin/sh\necho tool\n")
    (place / "skill/a/tool").chmod(0o755)
    mounts = (
        Mount(Content("1", place / "skill"), "/skills/s", ("/skills/t",)),
        Mount(Content("2", place / "blob"), "/blobs/b"),
    )
    return dataclasses.replace(
        SPEC, mounts=mounts, environment=EnvironmentRef(packages=Content("3", place / "packages"))
    )


READS = "cat /skills/s/a/main.py /blobs/b; /skills/t/a/tool; python3 -c 'import far; print(far.B)'"
READ = "A = 1\nbytestool\n2\n"


async def test_content_goes_there_once(far: Far) -> None:
    far.check_events()
    spec, first, again = content(far.hidden / "once"), far.hidden / "state", time.time()
    backend = OciBackend(first, far.settings)
    assert await ran(backend, spec, READS) == READ
    assert far.loads(again)[0] == 6, "the agent and two files of ours, the skill, the package and the blob"
    again = time.time()
    assert await ran(backend, spec, READS) == READ
    assert far.loads(again) == (0, 0)
    await backend.close()
    after = OciBackend(first, far.settings)
    assert await ran(after, spec, READS) == READ
    assert far.loads(again) == (0, 6), "each is looked at by the next server"
    (far.hidden / "once/copy").mkdir()
    shutil.copytree(far.hidden / "once/skill", far.hidden / "once/copy", dirs_exist_ok=True)
    copy = dataclasses.replace(spec, mounts=(Mount(Content("4", far.hidden / "once/copy"), "/skills/s"),))
    assert await ran(after, copy, "cat /skills/s/a/main.py") == "A = 1\n"
    assert far.loads(again) == (0, 6), "the same bytes elsewhere are the same content"
    await after.close()


TRIES = """
for place in /skills/s /skills/s/a/main.py /skills/s/a /blobs/b /run/skillyard-held; do
  chmod u+w $place; (echo x >$place); (echo x >$place/x); rm -rf $place; mv $place /tmp/x; ln -s /etc $place/y
done 2>/dev/null
ls -A /run/skillyard-held | wc -l
grep -c " /skills/s ro," /proc/self/mountinfo
"""


async def test_a_program_changes_nothing_of_it(far: Far) -> None:
    spec = content(far.hidden / "attacked")
    backend = OciBackend(far.hidden / "state", far.settings)
    assert await ran(backend, spec, TRIES) == "0\n1\n"
    await backend.close()
    backend = OciBackend(far.hidden / "state", far.settings)
    since = time.time()
    assert await ran(backend, spec, READS) == READ
    assert isinstance(far.docker, Podman) or far.loads(since)[0] == 0, "every byte is as it was"
    await backend.close()


async def test_changed_content_is_replaced_and_never_while_it_is_used(far: Far) -> None:
    spec = content(far.hidden / "changed", "changed")
    spec = dataclasses.replace(spec, owner=Owner.TASK, mounts=spec.mounts[:1])
    backend = OciBackend(far.hidden / "state", far.settings)
    sandbox = await backend.create(spec, "task")
    [place] = [
        one for one in far.docker("volume", "ls", "-q").stdout.split() if "changed" in found(far, one, "a/main.py")
    ]
    far.docker(
        "run", "--rm", "-v", f"{place}:/x", "-u", "0", oci_ground.IMAGE, "sh", "-c", "echo evil >/x/it/a/main.py"
    )
    await backend.close()
    after = OciBackend(far.hidden / "state", far.settings)
    with pytest.raises(SandboxFault, match=r"in use|being used"):
        await after.create(spec, "other")
    await after.destroy(sandbox.handle)
    assert await ran(after, spec, "cat /skills/s/a/main.py") == "A = 'changed'\n"
    await after.close()


def found(far: Far, volume: str, name: str) -> str:
    return far.docker(
        "run", "--rm", "-v", f"{volume}:/x:ro", oci_ground.IMAGE, "sh", "-c", f"cat /x/it/{name} || true"
    ).stdout


async def test_a_directory_of_the_operators_is_sent_as_it_is_now(far: Far) -> None:
    place = far.hidden / "operator"
    place.mkdir()
    backend = OciBackend(far.hidden / "state", far.settings)
    spec = dataclasses.replace(SPEC, mounts=(Mount(HostDirectory(place), "/blobs/d"),))
    for text in ("one", "two"):
        (place / "file").write_text(text)
        assert await ran(backend, spec, "cat /blobs/d/file") == text
    await backend.close()


async def test_files_of_the_engines_machine_at_our_paths_are_not_taken_for_ours(far: Far) -> None:
    state, spec = far.hidden / "twin", content(far.hidden / "twin")
    backend = OciBackend(state, far.settings)
    assert (await backend.probe()).ready
    await backend.close()
    for path in sorted(state.rglob("*")):
        if path.is_dir():
            far.inside("mkdir", "-p", str(path))
        else:
            # Podman makes a directory where a file is to be shown that is not there.
            far.inside("sh", "-c", f"mkdir -p {path.parent}; rm -rf {path}; echo evil >{path}")
    backend = OciBackend(state, far.settings)
    assert await ran(backend, spec, READS) == READ
    await backend.close()


async def test_what_is_not_used_makes_room_and_what_is_used_stays(far: Far) -> None:
    far.check_events()
    state, since = far.hidden / "bounded", time.time()
    blobs = [far.hidden / f"blob-{number}" for number in range(4)]
    for number, blob in enumerate(blobs):
        blob.write_bytes(bytes([number]) * (5 << 20))
    specs = [
        dataclasses.replace(SPEC, mounts=(Mount(Content(str(number), blob), "/blobs/b"),))
        for number, blob in enumerate(blobs)
    ]
    backend = OciBackend(state, far.settings.changed(content_mb=12))
    before = far.volumes()
    sizes = []
    for spec in specs[:2]:
        sizes.append(await ran(backend, spec, "wc -c </blobs/b"))
    held = await backend.create(specs[0], "held")
    assert await ran(backend, specs[2], "wc -c </blobs/b") == sizes[0] == f"{5 << 20}\n"
    mine = far.volumes() - before
    other = await backend.create(specs[2], "other")
    with pytest.raises(SandboxFault, match=r"do not fit beside the content in use.*oci\.content_mb"):
        await backend.create(specs[3], "more")
    assert far.volumes() - before == mine
    assert await said(held, "md5sum </blobs/b") != await said(other, "md5sum </blobs/b")
    taken = far.loads(since)[0]
    for sandbox in (held, other):
        await backend.destroy(sandbox.handle)
    await ran(backend, specs[0], "true")
    assert far.loads(since)[0] == taken
    await ran(backend, specs[1], "true")
    assert far.loads(since)[0] == taken + 1, "it was that which had been used longest ago"
    await backend.close()


async def test_content_that_somebody_prunes_at_the_worst_moment_comes_again(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman makes an empty volume of that name then, which is not taken for ours a second time."""
    spec, backend = content(far.hidden / "pruned", "pruned"), OciBackend(far.hidden / "pruning", far.settings)
    before, text = far.volumes(), "cat /skills/s/a/main.py"
    assert await ran(backend, spec, text) == "A = 'pruned'\n"
    call, mine = Engine.call, far.volumes() - before

    async def late(engine: Engine, method: str, path: str, body: object = None, **params: str | int) -> object:
        if path == "/containers/create" and "loader" not in str(params["name"]):
            far.docker("volume", "rm", *mine)
            for name in mine:
                far.docker("volume", "create", name)
        return await call(engine, method, path, body, **params)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "call", late)
        with pytest.raises(SandboxFault):
            await backend.create(spec, "one")
    assert await ran(backend, spec, text) == "A = 'pruned'\n"
    await backend.close()


async def test_a_run_with_many_blobs_has_few_loaders_at_a_time(far: Far) -> None:
    far.check_events()
    blobs = [far.hidden / f"many-{number}" for number in range(12)]
    for blob in blobs:
        blob.write_text(blob.name)
    mounts = tuple(Mount(Content(blob.name, blob), f"/blobs/{blob.name}") for blob in blobs)
    backend, since = OciBackend(far.hidden / "state", far.settings), time.time()
    said = await ran(backend, dataclasses.replace(SPEC, mounts=mounts), "cat /blobs/*")
    assert said == "".join(sorted(blob.name for blob in blobs))
    assert far.loads(since)[0] >= len(blobs)
    assert far.most_loaders(since) <= 4
    await backend.close()


async def test_one_principal_leaves_room_for_others(far: Far) -> None:
    """No volume goes that a container has, however long its run is."""
    specs = []
    for number in range(2):
        (blob := far.hidden / f"share-{number}").write_bytes(bytes([number]) * (5 << 20))
        specs.append(dataclasses.replace(SPEC, mounts=(Mount(Content(blob.name, blob), "/blobs/b"),)))
    backend = OciBackend(far.hidden / "shares", far.settings.changed(content_mb=14))
    told = [dataclasses.replace(spec, tenant="a") for spec in specs]
    made = await asyncio.gather(*(backend.create(told[at], str(at)) for at in range(2)), return_exceptions=True)
    held, refused = sorted(made, key=lambda one: isinstance(one, Exception))
    assert isinstance(refused, SandboxFault)
    assert "one principal" in refused.message
    assert not isinstance(held, BaseException)
    for spec in specs:
        other = await backend.create(dataclasses.replace(spec, tenant="b"), "other")
        await backend.destroy(other.handle)
    await backend.destroy(held.handle)
    for spec in told:
        assert await ran(backend, spec, "wc -c </blobs/b") == f"{5 << 20}\n"
    await backend.close()


SERVER = """
import asyncio, os, signal, sys
from pathlib import Path
from skillyard.config.backends import OciSettings
from skillyard.sandbox.oci import container, volumes
from skillyard.sandbox.oci.backend import OciBackend
from tests.conformance.sandbox.test_oci_remote import content

async def sends(source, writer):
    if "half" not in source:
        return await sent(source, writer)
    writer.write(next(volumes._pieces(source)))
    await writer.drain()
    os.kill(os.getpid(), signal.SIGKILL)

async def main(base: Path, settings: str) -> None:
    container.LEASE_S = 3.0
    backend = OciBackend(base / "state", OciSettings.model_validate_json(settings))
    await backend.create(content(base / "whole"), "run")
    volumes._sent = sends
    await backend.create(content(base / "half-sent", "half"), "half")

sent = volumes._sent
asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


async def test_a_killed_server_leaves_nothing(far: Far) -> None:
    base, before = far.hidden / "killed", far.volumes()
    others = set(far.docker("ps", "-aq").stdout.split())
    words = [sys.executable, "-c", SERVER, str(base), far.settings.model_dump_json()]
    killed = await asyncio.create_subprocess_exec(*words, cwd=ROOT)
    async with asyncio.timeout(BOUND_S):
        assert await killed.wait() == -signal.SIGKILL
    assert far.docker("ps", "-aq", "--filter", LOADER).stdout != ""
    backend = OciBackend(base / "state", far.settings)
    [held] = await backend.survey()
    assert far.docker("ps", "-aq", "--filter", LOADER).stdout == ""
    await backend.destroy(held.handle)
    assert set(far.docker("ps", "-aq").stdout.split()) <= others
    kept = far.volumes() - before
    assert await ran(backend, content(base / "half-sent", "half"), READS) == READ.replace("1", "'half'")
    assert far.volumes() - before >= kept
    vars(backend)["_volumes"]._idle_s = 0.0
    assert await backend.survey() == []
    assert far.volumes() <= before, "what nobody used for long is gone"
    await backend.close()
