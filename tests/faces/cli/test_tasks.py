"""``skillyard sh`` and ``skillyard task`` against a scripted server, and ``watch`` when it is interrupted."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.unit.client.yardserver import TOKEN, YardServer

Cli = Callable[..., Result]
RAN = {
    "status": "succeeded", "reason": "exit", "run_id": "run_1", "stdout": "out\n", "stderr": "err", "exit_code": 0,
    "stdout_truncated": False, "stderr_truncated": False, "error_message": "", "created_artifacts": [],
    "output_errors": [],
}  # fmt: skip
TOLD = {
    "task_id": "run_1", "provider": "bg", "status": "succeeded", "reason": "exit", "exit_code": 0, "error_message": "",
    "created_at": 1.0, "started_at": 2.0, "finished_at": 3.0, "last_output_at": None, "stdout_tail": "end\n",
    "stderr_tail": "", "stdout_truncated": True, "stderr_truncated": False, "created_artifacts": [],
    "output_errors": [],
}  # fmt: skip


def asked(yard: YardServer, method: str) -> dict[str, Any]:
    return [params for name, params in yard.calls if name == method][-1]


def test_a_command_has_its_output_and_exit_code(run: Cli, yard: YardServer) -> None:
    yard.methods["skills.run_cmd"] = lambda params: RAN
    done = run("sh", "acme.notes@1.0.0", "--env", "A=b=c", "--workdir", ".", "--timeout", "5", "--", "ls -l | wc")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "out\n", "err")
    assert asked(yard, "skills.run_cmd") == {
        "skill_name": "acme.notes", "version": "1.0.0", "command": "ls -l | wc", "env": {"A": "b=c"}, "workdir": ".",
        "timeout_sec": 5.0,
    }  # fmt: skip
    yard.methods["skills.run_cmd"] = lambda params: {**RAN, "status": "failed", "exit_code": 42}
    failed = run("sh", "acme.notes", "--", "grep", "a b", "--flag")
    assert failed.exit_code == 42
    assert asked(yard, "skills.run_cmd")["command"] == "grep 'a b' --flag"


def test_an_end_that_is_not_its_own_says_why(run: Cli, yard: YardServer) -> None:
    ended = {**RAN, "status": "failed", "reason": "timeout", "exit_code": -1, "error_message": "over 60 s"}
    yard.methods["skills.run_cmd"] = lambda params: ended
    done = run("sh", "acme.notes", "--", "sleep 100")
    assert (done.exit_code, "over 60 s" in done.stderr) == (1, True)
    never = {**ended, "reason": "exit", "error_message": "something is there already"}
    yard.methods["skills.run_cmd"] = lambda params: never
    done = run("sh", "acme.notes", "--input", "SKILL.md=blob:a", "--", "x")
    assert (done.exit_code, "something is there already" in done.stderr) == (1, True)
    yard.methods["skills.run_cmd"] = lambda params: ended
    assert json.loads(run("sh", "acme.notes", "--json", "--", "x").stdout) == ended


def test_files_go_in_and_are_saved(run: Cli, yard: YardServer, tmp_path: Path) -> None:
    made = {"artifact_id": "blob:made", "path": "skill/o/r.txt", "filename": "o/r.txt", "mime": "text/plain", "size": 4}
    lost = {"path": "skill/none", "error": "not found"}
    answer = {**RAN, "created_artifacts": [made], "output_errors": [lost]}
    yard.methods["skills.run_cmd"] = lambda params: answer
    yard.blobs["blob:made"] = ("text/plain", b"made")
    (tmp_path / "in.csv").write_text("a,b")
    files = ("--input", f"data/x.csv={tmp_path / 'in.csv'}", "--input", str(tmp_path / "in.csv"))
    done = run("sh", "a.b", *files, "--output", "o/*", "--save", str(tmp_path / "got"), "--", "x")
    assert done.exit_code == 1, "a file that was asked for is not there"
    assert (tmp_path / "got" / "o" / "r.txt").read_bytes() == b"made"
    assert "output skill/none: not found" in done.stderr
    params = asked(yard, "skills.run_cmd")
    assert [one["mount_path"] for one in params["inputs"]] == ["data/x.csv", "in.csv"]
    assert params["outputs"] == [{"path": "o/*"}]
    answer = {**answer, "output_errors": []}
    assert run("sh", "a.b", *files, "--output", "o/*", "--", "x").exit_code == 0


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_a_hostile_file_name_is_not_written(run: Cli, yard: YardServer, tmp_path: Path, name: str) -> None:
    made = {"artifact_id": "blob:made", "path": "p", "filename": name, "mime": "text/plain", "size": 4}
    yard.methods["skills.run_cmd"] = lambda params: {**RAN, "created_artifacts": [made]}
    done = run("sh", "a.b", "--output", "*", "--save", str(tmp_path / "got"), "--", "x")
    assert (done.exit_code, "leads elsewhere" in done.stderr) == (3, True)
    assert list((tmp_path / "got").iterdir()) == []


def test_a_detached_command_is_a_task(run: Cli, yard: YardServer) -> None:
    yard.methods["skills.run_cmd_async"] = lambda params: {"task_id": "run_1", "status": "queued"}
    done = run("sh", "a.b", "--detach", "--label", "team=crm", "--agent", "ann", "--", "long")
    assert (done.exit_code, done.stdout) == (0, "run_1\n")
    assert "skillyard task watch run_1" in done.stderr
    params = asked(yard, "skills.run_cmd_async")
    assert (params["labels"], params["agent"]) == ({"team": "crm"}, "ann")
    assert run("sh", "a.b", "--detach", "--save", "x", "--", "long").exit_code == 2
    assert "--save needs --output" in run("sh", "a.b", "--save", "x", "--", "long").stderr


def test_tasks_are_listed_shown_and_cancelled(run: Cli, yard: YardServer) -> None:
    row = {"task_id": "run_1", "status": "running", "skill_name": "a.b", "created_at": 1.0, "reason": ""}
    yard.methods["skills.tasks"] = lambda params: {"tasks": [row], "next_cursor": None}
    assert "run_1  running  a.b" in run("task", "list", "--agent", "ann").stdout
    assert asked(yard, "skills.tasks")["agent"] == "ann"
    yard.methods["skills.task_status"] = lambda params: TOLD
    shown = run("task", "show", "run_1", "--tail", "4").stdout
    assert "1970-01-01T00:00:03Z" in shown
    assert shown.endswith("stdout, its end:\nend\n")
    assert asked(yard, "skills.task_status") == {"task_id": "run_1", "tail_bytes": 4}
    ended = {"task_id": "run_1", "status": "canceled", "canceled": True}
    yard.methods["skills.task_cancel"] = lambda params: ended
    assert run("task", "cancel", "run_1", "--reason", "enough").stderr == "run_1 canceled\n"


PAGES = [
    {"chunks": [{"stream": "stdout", "text": "a"}, {"stream": "stderr", "text": "b"}], "next_offset": 6},
    {"chunks": [{"stream": "stdout", "text": "c\n"}], "next_offset": 10},
]


def paged(yard: YardServer) -> None:
    def page(params: dict[str, Any]) -> dict[str, Any]:
        number = 0 if not params["offset"] else 1
        return {"task_id": "run_1", "dropped": 0, "running": True, "complete": number == 1, **PAGES[number]}

    yard.methods["skills.task_logs"] = page


def test_a_watch_follows_both_streams_and_tells_the_end(run: Cli, yard: YardServer) -> None:
    paged(yard)
    yard.methods["skills.task_status"] = lambda params: TOLD
    done = run("task", "watch", "run_1")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "ac\n", "brun_1 succeeded: exit code 0\n")
    assert asked(yard, "skills.task_logs") == {"task_id": "run_1", "offset": 6, "wait_ms": 20_000}
    yard.methods["skills.task_status"] = lambda params: {**TOLD, "status": "failed", "error_message": "why"}
    failed = run("task", "watch", "run_1", "--json")
    assert (failed.exit_code, json.loads(failed.stdout)["error_message"]) == (1, "why")


def test_output_that_is_not_taken_is_told_once(run: Cli, yard: YardServer) -> None:
    pages = iter([("a", "the disk is full"), ("", "the disk is full"), ("b\n", "")])

    def page(params: dict[str, Any]) -> dict[str, Any]:
        text, problem = next(pages)
        told = {"task_id": "run_1", "dropped": 0, "running": True, "complete": text == "b\n", "log_problem": problem}
        chunks = [{"stream": "stdout", "text": text}] if text else []
        return {**told, "chunks": chunks, "next_offset": params["offset"] + len(text)}

    yard.methods["skills.task_logs"] = page
    done = run("task", "logs", "run_1", "--follow")
    assert (done.exit_code, done.stdout) == (0, "ab\n")
    assert done.stderr == "output is not taken now: the disk is full\noutput is taken again\n"


def test_logs_of_one_stream(run: Cli, yard: YardServer) -> None:
    paged(yard)
    assert run("task", "logs", "run_1").stdout == "ac\n"
    said = json.loads(run("task", "logs", "run_1", "--stream", "stderr", "--json").stdout)
    assert said["chunks"][1] == {"stream": "stderr", "text": "b"}
    assert asked(yard, "skills.task_logs")["stream"] == "stderr"


def test_an_interrupted_watch_says_how_to_come_back(yard: YardServer, tmp_path: Path) -> None:
    waiting = threading.Event()

    def page(params: dict[str, Any]) -> dict[str, Any]:
        waiting.set()
        select.select([yard.sockets[-1]], [], [], 30)
        return {"task_id": "run_1", "dropped": 0, "running": True, "complete": False, **PAGES[0]}

    yard.methods["skills.task_logs"] = page
    command = subprocess.Popen(
        [sys.executable, "-m", "skillyard", "task", "watch", "run_1", "--url", yard.url, "--token", TOKEN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert waiting.wait(60)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (130, "")
    assert "the task goes on" in err
    assert "skillyard task watch run_1" in err
    assert [name for name, _ in yard.calls if name == "skills.task_cancel"] == []
