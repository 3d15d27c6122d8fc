"""kill -9 of servers, keepers and sandboxes behind the other walls of a keeper: gVisor's kernel, and Landlock."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skillyard.ipc.peers import peer
from skillyard.sandbox.native.keeper.watch.processes import below, read, tree_of
from skillyard.sandbox.native.keepers import homes
from tests.conformance.sandbox import gvisor_ground
from tests.crash import two_tasks
from tests.crash.leftovers import Footprint, gone, until
from tests.crash.server import SMALL, Server
from tests.crash.store import contradictions
from tests.crash.two_tasks import SKILL

pytestmark = [pytest.mark.timeout(300)]
RUNSC = gvisor_ground.OPTIONS.runsc


class Yard:
    """A data directory whose sandboxes have one isolation."""

    def __init__(self, data_dir: Path, isolation: str) -> None:
        self.data_dir = data_dir
        self._run_dir = data_dir / "run" / isolation
        self._isolation = isolation
        self._footprint = Footprint(data_dir)
        self._seen: set[tuple[int, str]] = set()
        self._noted: set[Path] = set()
        """Control groups, and the directory outside of ours that Landlock opens."""

    def serve(self) -> Server:
        return Server(self.data_dir, SKILLYARD_POLICY__ISOLATION=self._isolation, SKILLYARD_GVISOR__RUNSC=RUNSC)

    def keeper(self) -> int:
        """Returns the process of its keeper."""
        [home] = homes(self._run_dir)
        with socket.socket(socket.AF_UNIX) as sock:
            directory = os.open(home, os.O_PATH | os.O_DIRECTORY)
            try:
                sock.connect(f"/proc/self/fd/{directory}/keeper.sock")
            finally:
                os.close(directory)
            return peer(sock)[0]

    def look(self) -> None:
        """Remembers what its keeper has on this host now."""
        found = {(pid, started(pid)) for pid in tree_of(self.keeper())}
        assert len(found) > 2, "there are a keeper, a sandbox and a program"
        self._seen |= found
        for note in ("groups", "area"):
            with suppress(FileNotFoundError):
                self._noted |= {Path(line) for line in (self._run_dir / note).read_text().splitlines()}
        assert self._noted or os.geteuid() != 0

    def gone(self) -> None:
        """Waits until nothing is left, neither of the data directory nor of what was seen."""
        gone(self._footprint, 30)
        until(lambda: not [pid for pid, then in self._seen if then and started(pid) == then], 30, "all have ended")
        until(lambda: not [path for path in self._noted if path.exists()], 30, "its groups and its area are gone")
        assert contradictions(self.data_dir) == []


@pytest.fixture(params=["landlock", "gvisor"])
def yard(tmp_path: Path, request: pytest.FixtureRequest) -> Yard:
    if request.param == "gvisor" and (why := gvisor_ground.absent()):
        pytest.skip(why)
    return Yard(tmp_path / "data", request.param)


def test_tasks_and_sessions_go_on_in_the_next_server(yard: Yard) -> None:
    with yard.serve() as first:
        with first.client() as client:
            tasks = two_tasks.started(client)
        keeper = yard.keeper()
        first.kill()
    with yard.serve() as second, second.client() as client:
        two_tasks.ended_well(client, *tasks)
        assert yard.keeper() == keeper
        client.end_session("a")
        assert second.stop() == 0, second.log()
    yard.gone()


def test_a_run_of_a_killed_server_is_lost_and_ended(yard: Yard) -> None:
    with yard.serve() as first, ThreadPoolExecutor(1) as pool:
        call = pool.submit(_ran, first)
        with first.client() as client:
            until(lambda: client.list_runs(status="running")["runs"] != [], 60, "it runs")
        yard.look()
        first.kill()
        assert call.exception(60) is not None
    with yard.serve() as second, second.client() as client:
        [row] = client.list_runs()["runs"]
        assert row["outcome"] == "lost", row
        assert client.run_cmd(SKILL, "echo works", limits=SMALL)["stdout"] == "works\n"
        assert second.stop() == 0, second.log()
    yard.gone()


@pytest.mark.parametrize("victim", ["keeper", "all that it has started"])
def test_what_is_killed_by_somebody_is_said_to_be_lost(yard: Yard, victim: str) -> None:
    with yard.serve() as server, server.client() as client:
        client.run_cmd(SKILL, "echo kept > ../kept.txt", session_id="a", limits=SMALL)
        tasks = [
            client.run_cmd_async(SKILL, "echo begun; sleep 1000", session_id=session, limits=SMALL)
            for session in ("a", None)
        ]
        for task in tasks:
            until(partial(_has_begun, client, task), 60, "it works")
        yard.look()
        keeper = yard.keeper()
        for pid in [keeper] if victim == "keeper" else below(keeper):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for task in tasks:
            ended = client.task_watch(task["task_id"], timeout_sec=60)
            assert (ended["status"], ended["reason"]) == ("failed", "lost"), ended
        told = client.run_cmd(SKILL, "ls ..", session_id="a", limits=SMALL, wait_ms=60_000)
        assert told["status"] == "succeeded", told
        assert "kept.txt" not in told["stdout"], "it is another sandbox, and the answer does not claim the old files"
        assert (yard.keeper() == keeper) == (victim != "keeper")
        client.end_session("a")
        assert server.stop() == 0, server.log()
    yard.gone()


def started(pid: int) -> str:
    """Returns when a process that has not ended began, in ticks after the boot; nothing for another."""
    state, *fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split() or ["Z"]
    return "" if state == "Z" else fields[18]


def _ran(server: Server) -> None:
    with server.client() as client:
        client.run_cmd(SKILL, "sleep 1000", limits=SMALL)


def _has_begun(client: Any, task: dict[str, Any]) -> bool:
    return "begun" in client.task_status(task_id=task["task_id"])["stdout_tail"]
