"""Packages that are imported ahead do not get out: not by what the keeper mounts, nor by what they keep running."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Argv, EnvironmentRef, Mount, SandboxSpec, Stream
from skillyard.sandbox.native.backend import NativeBackend
from tests.attacks.preloading.escapes import MAPS, SOURCES, UNCOVERS
from tests.attacks.preloading.packages import Yard

pytestmark = pytest.mark.anyio

TRUST = "/run/egress/ca.pem"
CAUGHT = ("by_flags", "by_root")
"""Those that do nothing to the sandboxes themselves need not be found."""


class Ground:
    def __init__(self, base: Path) -> None:
        self.packages = base / "packages"
        self.packages.mkdir()
        for name, source in (SOURCES | {"uncovers": UNCOVERS, "maps": MAPS, "maps_too": MAPS}).items():
            (self.packages / f"{name}.py").write_text(source)
        self.packages.chmod(0o777)  # root's sandboxes are other users, who could not write to root's own
        self.skill = base / "skill"
        self.skill.mkdir()
        (self.skill / "SKILL.md").write_text("shown")
        self.skill.chmod(0o777)
        self.file = base / "file"
        self.file.write_text("bytes")
        self.backend = NativeBackend(base / "run", NativeSettings(ready=1))

    def spec(self, module: str) -> SandboxSpec:
        mounts = (
            Mount(Content("sha256:0", self.skill), "/skills/shown"),
            Mount(Content("sha256:0", self.file), "/blobs/blob:1"),
            Mount(Content("sha256:0", self.file), TRUST),
        )
        return SandboxSpec(
            environment=EnvironmentRef("hostile", Content("x", self.packages), (module,), "x"), mounts=mounts
        )

    async def run(self, module: str) -> str:
        """What a run prints that has these mounts, with the module imported ahead or left out."""
        sandbox = await self.backend.create(self.spec(module), f"of-{module}")
        try:
            script = "cat /skills/shown/SKILL.md /blobs/blob:1; ls /proc/1/task | wc -l; ls -d /proc/[0-9]* | wc -l"
            process = await sandbox.start(Argv(("sh", "-c", script)), id="p", timeout_ms=20_000)
            await process.wait()
            return b"".join([piece async for piece in process.output(Stream.STDOUT)]).decode()
        finally:
            await self.backend.destroy(sandbox.handle)

    def marks(self) -> list[str]:
        known = {f"{name}.py" for name in (*SOURCES, "uncovers", "maps", "maps_too")} | {"SKILL.md", "__pycache__"}
        return [str(p) for place in (self.packages, self.skill) for p in place.iterdir() if p.name not in known]


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    base = tmp_path_factory.mktemp("escapes")
    ground = Ground(base)
    if not (probe := await ground.backend.probe()).ready:
        pytest.skip(probe.facts["why"])
    yield ground
    await ground.backend.close()


@pytest.mark.parametrize("module", SOURCES)
async def test_nothing_of_the_host_is_written_and_runs_go_on(ground: Ground, module: str) -> None:
    made = await ground.backend.prepare(ground.spec(module))
    assert made is not None
    try:
        assert (await ground.run(module)).startswith("shownbytes1\n")
        assert (await ground.run(module)).startswith("shownbytes1\n")
    finally:
        found = ground.marks()
        for path in found:
            subprocess.run(["rm", "-rf", path], check=True)
    assert found == []
    if module not in CAUGHT:
        made = await ground.backend.prepare(ground.spec(module))
        assert made is not None
        assert module in made.faults


async def test_what_is_covered_cannot_be_uncovered(ground: Ground) -> None:
    made = await ground.backend.prepare(ground.spec("uncovers"))
    assert made is not None
    assert made.faults == {}
    assert await Yard(ground.backend, ground.packages).evaluate("uncovers.uncovered + uncovers.moved", "uncovers") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has one id to give")
async def test_a_zygote_can_become_no_sandbox_of_another(ground: Ground) -> None:
    yard = Yard(ground.backend, ground.packages)
    maps = [await yard.evaluate(f"{name}.mapped", name) for name in ("maps", "maps_too")]
    one, other = ({*range(first, first + count)} for _, first, count in (lines[-1] for lines in maps))
    plain = await yard.evaluate("int(open('/proc/self/uid_map').read().split()[1])")
    assert not one & other
    assert maps[0][0][1] + plain not in one | other, "those that import nothing ahead share the rest"


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else can mount for all to see")
def test_a_certificate_file_that_is_mounted_over_the_hosts_is_seen(tmp_path: Path) -> None:
    theirs = "/etc/ssl/certs/ca-certificates.crt"
    if not os.path.isfile(theirs):
        pytest.skip(f"this host has no {theirs}")
    (tmp_path / "operators.crt").write_text("of the operator")
    script = (
        f"mount --bind {tmp_path}/operators.crt {theirs} && exec {sys.executable} -c {shlex.quote(_READ)} {tmp_path}"
    )
    seen = subprocess.run(["unshare", "--mount", "sh", "-c", f"{script} {theirs}"], capture_output=True, text=True)
    if seen.stderr.startswith("unshare:"):
        pytest.skip(seen.stderr.strip())  # a root without the capability, as in a container
    assert (seen.returncode, seen.stdout) == (0, "of the operator"), seen.stderr


_READ = """
import asyncio, pathlib, sys
from skillyard.domain.sandbox.spec import Argv, SandboxSpec, Stream
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.config.backends import NativeSettings
async def main():
    backend = NativeBackend(pathlib.Path(sys.argv[1], 'run'), NativeSettings(ready=0))
    sandbox = await backend.create(SandboxSpec(), 'reads')
    process = await sandbox.start(Argv(('cat', sys.argv[2])), id='p', timeout_ms=20_000)
    await process.wait()
    sys.stdout.buffer.write(b''.join([piece async for piece in process.output(Stream.STDOUT)]))
    await backend.destroy(sandbox.handle)
    await backend.close()
asyncio.run(main())
"""
