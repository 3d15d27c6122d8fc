"""An operator hears of a keeper or gate that died: by a log event, by a metric, by ``/readyz``; and that it is back."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from skillyard.ipc.peers import peer
from skillyard.sandbox.native.launch import _connect
from tests import waiting
from tests.crash.server import Server

BOUND_S = 60.0


def readiness(server: Server) -> tuple[int, dict[str, Any]]:
    answer = httpx2.get(f"{server.url}/readyz", timeout=10)
    return answer.status_code, answer.json()


def until(look: Callable[[], Any]) -> Any:
    """What ``look`` gives as soon as it gives something."""
    return waiting.until(look, BOUND_S)


def metric(server: Server, name: str, part: str) -> float:
    text = httpx2.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.token}"}, timeout=10).text
    (value,) = re.findall(rf'^{name}\{{part="{part}"\}} (\S+)$', text, re.MULTILINE)
    return float(value)


def events(server: Server, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def keeper(server: Server) -> int:
    sock = _connect(server.data_dir / "run")
    assert sock is not None
    with sock:
        return peer(sock)[0]


def test_a_keeper_that_dies_is_told_of_and_started_again(tmp_path: Path) -> None:
    """Somebody else takes its lock meanwhile, so that it cannot be started at once."""
    with Server(tmp_path / "data", SKILLYARD_POLICY__ISOLATION="native") as server:
        with server.client() as client:
            assert client.run_code("def main(args): return 1").output == {"result": 1}
        assert readiness(server)[0] == 200
        assert metric(server, "skillyard_faults_total", "keeper") == 0
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with open(server.data_dir / "run" / "keeper.lock", "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                held.set()
                release.wait(BOUND_S)

        thread = threading.Thread(target=hold)
        thread.start()
        os.kill(keeper(server), signal.SIGKILL)
        assert held.wait(BOUND_S)
        try:
            _, told = until(lambda: (seen := readiness(server))[0] == 503 and seen)
            assert told["status"] == "not ready"
            assert "ended" in told["dead"]["keeper"]
            assert httpx2.get(f"{server.url}/healthz", timeout=10).status_code == 200
        finally:
            release.set()
            thread.join()
        assert until(lambda: readiness(server)[0] == 200)
        assert "dead" not in readiness(server)[1]
        # One for each start while the lock was held, which this test does for as long as it is not answered 503.
        assert metric(server, "skillyard_faults_total", "keeper") >= 1, server.log()
        assert metric(server, "skillyard_part_restarts_total", "keeper") == 1
        (lost,), (back,) = events(server, "part lost"), events(server, "part restarted")
        assert (lost["level"], lost["part"]) == ("error", "keeper")
        assert back["part"] == "keeper"
        with server.client() as client:
            assert client.run_code("def main(args): return 2").output == {"result": 2}


def test_a_gate_that_dies_is_told_of_and_started_again(tmp_path: Path) -> None:
    rules = json.dumps(["api.example.com"])
    with Server(tmp_path / "data", SKILLYARD_NETWORK__RUN_CODE=rules, SKILLYARD_POLICY__ISOLATION="native") as server:
        with server.client() as client:
            assert client.run_code("def main(args): return 1").output == {"result": 1}
        os.kill(gate(server), signal.SIGKILL)
        _, told = until(lambda: (seen := readiness(server))[0] == 503 and seen)
        assert "its process ended" in told["dead"]["gate"]
        assert until(lambda: readiness(server)[0] == 200)
        assert metric(server, "skillyard_faults_total", "gate") == 1
        assert metric(server, "skillyard_part_restarts_total", "gate") == 1
        assert [event["part"] for event in events(server, "part lost")] == ["gate"]
        assert [event["part"] for event in events(server, "part restarted")] == ["gate"]


def gate(server: Server) -> int:
    """The process of the server's gate, whose command line names its directory."""
    wanted = (b"skillyard.gate.process", str(server.data_dir / "run" / "gate").encode())
    commands = {path.parent.name: _command(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
    (found,) = [pid for pid, command in commands.items() if all(word in command for word in wanted)]
    return int(found)


def _command(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
