"""Containers of a real Podman, through ``podman system service``, pass a part of the conformance suite.

As root, and by an account without rights: root runs this file again as that.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skillyard.config.backends import OciSettings
from skillyard.domain.errors import ProtectionMissing, SandboxFault
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import Argv, Owner, SandboxSpec, Stream
from skillyard.domain.work.record import Outcome
from skillyard.ports.sandbox import Backend, Process
from skillyard.sandbox.oci.backend import OciBackend
from skillyard.sandbox.oci.probe import WITHOUT
from skillyard.testing.sandbox_suite import CHECKS, Ground
from skillyard.testing.twin_gate import TwinGate
from tests.conformance.sandbox import oci_ground
from tests.conformance.sandbox.conftest import Hold
from tests.conformance.sandbox.test_oci_backend import SHORT
from tests.conformance.sandbox.test_oci_kills import WAITS
from tests.hosts.docker_engine import ROOT, Docker, unmount_below, without

# The image is built by Podman's own builder, which takes a minute.
pytestmark = [pytest.mark.anyio, pytest.mark.long, pytest.mark.timeout(900)]
START_S = 60.0
ACCOUNT = "skillyard-podman"
LIMITED = {"memory", "pids", "cpus"}
CONFIGURED = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "none"
"""
"""Builds need the limits where root may not raise them; hosts with both versions of control groups need the rest."""


class Podman(Docker):
    """``podman system service`` of whoever runs the tests."""

    def __init__(self, scratch: Path, hidden: Path | None = None) -> None:
        """It sees nothing in the directory ``hidden``."""
        (scratch / "containers.conf").write_text(CONFIGURED)
        words = ["env", f"CONTAINERS_CONF={scratch}/containers.conf", f"XDG_RUNTIME_DIR={scratch}"]
        words += ["setpriv", "--inh-caps=-all", "--ambient-caps=-all"]  # not what lets the tests be read
        words += ["podman", "--root", f"{scratch}/root", "--runroot", f"{scratch}/run", "system", "service"]
        words += ["--time", "0", f"unix://{scratch}/podman.sock"]
        super().__init__(scratch / "podman.sock", words if hidden is None else without(hidden, words))

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Ends the service: without root it is two processes, and one begins the other anew in its namespace."""
        if self.daemon is not None and self.daemon.poll() is None:
            os.killpg(self.daemon.pid, by)
            self.daemon.wait(START_S)


@contextmanager
def podman(hidden: Path | None = None) -> Iterator[tuple[Docker, OciSettings]]:
    """Skips, with the reason, where there is none to be had."""
    if shutil.which("podman") is None or shutil.which("runc") is None or shutil.which("docker") is None:
        pytest.skip("no podman here (Debian: apt install podman runc docker.io)")
    if os.geteuid() != 0 and not _has_ranges():
        pytest.skip("an engine without root needs an account with ranges of ids (usermod --add-subuids, --add-subgids)")
    with _scratch() as scratch:
        docker = Podman(scratch, hidden)
        try:
            docker.start()
            oci_ground.import_python(docker)
            built = oci_ground.build(docker, "--from", oci_ground.BASE, "--tag", oci_ground.IMAGE)
            # Where limits do not count, the image is built, and a first look says that they are missing.
            assert built.returncode == 0, built.stderr
            yield docker, OciSettings(socket=str(docker.socket), image=oci_ground.IMAGE, ready=0)
        finally:
            for name in docker("ps", "-aq", check=False).stdout.split():
                docker("rm", "-f", name, check=False)
            docker.stop()
            unmount_below(scratch)


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[Docker, OciSettings]]:
    with podman() as found:
        yield found


@contextmanager
def _scratch() -> Iterator[Path]:
    """A directory with a name so short that Podman takes it."""
    scratch = Path(tempfile.mkdtemp(prefix="p"))
    try:
        yield scratch
    finally:
        if os.geteuid() != 0:  # an engine without root leaves files of other ids there
            subprocess.run(["podman", "unshare", "rm", "-rf", str(scratch)], timeout=START_S, check=False)
        shutil.rmtree(scratch, ignore_errors=True)


def _has_ranges() -> bool:
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return any(line.startswith(f"{name}:") for line in Path("/etc/subuid").read_text().splitlines())


@pytest.fixture(scope="module")
async def ground(engine: tuple[Docker, OciSettings], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    docker, settings = engine
    base, other = tmp_path_factory.mktemp("oci"), tmp_path_factory.mktemp("other")
    gate = TwinGate()
    backend = OciBackend(base, settings, gate)

    async def reopen() -> OciBackend:
        return OciBackend(other, settings, gate)

    yield Ground(backend, tmp_path_factory.mktemp("scratch"), (base,), reopen, patience=3.0, gate=gate)
    await backend.close()
    await gate.close()
    assert docker("ps", "-aq").stdout == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become the account")
def test_an_engine_without_root() -> None:
    """The account runs this file again, and its engine is its own."""
    try:
        account = pwd.getpwnam(ACCOUNT)
    except KeyError:
        pytest.skip(f"there is no account {ACCOUNT} (.ci/setup long makes it)")
    place = Path(account.pw_dir) / f"t{os.getpid()}"
    reads = "+dac_read_search"  # this tree and the interpreter may be in directories of root's alone
    become = ["setpriv", "--reuid", str(account.pw_uid), "--regid", str(account.pw_gid), "--init-groups"]
    become += [f"--inh-caps=-all,{reads}", f"--ambient-caps=-all,{reads}"]
    try:
        place.mkdir()
        os.chown(place, account.pw_uid, account.pw_gid)
        tests = [
            sys.executable,
            "-B",
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "no:cacheprovider",
            f"--basetemp={place}/tests",
        ]
        done = subprocess.run(
            [*become, *tests, str(Path(__file__).relative_to(ROOT))],
            cwd=ROOT, capture_output=True, text=True, timeout=800,
            env={"PATH": os.environ["PATH"], "HOME": account.pw_dir, "TMPDIR": str(place)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " passed" in done.stdout, done.stdout[-2000:]
    finally:
        # Podman leaves a process that holds its namespaces. The account is this test's, and so are all its processes.
        subprocess.run([*become, "bash", "-c", "kill -KILL -1"], check=False)
        shutil.rmtree(place, ignore_errors=True)


async def test_the_probe_names_what_is_in_force(ground: Ground) -> None:
    probe = await ground.backend.probe()
    assert probe.ready, probe.facts
    assert probe.facts["engine"] == "podman"
    missing = {name for name, held in probe.protections.items() if held.level is Level.MISSING}
    expected = {*WITHOUT, "own_uid"}
    if os.geteuid() != 0:
        assert probe.protections["user_namespace"].level is Level.KERNEL
        expected.discard("user_namespace")
        if probe.facts["cgroup_version"] == "1":  # where the engine ignores limits, and says so itself
            expected |= LIMITED
    # On control groups of version 1 Podman gives no namespace of them.
    assert missing - {"cgroup_namespace"} == expected


async def test_limits_that_the_engine_ignores_are_refused(ground: Ground) -> None:
    missing = {
        name
        for name, held in (await ground.backend.probe()).protections.items()
        if name in LIMITED and held.level is Level.MISSING
    }
    if not missing:
        pytest.skip("all limits count here")
    with pytest.raises(ProtectionMissing, match="memory"):
        await ground.backend.create(SandboxSpec(allow_degraded=frozenset({*WITHOUT, "own_uid"})), "refused")
    assert await ground.backend.survey() == []


async def test_containers_that_somebody_ends_are_lost(ground: Ground, engine: tuple[Docker, OciSettings]) -> None:
    backend = ground.backend
    for words in (("kill",), ("rm", "-f")):
        handle, process = await _begun(backend, words[0])
        await asyncio.to_thread(engine[0], *words, handle)
        async with asyncio.timeout(START_S):
            assert (await process.wait()).outcome is Outcome.LOST
            await backend.destroy(handle)
    assert await backend.survey() == []
    assert engine[0]("ps", "-aq").stdout == ""


async def test_a_service_that_is_killed_and_started_again_loses_nothing(
    ground: Ground, engine: tuple[Docker, OciSettings]
) -> None:
    backend, docker = ground.backend, engine[0]
    handle, process = await _begun(backend, "away")
    waiting = asyncio.create_task(process.wait())
    docker.stop(signal.SIGKILL)
    with pytest.raises(SandboxFault, match="does not answer"):
        await backend.survey()
    docker.socket.unlink(missing_ok=True)
    await asyncio.to_thread(docker.start)
    async with asyncio.timeout(START_S):
        await process.send(b"went on\n")
        assert (await waiting).code == 0
        assert b"".join([data async for data in process.output(Stream.STDOUT)]) == b"begun\nwent on\n"
        assert [held.handle for held in await backend.survey()] == [handle]
        await backend.destroy(handle)
    assert docker("ps", "-aq").stdout == ""


async def _begun(backend: Backend, key: str) -> tuple[str, Process]:
    """A program that waits for a line, in a container of its own."""
    probe = await backend.probe()
    missing = frozenset(name for name, held in probe.protections.items() if held.level is Level.MISSING)
    sandbox = await backend.create(SandboxSpec(owner=Owner.TASK, allow_degraded=missing), key)
    process = await sandbox.start(Argv(("python3", "-I", "-c", WAITS), stdin=True), id="one")
    await anext(process.output(Stream.STDOUT))
    return sandbox.handle, process


@pytest.mark.parametrize("id", sorted(SHORT))
async def test_conformance(id: str, ground: Ground, hold: Hold) -> None:
    [promise] = [check for check in CHECKS if check.id == id]
    await hold(promise, ground)
