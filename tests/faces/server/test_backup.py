"""``skillyard backup`` beside a server whose detached run goes on: in the restored directory that run is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.crash.server import Server
from tests.faces.server.test_parts import until

WAITS = "import time\ndef main(args):\n    time.sleep(250)\n"


def skillyard(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "skillyard", *words], capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_detached_run_in_a_backup_is_lost(tmp_path: Path) -> None:
    backup, keys = str(tmp_path / "backup.tar"), str(tmp_path / "keys")
    with Server(tmp_path / "data") as server, server.client() as client:
        kept = client.call("run_code", {"language": "python", "code": WAITS, "detach": True})
        until(lambda: client.call("runs.show", {"run_id": kept["run_id"]})["run"]["status"] == "running")
        skillyard("backup", backup, "--keys", keys, "--data-dir", str(server.data_dir))
        skillyard("restore", backup, "--keys", keys, "--data-dir", str(tmp_path / "again" / "data"))
        with Server(tmp_path / "again" / "data") as other:
            assert other.token == server.token
            with other.client() as heir:
                [run] = heir.list_runs()["runs"]
                assert (run["run_id"], run["status"], run["outcome"]) == (kept["run_id"], "failed", "lost")
                assert "backup" in run["reason"]
                assert heir.run_code("def main(args): return 1").output == {"result": 1}
        assert client.call("runs.show", {"run_id": kept["run_id"]})["run"]["status"] == "running"
        client.cancel_run(kept["run_id"])
