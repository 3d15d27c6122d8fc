"""A server that finds a keeper of another version, also one of an earlier commit."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skillyard.client.errors import ClientError
from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.spec import Owner, SandboxSpec
from skillyard.sandbox.native import launch
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.keeper.main import PROTOCOL
from tests.crash.server import Server

ROOT = Path(__file__).parents[2]
EARLIER = "6e47739"
WAITS = "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(200)\n"


class Older(NativeBackend):
    """Its keeper says that it is of the version before."""

    program = (
        "skillyard.sandbox.native.keeper import main as m; m.PROTOCOL -= 1; "
        "from skillyard.sandbox.native.grounds.namespaces.ground"
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path / "run"


def test_server_and_keeper_are_of_one_version() -> None:
    assert launch.PROTOCOL == PROTOCOL


@pytest.mark.anyio
async def test_an_older_keeper_is_replaced(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(launch, "PROTOCOL", PROTOCOL - 1)
        before = Older(run_dir)
        await before.stats()
    backend = NativeBackend(run_dir)
    backend.attend(told.append, told.append)
    assert before._link is not None
    before._link.close()
    try:
        assert (await backend.facts())["protocol"] == PROTOCOL
    finally:
        await backend.close()
    [line] = told
    assert f"version {PROTOCOL - 1}" in line


@pytest.mark.anyio
async def test_an_older_keeper_with_work_is_left_to_its_server(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(launch, "PROTOCOL", PROTOCOL - 1)
        before = Older(run_dir)
        handle = (await before.create(SandboxSpec(owner=Owner.TASK), "kept")).handle
        assert before._link is not None
        before._link.close()
        with monkeypatch.context() as later:
            later.setattr(launch, "PROTOCOL", PROTOCOL)
            with pytest.raises(SandboxFault, match="detached runs"):
                await NativeBackend(run_dir).survey()
        after = Older(run_dir)
        assert [held.handle for held in await after.survey()] == [handle]
        await after.destroy(handle)
        await after.close()


@pytest.mark.anyio
async def test_a_newer_keeper_is_refused(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = NativeBackend(run_dir)
    try:
        await newer.stats()
        assert newer._link is not None
        newer._link.close()
        with monkeypatch.context() as patched:
            patched.setattr(launch, "PROTOCOL", PROTOCOL - 1)
            with pytest.raises(SandboxFault, match="newer skillyard"):
                await NativeBackend(run_dir).facts()
        await newer.stats()
    finally:
        await newer.close()


@contextmanager
def earlier() -> Iterator[Path]:
    """The source of the earlier commit, where the user of a sandbox can read it."""
    command = ["git", "-C", str(ROOT), "archive", EARLIER, "src"]
    try:
        packed = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"the history with commit {EARLIER} is not here")
    with tempfile.TemporaryDirectory(prefix="skillyard-earlier-") as home:
        Path(home).chmod(0o755)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(home)
        yield Path(home) / "src"


def test_a_server_takes_over_from_the_commit_before(tmp_path: Path) -> None:
    """That server is killed while a run works: its record is settled, and new runs work at once."""
    tmp_path.chmod(0o755)
    data = tmp_path / "data"
    with earlier() as source:
        old = Server(data, PYTHONPATH=str(source))
        try:
            with old.client() as client:
                done = client.run_code("def main(args): return 1")
                working = threading.Thread(target=ended_with_its_server, args=(old,))
                working.start()
                while not (live := [run for run in client.list_runs()["runs"] if run["status"] == "running"]):
                    pass
        finally:
            old.kill()
        working.join(60)
        with Server(data) as server, server.client() as client:
            assert client.run_code("def main(args): return 2").output == {"result": 2}
            records = {run["run_id"]: run for run in client.list_runs()["runs"]}
            assert records[done.run_id]["outcome"] == "exit"
            assert records[live[0]["run_id"]]["outcome"] == "lost"


def ended_with_its_server(server: Server) -> None:
    with server.client() as client, pytest.raises(ClientError):
        client.run_code(WAITS)
