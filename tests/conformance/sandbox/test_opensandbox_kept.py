"""Skills and packages that a real OpenSandbox server keeps in snapshots, as its engine shows them."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import EnvironmentRef, Mount, SandboxSpec
from skillyard.sandbox.opensandbox.backend import OpenSandboxBackend
from tests.conformance.sandbox import opensandbox_ground
from tests.conformance.sandbox.oci_ground import BASE
from tests.conformance.sandbox.opensandbox_ground import OpenSandbox
from tests.conformance.sandbox.reading import ran, said

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket.*raddr=\('198\.19:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed transport <_SelectorSocketTransport:ResourceWarning"),
    pytest.mark.anyio,
    pytest.mark.timeout(300),
]
ROOT = Path(__file__).parents[3]
BOUND_S = 120.0
READS = "cat /skills/s/a/main.py /skills/t/a/main.py /blobs/b; python3 -c 'import far; print(far.B)'"
READ = "A = 1\nA = 1\nbytes2\n"
TRIES = """
for place in /skills/s /skills/s/a/main.py /skills/s/a "$(python3 -c 'import far; print(far.__file__)')"; do
  chmod u+w $place; (echo x >$place); (echo x >$place/x); rm -rf $place; mv $place /tmp/x; ln -s /etc $place/y
done 2>/dev/null
"""

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from skillyard.config.backends import OpenSandboxSettings
from skillyard.sandbox.opensandbox.backend import OpenSandboxBackend
from skillyard.sandbox.opensandbox.server import Server
from tests.conformance.sandbox.reading import ran
from tests.conformance.sandbox.test_opensandbox_kept import READS, content, settled

async def snapshot(self, id, name):
    os.kill(os.getpid(), signal.SIGKILL)

async def main(base: Path, settings: str, key: str) -> None:
    Server.snapshot = snapshot
    ours = OpenSandboxSettings.model_validate_json(settings).changed(api_key=key)
    backend = OpenSandboxBackend(base / "state", ours)
    for _ in range(2):
        await ran(backend, await content(backend, base / "killed"), READS)
    await settled(backend)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSandbox]:
    with opensandbox_ground.open_sandbox(tmp_path_factory.mktemp("server")) as found:
        yield found


async def content(backend: OpenSandboxBackend, place: Path, digest: str = "1") -> SandboxSpec:
    """A skill, a package and a blob."""
    for name, text in {"skill/a/main.py": "A = 1\n", "packages/far.py": "B = 2\n", "blob": "bytes"}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    mounts = (
        Mount(Content(digest, place / "skill"), "/skills/s", ("/skills/t",)),
        Mount(Content("2", place / "blob"), "/blobs/b"),
    )
    missing = {name for name, one in (await backend.probe()).protections.items() if one.level is Level.MISSING}
    packages = EnvironmentRef(packages=Content("3", place / "packages"))
    return SandboxSpec(mounts=mounts, environment=packages, single=True, allow_degraded=frozenset(missing))


async def settled(backend: OpenSandboxBackend) -> None:
    """Waits for the snapshots that are being made."""
    async with asyncio.timeout(BOUND_S):
        await asyncio.gather(*vars(backend)["_kept"]._making.values())


def snapshots(server: OpenSandbox) -> set[str]:
    return set(server.docker("images", "-q", "--no-trunc", "opensandbox-snapshots").stdout.split())


async def made_of(server: OpenSandbox, backend: OpenSandboxBackend, spec: SandboxSpec, text: str = READS) -> str:
    """The image of the sandbox in which the content was read."""
    sandbox = await backend.create(spec, "one")
    try:
        assert await said(sandbox, text) == READ
        label = f"label=opensandbox.io/id={sandbox.handle}"
        [container] = server.docker("ps", "-q", "--filter", label).stdout.split()
        return server.docker("inspect", "--format", "{{.Image}}", container).stdout.strip()
    finally:
        await backend.destroy(sandbox.handle)


async def test_content_that_is_used_again_is_uploaded_no_more(server: OpenSandbox, tmp_path: Path) -> None:
    backend = OpenSandboxBackend(tmp_path / "state", server.settings())
    spec = await content(backend, tmp_path)
    base = server.docker("inspect", "--format", "{{.Id}}", BASE).stdout.strip()
    assert await made_of(server, backend, spec) == base
    assert vars(backend)["_kept"]._making == {}, "what is used once is not kept"
    assert await made_of(server, backend, spec) == base
    await settled(backend)
    [kept] = snapshots(server)
    assert server.containers() == []
    assert await made_of(server, backend, spec, f"{TRIES} {READS}") == kept
    assert await made_of(server, backend, spec) == kept, "no program changed a byte"
    (tmp_path / "blob").write_text("other")
    assert await ran(backend, spec, READS) == READ.replace("bytes", "other"), "blobs are each run's own"
    assert await ran(backend, dataclasses.replace(spec, mounts=spec.mounts[1:]), "ls -d /skills 2>/dev/null") == ""
    await backend.close()
    # the next server looks at what it finds
    after = OpenSandboxBackend(tmp_path / "state", server.settings())
    (tmp_path / "blob").write_text("bytes")
    assert await made_of(server, after, spec) == kept
    vars(after)["_kept"]._idle_s = 0.0
    assert await after.survey() == []
    assert snapshots(server) == set()
    assert await made_of(server, after, spec) == base
    await after.close()


async def test_a_snapshot_that_somebody_changed_is_not_used(server: OpenSandbox, tmp_path: Path) -> None:
    backend = OpenSandboxBackend(tmp_path / "state", server.settings())
    spec = await content(backend, tmp_path)
    for _ in range(2):
        await ran(backend, spec, READS)
    await settled(backend)
    await backend.close()
    name = server.docker("images", "--format", "{{.Repository}}:{{.Tag}}", "opensandbox-snapshots").stdout.strip()
    change = f"FROM {name}\nRUN rm /skills/s/a/main.py && echo evil >/skills/s/a/main.py\n".encode()
    server.docker("build", "-q", "--network", "none", "-t", name, "-", stdin=change)
    after = OpenSandboxBackend(tmp_path / "state", server.settings())
    with pytest.raises(SandboxFault, match="other content lies at /skills/s"):
        await ran(after, spec, READS)
    assert await ran(after, spec, READS) == READ
    await settled(after)
    await after.close()
    assert server.containers() == []


async def test_more_than_the_limit_is_not_kept(server: OpenSandbox, tmp_path: Path) -> None:
    backend = OpenSandboxBackend(tmp_path / "state", server.settings(content_mb=1))
    specs = []
    for name, size in (("large", 1 << 20), ("one", 600_000), ("other", 600_000)):
        specs.append(await content(backend, tmp_path / name, name))
        (tmp_path / name / "skill/large").write_bytes(bytes(size))
    before, found = snapshots(server), []
    for spec in specs:
        for _ in range(2):
            await ran(backend, spec, READS)
        await settled(backend)
        found.append(snapshots(server) - before)
    assert [len(one) for one in found] == [0, 1, 1]
    assert found[1] != found[2]
    vars(backend)["_kept"]._idle_s = 0.0
    await backend.survey()
    await backend.close()


async def test_a_killed_server_leaves_nothing(server: OpenSandbox, tmp_path: Path) -> None:
    before, settings = snapshots(server), server.settings()
    words = [sys.executable, "-c", KILLED, str(tmp_path), settings.model_dump_json(), settings.key()]
    killed = await asyncio.create_subprocess_exec(*words, cwd=ROOT)
    async with asyncio.timeout(BOUND_S):
        assert await killed.wait() == -signal.SIGKILL
    assert server.containers() != []
    backend = OpenSandboxBackend(tmp_path / "state", settings)
    for held in await backend.survey():  # the run that was going on
        await backend.destroy(held.handle)
    assert server.containers() == []
    assert snapshots(server) == before
    await backend.close()
