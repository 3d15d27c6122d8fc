"""Runs whose places cannot be written to, and the server's variables that they get, in real sandboxes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.config.settings import load_settings

pytestmark = pytest.mark.ordinary

WRITES = """
import os, tempfile

def main(args):
    said = {}
    for place in ("/workspace", "/tmp", "/dev/shm"):
        try:
            open(f"{place}/new", "x").close()
            said[place] = "written"
        except OSError as error:
            said[place] = os.strerror(error.errno)
    said["temporary"] = tempfile.gettempdir() if args.get("temporary") else ""
    said["variables"] = {name: os.environ.get(name) for name in ("GREETING", "PYTHONSTARTUP", "API_KEY")}
    return said
"""
CLOSED = "Read-only file system"


@pytest.fixture
def home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GREETING", "hello $(id)")
    monkeypatch.setenv("PYTHONSTARTUP", "/tmp/evil")
    skill = tmp_path / "skills" / "acme.notes"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: acme.notes\ndescription: Notes\n---\n# Notes\n")
    (skill / "scripts" / "say.sh").write_text("echo said\n")
    return tmp_path


@pytest.fixture
def runtime(home: Any, request: pytest.FixtureRequest) -> Iterator[SyncRuntime]:
    asked: dict[str, Any] = {"sandbox": request.param, "environments": {"ahead": {"preload": ["decimal"]}}}
    settings = load_settings(data_dir=home / "data", skills_dirs=[home / "skills"], **asked)
    with SyncRuntime(settings=settings) as runtime:
        yield runtime


def wrote(runtime: SyncRuntime, **asked: Any) -> dict[str, Any]:
    run = runtime.run_code(WRITES, **asked)
    assert run.status == "completed", run.error
    output: dict[str, Any] = json.loads(json.dumps(run.output))
    return output


@pytest.mark.parametrize("runtime", [{"workspace_access": "ro"}], indirect=True)
@pytest.mark.parametrize("environment", ["base", "ahead"])
def test_a_closed_workspace_cannot_be_written_to(runtime: SyncRuntime, environment: str) -> None:
    said = wrote(runtime, environment=environment)
    assert (said["/workspace"], said["/tmp"], said["/dev/shm"]) == (CLOSED, "written", "written")


@pytest.mark.parametrize("runtime", [{"tmpfs": False}], indirect=True)
def test_without_a_tmpfs_the_workspace_alone_can_be_written_to(runtime: SyncRuntime) -> None:
    said = wrote(runtime, args={"temporary": True})
    assert (said["/workspace"], said["/tmp"], said["/dev/shm"]) == ("written", CLOSED, CLOSED)
    assert said["temporary"] == "/workspace"


@pytest.mark.parametrize("runtime", [{"workspace_access": "ro"}], indirect=True)
def test_a_command_in_a_closed_workspace_has_the_skill_itself(runtime: SyncRuntime) -> None:
    text = (
        "pwd; sh say.sh; touch /workspace/a; chmod 777 /workspace; mount -o remount,rw /workspace; touch /workspace/b"
    )
    answer = runtime.run_cmd("acme.notes", text, workdir="skill/scripts")
    assert answer["stdout"] == "/skills/acme.notes/scripts\nsaid\n"
    assert (answer["stderr"].count(CLOSED), answer["exit_code"]) == (3, 1)
    lost = runtime.run_cmd("acme.notes", "true", workdir="skill/none")
    assert lost["error_message"] == "workdir: the skill has no directory 'none'"
    assert runtime.run_cmd("acme.notes", "pwd", workdir=".")["stdout"] == "/workspace\n"


@pytest.mark.parametrize("runtime", [{"workspace_access": "ro"}], indirect=True)
def test_files_of_a_command_are_refused_in_a_closed_workspace(runtime: SyncRuntime) -> None:
    blob_id = runtime.put_blob(b"1", "text/csv").blob_id
    for asked in (
        {"inputs": [{"artifact_id": blob_id, "mount_path": "in.csv"}]},
        {"outputs": [{"path": "out.csv"}]},
        {"workdir": "made"},
    ):
        answer = runtime.run_cmd("acme.notes", "true", **asked)
        assert answer["status"] == "failed"
        assert answer["error_message"].startswith("/workspace is read-only here (sandbox.workspace_access)")


@pytest.mark.parametrize("runtime", [{"env_allowlist": ["GREETING", "PYTHONSTARTUP", "API_KEY"]}], indirect=True)
def test_listed_variables_enter_and_the_record_names_the_others(runtime: SyncRuntime) -> None:
    said = wrote(runtime)
    assert said["variables"] == {"GREETING": "hello $(id)", "PYTHONSTARTUP": None, "API_KEY": None}
    answer = runtime.run_cmd("acme.notes", 'printf "%s" "$GREETING"', env={"API_KEY": "mine"})
    assert answer["stdout"] == "hello $(id)"
    variables = runtime.call("runs.show", {"run_id": answer["run_id"]})["run"]["needs"]["variables"]
    assert variables["given"] == ["GREETING"]
    assert variables["refused"] == {
        "PYTHONSTARTUP": "it steers skillyard or programs in the sandbox",
        "API_KEY": "the server has no such variable",
    }
    assert runtime.run_cmd("acme.notes", "printf $GREETING", env={"GREETING": "mine"})["stdout"] == "mine"
