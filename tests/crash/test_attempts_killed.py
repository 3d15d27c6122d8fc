"""kill -9 of the keeper, and of the server with it: tasks that may be repeated begin anew, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.server import SMALL, Server
from tests.crash.store import contradictions

SKILL = "skills.protocol.guide"
WORK = "echo begun; echo aside >&2; exec sleep 600"


def _start(server: Server, **more: Any) -> str:
    with server.client() as client:
        return str(client.run_cmd_async(SKILL, WORK, timeout_sec=900, limits=SMALL, **more)["task_id"])


def _status(server: Server, task_id: str) -> dict[str, Any]:
    with server.client() as client:
        return client.task_status(task_id)


def _at_work(server: Server, task_id: str, attempt: int) -> bool:
    told = _status(server, task_id)
    return (told["attempt"], told["stdout_tail"], told["stderr_tail"]) == (attempt, "begun\n", "aside\n")


def _kinds(server: Server, task_id: str) -> list[str]:
    with server.client() as client:
        return [event["kind"] for event in client.run_events(task_id)["events"]]


@pytest.mark.timeout(300)
def test_each_attempt_is_started_once(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Server(data_dir) as first:
        again, once = [_start(first, max_attempts=3) for _ in range(5)], _start(first)
        for task_id in (*again, once):
            until(lambda task_id=task_id: _at_work(first, task_id, 1), 60, "it works")  # type: ignore[misc]
        footprint.kill_keeper()
        for task_id in again:
            until(lambda task_id=task_id: _at_work(first, task_id, 2), 60, "it works again")  # type: ignore[misc]
        lost = _status(first, once)
        assert (lost["status"], lost["reason"], lost["attempt"]) == ("failed", "lost", 1)
        footprint.look()
        first.kill()
        footprint.kill_keeper()
    with Server(data_dir) as second:
        for task_id in again:
            until(lambda task_id=task_id: _at_work(second, task_id, 3), 60, "it works once more")  # type: ignore[misc]
            told = _status(second, task_id)
            assert [(one["attempt"], one["reason"]) for one in told["attempts"]] == [(1, "lost"), (2, "lost")]
            kinds = _kinds(second, task_id)
            assert (kinds.count("running"), kinds.count("attempt")) == (3, 2), kinds
        footprint.kill_keeper()
        for task_id in again:
            with second.client() as client:
                told = client.task_watch(task_id, timeout_sec=50)
            assert (told["status"], told["reason"], told["attempt"]) == ("failed", "lost", 3)
        idle(footprint)
    gone(footprint)
    assert contradictions(data_dir) == []
