"""A disk, descriptors or a program that are not there when they are needed: named, and nothing corrupt or stuck."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from skillyard import SyncRuntime
from skillyard.domain.errors import ProtectionMissing
from tests.hosts.conftest import BOUND_S, KNOCK_OUT, Host
from tests.hosts.serving import serving

CODE = "def main(args): return {'more': args['n'] + 1}\n"

FILLS_ITS_DISK = """
import json, os, sqlite3, sys
from pathlib import Path
from skillyard import SyncRuntime
from skillyard.domain.errors import StoreFault
from skillyard.testing.twin_sandbox import TwinBackend
from tests.unit.engine.fakes import succeed

place, ballast, said = Path(sys.argv[1]) / "data", Path(sys.argv[1]) / "ballast", {}
CODE = "def main(args): return {}"

def refused(work):
    try:
        work()
    except StoreFault as fault:
        return fault.message
    return None

with SyncRuntime(place, backend=TwinBackend(succeed)) as runtime:
    kept = runtime.put_blob(b"k" * 100_000).blob_id
    said["too big"] = refused(lambda: runtime.put_blob(b"x" * 16_000_000))
    with open(ballast, "wb", buffering=0) as file:
        try:
            while file.write(b"b" * 4096):
                pass
        except OSError:
            pass
    said["blob"] = refused(lambda: runtime.put_blob(os.urandom(50_000)))
    said["runs"] = next((m for m in (refused(lambda: runtime.run_code(CODE)) for _ in range(2000)) if m), None)
    said["kept"] = b"".join(runtime.stream_blob(kept)) == b"k" * 100_000
    ballast.unlink()
    said["again"] = runtime.run_code(CODE).status in ("completed", "failed")
    said["whole again"] = runtime.put_blob(b"n" * 50_000).size_bytes
    said["left in tmp"] = os.listdir(place / "blobs" / "tmp")
said["integrity"] = sqlite3.connect(place / "skillyard.db").execute("PRAGMA integrity_check").fetchone()[0]
with SyncRuntime(place, backend=TwinBackend(succeed)) as runtime:
    said["statuses"] = sorted({run["status"] for run in runtime.list_runs(limit=500)["runs"]})
print(json.dumps(said))
"""


def test_a_full_disk_is_named_and_nothing_is_corrupt(tmp_path: Path, may: Callable[[str], None]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    knock = f"small_disk:{disk}=4m"
    may(knock)
    command = [sys.executable, str(KNOCK_OUT), knock, "--", sys.executable, "-c", FILLS_ITS_DISK, str(disk)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, cwd=root)
    assert done.stdout, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["too big"] == said["blob"] == "the blob store's disk is full; free some space"
    assert "no room left on its disk; free some space" in said["runs"]
    assert said["kept"]
    assert said["again"]
    assert said["whole again"] == 50_000
    assert said["left in tmp"] == []
    assert said["integrity"] == "ok"
    assert set(said["statuses"]) <= {"completed", "failed"}


def test_a_server_without_a_free_descriptor_comes_back(host: Host, sound: dict[str, Any]) -> None:
    limit = 512  # this process holds as many ends, and may have no more than 1,024 itself
    with serving(host, f"few_descriptors:{limit}") as server, httpx2.Client(trust_env=False, timeout=20) as http:
        with ExitStack() as held:
            for _ in range(limit):
                held.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=20)))
        assert http.get(f"{server.url}/readyz").status_code == 200
        done = host.execute(CODE, "--args", '{"n": 1}', "--json")
        assert json.loads(done.stdout)["output"] == {"more": 2}


def test_an_interpreter_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_base_executable", str(tmp_path / "python3"))
    with (
        SyncRuntime(tmp_path / "data") as runtime,
        pytest.raises(ProtectionMissing, match=r"the keeper cannot start: .*python3: No such file"),
    ):
        runtime.run_code(CODE, {"n": 1})


def test_a_socket_that_a_dead_keeper_left_is_no_obstacle(host: Host, sound: dict[str, Any]) -> None:
    run_dir = host.data_dir / "run"
    assert host.execute(CODE, "--args", '{"n": 1}').returncode == 0
    (run_dir / "keeper.sock").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        here = os.open(run_dir, os.O_PATH)
        left.bind(f"/proc/self/fd/{here}/keeper.sock")
        os.close(here)
    (run_dir / "keeper.lock").write_text("")
    assert host.execute(CODE, "--args", '{"n": 1}').returncode == 0


def test_a_file_where_the_keeper_works_is_named(host: Host) -> None:
    assert host.run("runs", "list").returncode == 0
    run_dir = host.data_dir / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.touch()
    done = host.execute(CODE, "--args", '{"n": 1}')
    assert done.returncode in (2, 4)
    assert f"{run_dir}" in done.stderr
    assert "File exists" in done.stderr or "Not a directory" in done.stderr


def test_the_store_is_whole_when_the_server_was_refused(host: Host, sound: dict[str, Any]) -> None:
    """A refusal after the store was opened leaves it as a clean stop does."""
    done = host.run("serve", "--port", "0", knocks=("refuse:unshare",))
    assert done.returncode == 4
    assert not (host.data_dir / "skillyard.db-wal").exists()
    with closing(sqlite3.connect(host.data_dir / "skillyard.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not (host.data_dir / "server.json").exists()
