"""``skillyard drain`` before a server is stopped, and SIGUSR1."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from skillyard.client.errors import Busy
from tests.crash.server import Server
from tests.faces.server.test_parts import readiness, until

WAITS = "import os, time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(args['s'])\n    return 1\n"


def drain(server: Server, *words: str) -> tuple[int, dict[str, object]]:
    command = [sys.executable, "-m", "skillyard", "drain", *words, "--json", "--data-dir", str(server.data_dir)]
    done = subprocess.run(command, capture_output=True, timeout=100, check=False)
    return done.returncode, json.loads(done.stdout)


def test_drain(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, server.client() as client:
        outcomes: list[str] = []
        attached = threading.Thread(target=lambda: outcomes.append(client.run_code(WAITS, {"s": 250}).status))
        attached.start()
        [run] = until(lambda: [run for run in client.list_runs()["runs"] if run["status"] == "running"])
        kept = client.call("run_code", {"language": "python", "code": WAITS, "args": {"s": 250}, "detach": True})
        code, told = drain(server, "--wait", "0")
        assert (code, told["draining"], told["attached"]) == (5, True, 1)
        status, content = readiness(server)
        assert (status, content["status"]) == (503, "draining")
        with server.client() as another, pytest.raises(Busy):
            another.run_code(WAITS, {"s": 0})
        waited: list[tuple[int, dict[str, object]]] = []
        waiting = threading.Thread(target=lambda: waited.append(drain(server, "--wait", "80")))
        waiting.start()
        client.cancel_run(run["run_id"])
        waiting.join(100)
        assert waited == [(0, {"draining": True, "attached": 0, "detached": [kept["run_id"]]})]
        attached.join(30)
        assert outcomes == ["failed"]
        assert drain(server, "--undo")[1]["draining"] is False
        assert readiness(server)[0] == 200
        os.kill(server.pid, signal.SIGUSR1)
        until(lambda: readiness(server)[0] == 503)
        client.cancel_run(kept["run_id"])


def test_there_is_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "skillyard", "drain", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=100, check=False, text=True)
    assert done.returncode == 3
    assert "no server runs" in done.stderr
