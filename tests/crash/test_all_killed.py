"""kill -9 with tasks, services, jobs and sessions at work: all goes on, once, with its networks and secrets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.crash.at_work import LIMITS, Job, Service, Task
from tests.crash.ledger import strange_files
from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.server import Server
from tests.crash.store import contradictions
from tests.crash.witness import SKILL, Witness, leaks

TASKS, SERVICES, JOBS = 20, 5, 3
SESSIONS = ("works", "works-too", "calls", "idle")
SETTINGS = {"SKILLYARD_NETWORK__RUN_CODE": "mounted", "SKILLYARD_POLICY__RUN_CODE_SECRETS": "mounted"}
CASES = [("server", 1), pytest.param("server", 5, marks=pytest.mark.long)]


@pytest.mark.parametrize(("victim", "kills"), [*CASES, pytest.param("server and gate", 3, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
def test_all_that_was_at_work_goes_on(tmp_path: Path, victim: str, kills: int) -> None:
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Witness(tmp_path) as witness:
        witness.env |= SETTINGS
        sizes = [60_000, *[300] * (TASKS - 1)]
        tasks = [Task(witness, f"task{each}", code=each % 3, size=size) for each, size in enumerate(sizes)]
        kept = [Task(witness, alias) for alias in SESSIONS[:2]]
        services = [Service(witness, f"service{number}") for number in range(SERVICES)]
        jobs = [Job(witness, f"job{number}") for number in range(JOBS)]
        held = {task.seed for task in (*tasks, *kept)} | {f"{job.seed}-1" for job in jobs}
        with witness.server(data_dir) as first, ThreadPoolExecutor(1) as pool:
            work: list[Service | Task | Job] = [*services, *tasks, *jobs]
            for each in work:
                each.start(first)
            before = _fill_sessions(first, kept)
            until(lambda: witness.held >= held, 120, "all are at work")
            for service in services:
                service.answers(first)
            call = pool.submit(_call, first)
            lost = _at_work(first)
            _kill(first, victim, footprint)
            assert call.exception(60) is not None, "its server is gone"
        for _ in range(kills - 1):
            with witness.server(data_dir) as next_one:
                for service in services:
                    service.answers(next_one)
                _kill(next_one, victim, footprint)
        witness.free.set()
        with witness.server(data_dir) as last:
            for service in services:
                service.answers(last)
            for task in (*tasks, *kept):
                task.check(last, kills)
            for job in jobs:
                job.check(last)
            _check_sessions(last, before, lost)
            for service in services:
                service.answers(last)
                service.end(last)
            idle(footprint, 30)
            assert last.stop() == 0, last.log()
        assert witness.wrong() == []
        seeds = {task.seed for task in (*tasks, *kept)} | {service.seed for service in services}
        assert {seed: len(witness.starts[seed]) for seed in seeds} == dict.fromkeys(seeds, 1)
    gone(footprint, 30)
    assert contradictions(data_dir) == []
    assert leaks(data_dir) == []
    assert strange_files(data_dir) == []


def _kill(server: Server, victim: str, footprint: Footprint) -> None:
    footprint.look()
    server.kill()
    if "gate" in victim:
        assert footprint.kill_gates(), "there is a gate"


def _fill_sessions(server: Server, kept: list[Task]) -> dict[str, Any]:
    """A file in each, and a task in the first two."""
    with server.client() as client:
        for alias in SESSIONS:
            made = client.run_cmd(SKILL, f"echo {alias} > ../kept.txt", session_id=alias, limits=LIMITS)
            assert made["status"] == "succeeded", made
        before = {row["session_id"]: row["created_at"] for row in client.sessions()["sessions"]}
    for alias, task in zip(SESSIONS, kept, strict=False):
        task.start(server, alias)
    return {alias: before[alias] for alias in SESSIONS}


def _call(server: Server) -> None:
    """A call that waits for its command, which leaves more than files."""
    with server.client() as client:
        work = "touch ../begun /tmp/left; (setsid sleep 1000 &); sleep 1000"
        client.run_cmd(SKILL, work, session_id="calls", limits=LIMITS, timeout_sec=100)


def _at_work(server: Server) -> str:
    """Returns the run of that call."""

    def run_id() -> str | None:
        with server.client() as client:
            rows = {row["session_id"]: row for row in client.sessions()["sessions"]}
        return rows["calls"]["run_id"] or None

    until(run_id, 60, "the call has its session")
    found = run_id()
    assert found is not None
    return found


def _check_sessions(server: Server, before: dict[str, Any], lost: str) -> None:
    with server.client() as client:
        run = client.call("runs.show", {"run_id": lost})["run"]
        assert (run["status"], run["outcome"]) == ("failed", "lost"), run
        after = {row["session_id"]: row["created_at"] for row in client.sessions()["sessions"]}
        assert {alias: after.get(alias) for alias in SESSIONS} == before
        for alias in SESSIONS:
            look = "cat ../kept.txt; ls -A /tmp | grep -v '^trust$'; ls /proc | grep -c '^[0-9]'"
            told = client.run_cmd(SKILL, look, session_id=alias, limits=LIMITS, wait_ms=60_000)
            name, *rest = told["stdout"].splitlines()
            assert (name, len(rest)) == (alias, 1), told
            client.end_session(alias)
