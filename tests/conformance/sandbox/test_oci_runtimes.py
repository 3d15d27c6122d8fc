"""Other runtimes than Docker's own, where the engine has them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillyard.config.backends import OciSettings
from skillyard.domain.errors import ProtectionMissing
from skillyard.domain.sandbox.guarantees import OWN_KERNEL, Level
from skillyard.domain.sandbox.spec import Argv, SandboxSpec, Stream
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.oci import container
from skillyard.sandbox.oci.backend import OciBackend
from skillyard.sandbox.oci.probe import BOUNDED, WITHOUT, seen_outside
from tests.conformance.sandbox import oci_ground
from tests.hosts.docker_engine import Docker

pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(600)]
FORKS = "import os, time\nfor _ in range(2000):\n    if os.fork() == 0:\n        time.sleep(20)\n        os._exit(0)"


def runsc() -> str | None:
    """Where the tests find runsc."""
    return os.environ.get("SKILLYARD_GVISOR__RUNSC") or shutil.which("runsc")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Docker, OciSettings]]:
    scratch = tmp_path_factory.mktemp("engine")
    options = [] if shutil.which("crun") is None else ["--add-runtime", f"crun={shutil.which('crun')}"]
    if (place := runsc()) is not None:
        known = subprocess.run([place, "flags"], capture_output=True, text=True)
        platform = "--platform=systrap" if "systrap" in known.stdout + known.stderr else "--platform=ptrace"
        wrapper = scratch / "runsc"
        wrapper.write_text(f'#!/bin/sh\nexec {place} --network=none {platform} "$@"\n')
        wrapper.chmod(0o755)
        options += ["--add-runtime", f"runsc={wrapper}"]
    with oci_ground.engine(scratch, *options) as found:
        yield found


async def test_crun_bounds_queues_of_sockets(engine: tuple[Docker, OciSettings], tmp_path: Path) -> None:
    if shutil.which("crun") is None:
        pytest.skip("no crun here (Debian: apt install crun)")
    backend = OciBackend(tmp_path, engine[1].changed(runtime="crun", ready=0))
    probe = await backend.probe()
    try:
        if "hybrid mode" in probe.facts.get("why", ""):
            pytest.skip("this crun refuses hosts where both versions of control groups are mounted")
        assert probe.ready, probe.facts
        missing = {name for name, held in probe.protections.items() if held.level is Level.MISSING}
        assert missing == {*WITHOUT, "own_uid"}
        if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
            assert probe.protections["memory"].by == BOUNDED
    finally:
        await backend.close()


async def test_the_limits_of_runsc_are_seen_on_the_host(
    engine: tuple[Docker, OciSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runsc() is None:
        pytest.skip("no runsc here (.ci/setup installs one)")
    backend = OciBackend(tmp_path, engine[1].changed(runtime="runsc", ready=0))
    probe = await backend.probe()
    try:
        assert probe.ready, probe.facts
        assert probe.facts["guest_kernel"] != probe.facts["engine_kernel"]
        missing = frozenset(name for name, held in probe.protections.items() if held.level is Level.MISSING)
        assert missing == {"landlock", "own_uid", "cgroup_namespace"}
        assert {probe.protections[name].level for name in ("memory", "pids", "cpus", OWN_KERNEL)} == {Level.KERNEL}
        sandbox = await backend.create(SandboxSpec(allow_degraded=WITHOUT), "one")
        assert sandbox.enforced[OWN_KERNEL] == "kernel"
        process = await sandbox.start(Argv(("uname", "-r")), id="asks")
        said = b"".join([data async for data in process.output(Stream.STDOUT)])
        assert said.decode().strip() == probe.facts["guest_kernel"]
        told = json.loads(engine[0]("inspect", sandbox.handle).stdout)[0]
        outside = seen_outside(told["State"]["Pid"], sandbox.handle)
        assert outside["memory"] == str(container.memory(SandboxSpec().limits))
        assert seen_outside(os.getpid(), sandbox.handle) == {}  # as where the engine is on another host
        await backend.destroy(sandbox.handle)
        # A program that forks without end ends its own sandbox alone, and what it took is counted on the host.
        bomb = await backend.create(SandboxSpec(allow_degraded=WITHOUT), "bomb")
        process = await bomb.start(Argv(("python3", "-I", "-c", FORKS)), id="forks")
        async with asyncio.timeout(60):
            assert (await process.wait()).outcome in (Outcome.LOST, Outcome.EXIT)
        await backend.destroy(bomb.handle)
        assert engine[0]("ps", "-aq").stdout == ""
        # A runtime whose limits nobody sees is refused: the test takes the host's view away.
        monkeypatch.setattr("skillyard.sandbox.oci.backend.seen_outside", lambda *_: {})
        blind = OciBackend(tmp_path / "blind", engine[1].changed(runtime="runsc", ready=0))
        with pytest.raises(ProtectionMissing, match="memory"):
            await blind.create(SandboxSpec(allow_degraded=WITHOUT), "refused")
        await blind.close()
    finally:
        await backend.close()
