"""Commands in real sandboxes, as agents run them: files, limits, floods, and one command after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.config.settings import load_settings

pytestmark = pytest.mark.ordinary
LARGE = 300 * 1024


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    home = tmp_path_factory.mktemp("commands")
    for name in ("acme.notes", "acme.other"):
        skill = home / "skills" / name
        (skill / "scripts").mkdir(parents=True)
        (skill / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Notes\n---\n# {name}\n")
        (skill / "scripts" / "say.sh").write_text(f"#!/bin/sh\necho {name}\n")
        (skill / "scripts" / "say.sh").chmod(0o755)
        (skill / "large.bin").write_bytes(b"x" * LARGE)
    settings = load_settings(
        data_dir=home / "data", skills_dirs=[home / "skills"], output={"log_bytes": 4 << 20}, limits={"disk_mb": 32}
    )
    with SyncRuntime(settings=settings) as runtime:
        yield runtime


def ran(runtime: SyncRuntime, command: str, skill: str = "acme.notes", **asked: Any) -> dict[str, Any]:
    return runtime.run_cmd(skill, command, **asked)


def test_a_skill_of_large_files_is_there_read_only_and_as_a_copy(runtime: SyncRuntime) -> None:
    text = "scripts/say.sh; wc -c < large.bin; echo more >> SKILL.md && touch /skills/acme.notes/new; echo $?; pwd"
    answer = ran(runtime, text)
    assert answer["stdout"] == f"acme.notes\n{LARGE}\n1\n/workspace/skill\n"
    assert "Read-only file system" in answer["stderr"]
    assert answer["exit_code"] == 0


def test_each_command_has_its_own_skill_and_nothing_of_the_one_before(runtime: SyncRuntime) -> None:
    assert ran(runtime, "touch left /tmp/left; scripts/say.sh")["stdout"] == "acme.notes\n"
    other = ran(runtime, "scripts/say.sh; ls /skills /tmp; ls", skill="acme.other")
    assert other["stdout"].split() == [
        "acme.other",
        "/skills:",
        "acme.other",
        "/tmp:",
        "SKILL.md",
        "large.bin",
        "scripts",
    ]


def test_files_go_in_and_come_out(runtime: SyncRuntime) -> None:
    blob_id = runtime.put_blob(b"1\n2\n", "text/csv").blob_id
    answer = ran(
        runtime,
        "sort -r in.csv > out.csv; : > empty; ln -s /etc/passwd link; mkfifo pipe",
        inputs=[{"artifact_id": blob_id, "mount_path": "in.csv"}],
        outputs=[{"path": path} for path in ("*.csv", "empty", "link", "pipe", "none")],
    )
    made = {file["filename"]: file for file in answer["created_artifacts"]}
    assert {name: file["size"] for name, file in made.items()} == {"in.csv": 4, "out.csv": 4, "empty": 0}
    assert runtime.read_blob(made["out.csv"]["artifact_id"])["preview"] == "2\n1\n"
    assert {error["path"]: error["error"] for error in answer["output_errors"]} == {
        "skill/link": "it is not a regular file",
        "skill/pipe": "it is not a regular file",
        "skill/none": "not found",
    }


def test_a_timeout_ends_the_tree_and_keeps_output_and_files(runtime: SyncRuntime) -> None:
    text = "echo begun; echo half > part; (trap '' TERM; setsid sleep 1000) & sleep 1000"
    answer = ran(runtime, text, timeout_sec=1, outputs=[{"path": "part"}])
    assert (answer["status"], answer["reason"], answer["exit_code"]) == ("failed", "timeout", -1)
    assert answer["stdout"] == "begun\n"
    assert [file["filename"] for file in answer["created_artifacts"]] == ["part"]
    assert answer["usage"]["wall_ms"] < 30_000


def test_a_flood_is_ended_and_its_true_end_is_kept(runtime: SyncRuntime) -> None:
    answer = ran(runtime, "seq 1 100000000")
    assert (answer["status"], answer["reason"]) == ("failed", "output")
    assert len(answer["stdout"]) == 204_800
    assert answer["stdout_truncated"]
    large = ran(runtime, "seq 1 100000; echo the end")
    assert large["status"] == "succeeded"
    assert large["stdout"].endswith("100000\nthe end\n")
    assert large["stdout_truncated"]


def test_limits_are_those_of_every_run(runtime: SyncRuntime) -> None:
    full = ran(runtime, "head -c 100000000 /dev/urandom > f")
    assert full["exit_code"] == 1
    assert "No space left" in full["stderr"]
    answer = ran(runtime, "true")
    assert answer["usage"]["cpu_ms"] > 0
    assert answer["limits"]["disk_mb"] == 32


def test_nothing_in_a_variable_is_executed(runtime: SyncRuntime) -> None:
    odd = "$(touch made) `touch made` \\ \" ' \n"
    answer = ran(runtime, 'printf %s "$ODD"; test ! -e made', env={"ODD": odd})
    assert (answer["stdout"], answer["exit_code"]) == (odd, 0)


def test_a_command_writes_nowhere_else(runtime: SyncRuntime) -> None:
    answer = ran(runtime, "touch /etc/x /usr/x /blobs/x /x 2>/dev/null || ls -d /*/x /x 2>/dev/null; id -u")
    assert answer["stdout"] == "65532\n"


def test_python_has_its_own_arguments_and_working_directory(runtime: SyncRuntime) -> None:
    answer = ran(runtime, "import os, sys; print(os.getcwd(), sys.argv)", language="python", workdir="data/in")
    assert answer["stdout"] == "/workspace/data/in ['-c']\n"


def test_it_is_a_run_for_the_operator(runtime: SyncRuntime) -> None:
    answer = ran(runtime, "echo said; echo err >&2")
    record = runtime.show_run(answer["run_id"])["run"]
    assert (record["kind"], record["skill"], record["output"]["exit_code"]) == ("run_cmd", "acme.notes", 0)
    assert runtime.run_logs(answer["run_id"])["content"] == "said\nerr\n"


def test_javascript_runs_where_there_is_a_node(runtime: SyncRuntime) -> None:
    text = (
        "const n = [1, 2].map(x => x + 1); console.log(n.join(), require('fs').existsSync('SKILL.md')); process.exit(3)"
    )
    answer = ran(runtime, text, language="javascript")
    if answer["exit_code"] == -1:
        assert answer["error_message"].startswith("language: javascript needs node, and this sandbox has none")
        return
    assert (answer["stdout"], answer["exit_code"]) == ("2,3 true\n", 3)
    assert ran(runtime, "-1", language="javascript")["exit_code"] == 0


def test_typescript_runs_where_node_takes_types_out(runtime: SyncRuntime) -> None:
    answer = ran(runtime, "const n: number = 2; console.log(n)", language="typescript")
    if answer["exit_code"] == -1:
        assert answer["error_message"].startswith("language: typescript needs ")
        return
    assert (answer["stdout"], answer["exit_code"], answer["stderr"]) == ("2\n", 0, "")
