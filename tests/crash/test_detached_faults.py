"""Detached runs while their host misbehaves: a database that is locked, a clock that is set, a disk that is full."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from skillyard.client.errors import RpcError
from tests.crash import full_disk, full_store
from tests.crash.detached import begun_mark, check, ended, start, steps_of
from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.programs import BRIEF
from tests.crash.server import SMALL, Server, log_of
from tests.crash.store import contradictions

KNOCK_OUT = Path(__file__).parents[1] / "hosts" / "knock_out.py"
BOUND_S = 120.0
DAY_S = 86400
DAY_MS = 1000 * DAY_S
SET_CLOCK = """
import os, pathlib, time

real, ahead = time.time, pathlib.Path(os.environ["TEST_CLOCK_AHEAD"])
time.time = lambda: real() + float(ahead.read_text())
"""
"""A ``sitecustomize`` by which a server reads another wall clock. CLOCK_BOOTTIME and CLOCK_MONOTONIC are the kernel's,
and nobody can set them; neither can an ordinary user set the wall clock of the host."""


@pytest.mark.timeout(300)
def test_runs_end_while_the_database_is_locked(tmp_path: Path) -> None:
    """Another process holds it for longer than a server waits. No end is lost, and nothing is said that is not so."""
    data_dir, footprint = tmp_path / "data", Footprint(tmp_path / "data")
    wanted = [{**steps_of(number), "steps": 10} for number in range(4)]
    with Server(data_dir, SKILLYARD_SWEEP_EVERY_S="1") as server:
        runs = [start(server, args) for args in wanted]
        marks = [begun_mark(server, run_id) for run_id in runs]
        waiting = Waiting(server, set(runs))
        until(waiting.begun, 20, "the run that is waited for works")
        with closing(sqlite3.connect(data_dir / "skillyard.db", timeout=30, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            until(lambda: "is locked by another process" in log_of(data_dir).read_text(), 100, "the server gives up")
            assert server.alive
            other.execute("ROLLBACK")
        for run_id, mark, args in zip(runs, marks, wanted, strict=True):
            check(server, run_id, mark, args)
        waiting.check()
        until(lambda: not contradictions(data_dir), 30, f"all records end: {contradictions(data_dir)}")
        idle(footprint)
        assert server.stop() == 0, server.log()
    gone(footprint)


class Waiting:
    """A caller who waits for a run, which ends while the database is locked."""

    def __init__(self, server: Server, others: set[str]) -> None:
        self._server = server
        self._others = others
        self._told: dict[str, Any] | RpcError | None = None
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def begun(self) -> bool:
        return [record["status"] for record in self._records()] == ["running"]

    def _records(self) -> list[dict[str, Any]]:
        with self._server.client() as client:
            found = client.call("runs.list", {"limit": 50})["runs"]
        return [record for record in found if record["run_id"] not in self._others]

    def _wait(self) -> None:
        params = {"language": "python", "code": BRIEF, "args": {"n": 7, "seconds": 2}, "limits": SMALL}
        with self._server.client() as client:
            try:
                self._told = client.call("run_code", params)
            except RpcError as error:
                self._told = error

    def check(self) -> None:
        """It was told how the run ended, or why nobody knows. The record says the same."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        [record] = self._records()
        if isinstance(self._told, RpcError):
            assert "locked by another process" in str(self._told)
            assert (record["status"], record["outcome"]) == ("failed", "lost"), record
            assert "could not be recorded" in record["error"]["message"]
        else:
            assert self._told is not None
            assert (self._told["status"], self._told["output"]) == ("completed", {"n": 7})
            assert record["output"] == {"n": 7}


@pytest.mark.parametrize("ahead_s", [2 * DAY_S, -2 * DAY_S], ids=["forward", "back"])
@pytest.mark.parametrize("steps", [20, pytest.param(400, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_a_wall_clock_that_is_set_ends_no_run_and_prolongs_none(tmp_path: Path, ahead_s: int, steps: int) -> None:
    """Set while the first server works, and back again before the second starts. The long form passes the time that a
    server gives a backend beyond the deadline."""
    data_dir, clock = tmp_path / "data", tmp_path / "clock"
    footprint = Footprint(data_dir)
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(SET_CLOCK)
    ahead = clock / "ahead"
    ahead.write_text("0")
    env = {"PYTHONPATH": str(clock), "TEST_CLOCK_AHEAD": str(ahead), "SKILLYARD_SWEEP_EVERY_S": "0.2"}
    args, endless = {**steps_of(1), "steps": steps, "pause": 0.3}, {**steps_of(2), "pause": 600}
    timeout_ms = 9_000
    with Server(data_dir, ready=0, **env) as first, first.client() as client:
        run_id, timed = start(first, args), start(first, endless, timeout_ms=timeout_ms)
        mark = begun_mark(first, run_id)
        begun_mark(first, timed)
        ahead.write_text(str(ahead_s))
        beside = client.run_code(BRIEF, {"n": 3, "seconds": 1}, limits=SMALL)
        assert beside.output == {"n": 3}
        assert abs(beside["usage"]["wall_ms"] - 1000) < DAY_MS
        assert client.call("runs.show", {"run_id": timed})["run"]["status"] == "running"
        first.kill()
    ahead.write_text("0")
    with Server(data_dir, ready=0, **env) as second, second.client() as client:
        late = ended(second, timed)
        assert (late["outcome"], late["limits"]["timeout_ms"]) == ("timeout", timeout_ms)
        assert timeout_ms <= late["usage"]["wall_ms"] < 2 * timeout_ms
        check(second, run_id, mark, args)
        usage = client.call("runs.show", {"run_id": run_id})["run"]["usage"]
        assert all(0 <= usage[name] < DAY_MS for name in ("wall_ms", "startup_ms", "queued_ms")), usage
        idle(footprint)
        assert second.stop() == 0, second.log()
    gone(footprint)
    assert contradictions(data_dir) == []


@pytest.mark.timeout(300)
def test_the_disk_is_full_while_a_log_is_written(tmp_path: Path) -> None:
    """A server and its runs in a small file system, see :mod:`tests.crash.full_disk`."""
    disk = tmp_path / "disk"
    assert _in_small_disk(full_disk.__name__, disk, disk, "24m") == {"left": []}


@pytest.mark.timeout(300)
def test_the_store_is_full_while_output_of_tasks_is_taken(tmp_path: Path) -> None:
    """The blobs of a server are in a small file system, see :mod:`tests.crash.full_store`."""
    with Server(data_dir := tmp_path / "data"):
        pass  # makes the directory
    told = _in_small_disk(full_store.__name__, data_dir, data_dir / "blobs", "12m")
    assert told["kept"] > 1024 * 1024


def _in_small_disk(module: str, directory: Path, disk: Path, size: str) -> Any:
    """Runs a module on a directory, in which ``disk`` is a file system of that size; returns what it prints."""
    disk.mkdir(mode=0o700, exist_ok=True)
    knock = [sys.executable, str(KNOCK_OUT), f"small_disk:{disk}={size}", "--"]
    tried = subprocess.run([*knock, "true"], capture_output=True, text=True, timeout=BOUND_S)
    if tried.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {tried.stderr.strip().rpartition(chr(10))[2]}")
    command = [*knock, sys.executable, "-m", module, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
