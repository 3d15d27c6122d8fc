"""kill -9 of the server with sessions: they go on in the next one; what their keeper had is lost, and said to be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.server import SMALL, Server

pytestmark = [pytest.mark.ordinary, pytest.mark.timeout(300)]
SKILL = "skills.protocol.guide"
ALIASES = ("a", "b", "c", "d")
WORKS = "echo works > /tmp/works; (setsid sleep 1000 &) ; echo begun > ../begun; sleep 1000"


def test_sessions_go_on_in_the_next_server(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Server(data_dir) as first:
        with first.client() as client:
            for alias in ALIASES:
                made = client.run_cmd(SKILL, f"echo {alias} > ../kept.txt", session_id=alias, limits=SMALL)
                assert made["status"] == "succeeded", made
            task = client.run_cmd_async(SKILL, "sleep 2; cat ../kept.txt", session_id="a", limits=SMALL)
            lost = client.run_cmd_async(SKILL, WORKS, session_id="b", limits=SMALL)
            before = {row["session_id"]: row for row in client.sessions()["sessions"]}
        footprint.look()
        first.kill()
    with Server(data_dir) as second, second.client() as client:
        after = {row["session_id"]: row for row in client.sessions()["sessions"]}
        assert {alias: row["created_at"] for alias, row in after.items()} == {
            alias: row["created_at"] for alias, row in before.items()
        }
        ended = client.task_watch(task["task_id"], timeout_sec=60)
        assert (ended["status"], ended["stdout_tail"]) == ("succeeded", "a\n"), ended
        client.task_cancel(lost["task_id"])
        for alias in ALIASES:
            text = "cat ../kept.txt; ls /tmp; ls /proc | grep -c '^[0-9]'"
            told = client.run_cmd(SKILL, text, session_id=alias, limits=SMALL, wait_ms=60_000)
            kept, *rest = told["stdout"].split()
            assert (kept, len(rest)) == (alias, 1), told
            client.end_session(alias)
        idle(footprint)
    gone(footprint)


def test_a_call_whose_server_was_killed_leaves_only_files(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Server(data_dir) as first, ThreadPoolExecutor(1) as pool:
        with first.client() as client:
            client.run_cmd(SKILL, "true", session_id="a", limits=SMALL)
        calls = first.client()
        call = pool.submit(calls.run_cmd, SKILL, WORKS, session_id="a", limits=SMALL, timeout_sec=100)
        with first.client() as client:
            until(lambda: client.sessions()["sessions"][0]["run_id"] is not None, 60, "the call has the session")
        footprint.look()
        first.kill()
        assert call.exception(60) is not None
    with Server(data_dir) as second, second.client() as client:
        told = client.run_cmd(SKILL, "ls .. /tmp", session_id="a", limits=SMALL, wait_ms=60_000)
        assert told["status"] == "succeeded", told
        [row] = client.sessions(ended=True)["sessions"]
        assert (row["state"], row["run_id"]) == ("ready", None)
        client.end_session("a")
        idle(footprint)
    gone(footprint)


def test_a_killed_keeper_ends_its_sessions_as_lost(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Server(data_dir) as server, server.client() as client:
        client.run_cmd(SKILL, "echo kept > ../kept.txt", session_id="a", limits=SMALL)
        footprint.kill_keeper()
        until(lambda: client.run_cmd(SKILL, "ls ..", session_id="a")["status"] == "succeeded", 60, "it goes on")
        new, old = client.sessions(ended=True)["sessions"]
        assert (old["state"], old["ended_by"], new["state"]) == ("ended", "lost", "ready")
        client.end_session("a")


def test_names_of_cells_outlive_their_server(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Server(data_dir) as first, ThreadPoolExecutor(1) as pool:
        with first.client() as client:
            for alias in ("a", "b"):
                made = client.run_code(f"import time\nname = {alias!r}", session_id=alias, limits=SMALL)
                assert made["interpreter"]["state"] == "started", dict(made)
        calls = first.client()
        call = pool.submit(calls.run_code, "while True: time.sleep(0.01)", session_id="b", limits=SMALL)
        with first.client() as client:
            until(lambda: any(row["run_id"] for row in client.sessions()["sessions"]), 60, "the cell is at work")
        footprint.look()
        first.kill()
        assert call.exception(60) is not None
    with Server(data_dir) as second, second.client() as client:
        for alias in ("a", "b"):
            told = client.run_code("name", session_id=alias, limits=SMALL, wait_ms=60_000)
            assert (told.output, told["interpreter"]["state"]) == ({"result": alias}, "kept"), dict(told)
            client.end_session(alias)
        idle(footprint)
    gone(footprint)
