"""``skillyard job`` against a scripted server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

from tests.unit.client.yardserver import TOKEN, YardServer

Cli = Callable[..., Result]
STEP: dict[str, Any] = {
    "name": "first", "status": "succeeded", "task_id": "run_1", "exit_code": 0, "stdout_tail": "end\n",
    "stderr_tail": "", "stdout_truncated": True, "stderr_truncated": False, "error_message": "",
}  # fmt: skip
JOB: dict[str, Any] = {
    "job_id": "job_1", "status": "succeeded", "reason": "", "skill_name": "a.b", "session_id": "work", "agent": "ann",
    "created_at": 1.0, "started_at": 2.0, "finished_at": 3.0, "error_message": "", "current_step_index": 1,
    "steps": [STEP, {**STEP, "name": "second", "task_id": "run_2"}],
}  # fmt: skip
RUNNING = {**JOB, "status": "running", "steps": [STEP, {**STEP, "name": "second", "task_id": None}]}


def asked(yard: YardServer, method: str) -> dict[str, Any]:
    return [params for name, params in yard.calls if name == method][-1]


def test_jobs_are_listed_shown_and_cancelled(run: Cli, yard: YardServer) -> None:
    yard.methods["skills.jobs"] = lambda params: {"jobs": [JOB], "next_cursor": None}
    assert "job_1  succeeded  a.b    work" in run("job", "list", "--agent", "ann").stdout
    assert asked(yard, "skills.jobs")["agent"] == "ann"
    yard.methods["skills.job_status"] = lambda params: JOB
    shown = run("job", "show", "job_1", "--tail", "4").stdout
    assert "1970-01-01T00:00:03Z" in shown
    assert "second  succeeded" in shown
    assert shown.endswith("second: stdout, its end:\nend\n")
    assert asked(yard, "skills.job_status") == {"job_id": "job_1", "tail_bytes": 4}
    ended = {"job_id": "job_1", "status": "canceled", "reason": "enough", "canceled": True}
    yard.methods["skills.job_cancel"] = lambda params: ended
    assert run("job", "cancel", "job_1", "--reason", "enough").stderr == "job_1 canceled\n"
    yard.methods["skills.job_cancel"] = lambda params: {**ended, "status": "failed", "canceled": False}
    assert run("job", "cancel", "job_1").stderr == "job_1 had ended before (failed)\n"


def test_a_watch_follows_one_step_after_the_other(run: Cli, yard: YardServer) -> None:
    def page(params: dict[str, Any]) -> dict[str, Any]:
        chunks = [{"stream": "stdout", "text": f"out of {params['task_id']}\n"}]
        return {"dropped": 0, "running": False, "complete": True, "chunks": chunks, "next_offset": 1}

    yard.methods["skills.task_logs"] = page
    yard.methods["skills.job_status"] = lambda params: RUNNING
    yard.methods["skills.job_watch"] = lambda params: JOB
    done = run("job", "watch", "job_1")
    assert (done.exit_code, done.stdout) == (0, "out of run_1\nout of run_2\n")
    assert done.stderr == "step first (run_1)\nstep second (run_2)\njob_1 succeeded\n"
    yard.methods["skills.job_watch"] = lambda params: {**JOB, "status": "failed", "error_message": "step 'first': why"}
    failed = run("job", "watch", "job_1")
    assert (failed.exit_code, failed.stderr.endswith("job_1 failed: step 'first': why\n")) == (1, True)
    yard.methods["skills.job_status"] = lambda params: JOB
    assert json.loads(run("job", "watch", "job_1", "--json").stdout) == JOB


def test_an_interrupted_watch_says_how_to_come_back(yard: YardServer, tmp_path: Path) -> None:
    waiting, go_on = threading.Event(), threading.Event()

    def held(params: dict[str, Any]) -> dict[str, Any]:
        waiting.set()
        go_on.wait(60)
        return RUNNING

    yard.methods["skills.job_status"] = held
    command = subprocess.Popen(
        [sys.executable, "-m", "skillyard", "job", "watch", "job_1", "--url", yard.url, "--token", TOKEN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert waiting.wait(60)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    go_on.set()
    assert command.returncode == 130
    assert "the job goes on" in err
    assert "skillyard job watch job_1" in err
    assert [name for name, _ in yard.calls if name == "skills.job_cancel"] == []
