"""kill -9 of the server with three jobs at work, at several points: each step works once, and the files are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.leftovers import Footprint, idle, until
from tests.crash.server import SMALL, Server
from tests.crash.store import contradictions

SKILL = "skills.protocol.guide"
JOBS, STEPS = 3, 4
STEP = "echo {number} >> /workspace/steps.txt; echo begun {number}; sleep 1; echo over {number}"


def _start(server: Server, number: int) -> str:
    """Each step notes itself in the session. The last but one makes a file, which the last one gets as an input."""
    steps: list[dict[str, Any]] = [{"command": STEP.format(number=step)} for step in range(STEPS)]
    steps[-1] |= {"name": "copy", "outputs": [{"path": "/workspace/steps.txt"}]}
    inputs = [{"artifact_id": "step:copy/steps.txt", "mount_path": "copy.txt"}]
    steps.append({"command": "cat copy.txt; cat /workspace/steps.txt", "inputs": inputs})
    with server.client() as client:
        return str(client.start_job(SKILL, f"work-{number}", steps, limits=SMALL, max_wall_time_sec=600)["job_id"])


def _status(server: Server, job_id: str) -> dict[str, Any]:
    with server.client() as client:
        return client.job_status(job_id)


def _at_step(index: int) -> Callable[[dict[str, Any]], bool]:
    def reached(job: dict[str, Any]) -> bool:
        return bool(job["current_step_index"] >= index)

    return reached


def _said(job: dict[str, Any]) -> bool:
    return "begun 0" in job["steps"][0]["stdout_tail"]


def _any(job: dict[str, Any]) -> bool:
    return bool(job["job_id"])


@pytest.mark.parametrize(
    "points", [(_any, _at_step(1), _at_step(2)), (_said, _at_step(3), _at_step(4))], ids=["early", "late"]
)
@pytest.mark.timeout(300)
def test_three_jobs_go_on(tmp_path: Path, points: tuple[Callable[[dict[str, Any]], bool], ...]) -> None:
    data_dir = tmp_path / "data"
    footprint, jobs = Footprint(data_dir), list[str]()
    for number, reached in enumerate(points):
        with Server(data_dir) as server:
            jobs = jobs or [_start(server, each) for each in range(JOBS)]
            watched = jobs[number % JOBS]
            until(lambda: reached(_status(server, watched)), 60, "the job is so far")  # noqa: B023 - called here
            footprint.look()
            server.kill()
    with Server(data_dir) as last:
        for number, job_id in enumerate(jobs):
            _check(last, job_id)
            with last.client() as client:
                client.end_session(f"work-{number}")
        idle(footprint)
    assert contradictions(data_dir) == []


def _check(server: Server, job_id: str) -> None:
    with server.client() as client:
        ended = client.job_watch(job_id, timeout_sec=50)
        tasks = [step["task_id"] for step in ended["steps"]]
        kinds = [[event["kind"] for event in client.run_events(task)["events"]] for task in tasks]
    assert (ended["status"], ended["reason"]) == ("succeeded", ""), ended
    assert [step["status"] for step in ended["steps"]] == ["succeeded"] * (STEPS + 1)
    each = "".join(f"{number}\n" for number in range(STEPS))
    assert ended["steps"][-1]["stdout_tail"] == each * 2, "a step worked twice, or not at all"
    said = [step["stdout_tail"] for step in ended["steps"][:-1]]
    assert said == [f"begun {number}\nover {number}\n" for number in range(STEPS)]
    # A server may die between the word that a step runs and its start, which the next one does.
    assert all(1 <= kind.count("running") <= 1 + kind.count("resumed") for kind in kinds), kinds
