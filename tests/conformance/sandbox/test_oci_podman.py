"""Containers of a real Podman, through ``podman system service`` as root, pass a part of the conformance suite."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from skillyard.config.backends import OciSettings
from skillyard.domain.sandbox.guarantees import Level
from skillyard.sandbox.oci.backend import OciBackend
from skillyard.sandbox.oci.probe import WITHOUT
from skillyard.testing.sandbox_suite import CHECKS, Ground
from tests.conformance.sandbox import oci_ground
from tests.conformance.sandbox.conftest import Hold
from tests.conformance.sandbox.test_oci_backend import SHORT
from tests.hosts.docker_engine import Docker, unmount_below

# The image is built by Podman's own builder, which takes a minute.
pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(900)]
START_S = 60.0
CONFIGURED = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "none"
"""
"""Builds need the limits where root may not raise them; hosts with both versions of control groups need the rest."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Docker, OciSettings]]:
    if os.geteuid() != 0:
        pytest.skip("this Podman is root's")
    if shutil.which("podman") is None or shutil.which("runc") is None or shutil.which("docker") is None:
        pytest.skip("no podman here (Debian: apt install podman runc docker.io)")
    scratch = tmp_path_factory.mktemp("podman")
    (scratch / "containers.conf").write_text(CONFIGURED)
    socket = scratch / "podman.sock"
    words = ["podman", "--root", f"{scratch}/root", "--runroot", f"{scratch}/run", "system", "service", "--time", "0"]
    variables = {**os.environ, "CONTAINERS_CONF": f"{scratch}/containers.conf"}
    with (scratch / "log").open("ab") as log:
        service = subprocess.Popen([*words, f"unix://{socket}"], env=variables, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not socket.exists():
            if service.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"podman does not start here: {(scratch / 'log').read_text(errors='replace')[-300:]}")
            time.sleep(0.05)
        docker = Docker(socket)
        oci_ground.import_python(docker)
        built = oci_ground.build(docker, "--from", oci_ground.BASE, "--tag", oci_ground.IMAGE)
        assert built.returncode == 0, built.stderr
        yield docker, OciSettings(socket=str(socket), image=oci_ground.IMAGE)
    finally:
        service.terminate()
        service.wait(START_S)
        unmount_below(scratch)


@pytest.fixture(scope="module")
async def ground(engine: tuple[Docker, OciSettings], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    docker, settings = engine
    base, other = tmp_path_factory.mktemp("oci"), tmp_path_factory.mktemp("other")
    backend = OciBackend(base, settings)

    async def reopen() -> OciBackend:
        return OciBackend(other, settings)

    yield Ground(backend, tmp_path_factory.mktemp("scratch"), (base,), reopen, patience=3.0)
    await backend.close()
    assert docker("ps", "-aq").stdout == ""


async def test_the_probe_names_what_is_in_force(ground: Ground) -> None:
    probe = await ground.backend.probe()
    assert probe.ready, probe.facts
    assert probe.facts["engine"] == "podman"
    missing = {name for name, held in probe.protections.items() if held.level is Level.MISSING}
    # On control groups of version 1 Podman gives no namespace of them.
    assert missing - {"cgroup_namespace"} == {*WITHOUT, "own_uid"}


@pytest.mark.parametrize("id", sorted(SHORT))
async def test_conformance(id: str, ground: Ground, hold: Hold) -> None:
    [promise] = [check for check in CHECKS if check.id == id]
    await hold(promise, ground)
