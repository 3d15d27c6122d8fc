"""An engine on another machine: its socket as ssh forwards it, with this machine's files there and without."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skillyard.config.backends import OciSettings
from skillyard.domain.sandbox.spec import Argv, Stream
from skillyard.sandbox.oci.backend import OciBackend
from skillyard.testing.sandbox_suite import CHECKS, Ground
from tests import waiting
from tests.conformance.sandbox import oci_ground
from tests.conformance.sandbox.conftest import Hold

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket.*sock:ResourceWarning"),
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("socat") is None, reason="socat is not installed"),
]
BOUND_S = 60.0
PARTS = ("endings-kill_ends_the_whole_tree", "guest-skills_and_blobs_are_read", "trees-tree_goes_in_and_comes_out")


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


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in whose place the engine has another one."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory, hidden: Path) -> Iterator[OciSettings]:
    with (
        oci_ground.engine(tmp_path_factory.mktemp("engine"), hidden=hidden) as (docker, settings),
        tempfile.TemporaryDirectory() as place,
        forwarded(settings.socket, Path(place)) as socket,
    ):
        yield settings.changed(socket=socket)
        assert docker("ps", "-aq").stdout == ""


async def test_one_that_sees_our_files_is_as_any_other(remote: OciSettings, hold: Hold, tmp_path: Path) -> None:
    backend = OciBackend(tmp_path / "oci", remote)
    ground = Ground(backend, tmp_path)
    probe = await backend.probe()
    assert probe.ready, probe.facts
    for check in CHECKS:
        if check.id in PARTS:
            await hold(check, ground)
    async with ground.sandbox() as sandbox:
        process = await sandbox.start(Argv(("sh", "-c", "echo out; exit 3")), id="one")
        assert b"".join([data async for data in process.output(Stream.STDOUT)]) == b"out\n"
        assert (await process.wait()).code == 3
    await backend.close()


async def test_one_that_does_not_see_them_is_refused_by_name(remote: OciSettings, hidden: Path) -> None:
    backend = OciBackend(hidden / "oci", remote)
    probe = await backend.probe()
    await backend.close()
    assert not probe.ready
    assert any(str(hidden) in each.why and "at the same path" in each.mend for each in probe.protections.values()), (
        probe
    )
