"""The command line against a real server, and without one."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import waiting

Done = subprocess.CompletedProcess[str]
Cli = Callable[..., Done]
BOUND_S = 60


def environ(data_dir: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SKILLYARD_")}
    return {**inherited, "SKILLYARD_DATA_DIR": str(data_dir)}


def skillyard(data_dir: Path, *args: str, stdin: str = "") -> Done:
    command = [sys.executable, "-m", "skillyard", *args]
    return subprocess.run(command, env=environ(data_dir), input=stdin, capture_output=True, text=True, timeout=BOUND_S)


@pytest.fixture(scope="module")
def skills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the skill ``demo.length``, as ``skill new`` makes it."""
    parent = tmp_path_factory.mktemp("skills")
    made = skillyard(parent / "unused", "skill", "new", "demo.length", "--dir", str(parent))
    assert made.returncode == 0, made.stderr
    return parent


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, skills: Path) -> Iterator[Path]:
    """The data directory of a server that runs."""
    data_dir = tmp_path_factory.mktemp("served") / "data"
    command = [sys.executable, "-m", "skillyard", "serve", "--port", "0", "--skills-dir", str(skills)]
    with (data_dir.parent / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environ(data_dir), stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        with process.stdout as out:
            said = out.readline() if select.select([out], [], [], BOUND_S)[0] else b""
            assert b"ready at http://127.0.0.1:" in said, (data_dir.parent / "log").read_text()
            yield data_dir
            process.send_signal(signal.SIGTERM)
            assert process.wait(BOUND_S) == 0


@pytest.fixture
def cli(served: Path) -> Cli:
    """``skillyard …`` on the data directory of the server: it finds URL and token by itself."""

    def invoke(*args: str, stdin: str = "") -> Done:
        return skillyard(served, *args, stdin=stdin)

    return invoke


def value(done: Done) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_skill_is_found_read_and_run(cli: Cli) -> None:
    assert "demo.length" in {row["name"] for row in value(cli("skill", "list", "--json"))}
    assert value(cli("skill", "show", "demo.length", "--json"))["kind"] == "action"
    assert "def main(args)" in cli("skill", "show", "demo.length", "--file", "code/main.py").stdout
    done = cli("run", "demo.length", "--args", '{"text": "hello"}')
    assert value(done)["length"] == 5
    assert "working on 5 characters" in done.stderr


def test_arguments_that_break_the_schema_fail_the_run(cli: Cli) -> None:
    done = cli("run", "demo.length", "--args", '{"texts": 1}', "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["type"]) == (1, "ValidationError")


def test_code_imports_a_skill_and_reads_a_blob(cli: Cli, tmp_path: Path) -> None:
    code = """
from runtime import blobs
from skills.demo.length import main as measure

def main(args):
    text = blobs.read_text(args["data"])
    return {"length": measure({"text": text})["length"], "report": blobs.write_text("done")}
"""
    (tmp_path / "in.txt").write_text("twelve chars")
    done = cli(
        *("exec", "-", "--mount-skill", "demo.length", "--blob", f"data={tmp_path / 'in.txt'}"),
        *("--save", str(tmp_path / "out")),
        stdin=code,
    )
    assert value(done)["length"] == 12
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["done"]


def test_a_blob_comes_back_as_it_went(cli: Cli, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "a").write_bytes(data)
    blob_id = cli("blob", "put", str(tmp_path / "a")).stdout.strip()
    assert value(cli("blob", "get", blob_id, "-o", str(tmp_path / "b"), "--json"))["size_bytes"] == 300_000
    assert (tmp_path / "b").read_bytes() == data
    assert blob_id in {row["blob_id"] for row in value(cli("blob", "list", "--json"))}
    assert cli("blob", "rm", blob_id).returncode == 0
    assert cli("blob", "get", blob_id, "-o", str(tmp_path / "c")).returncode == 2


def test_a_run_leaves_a_record_and_its_log(cli: Cli) -> None:
    code = "def main(args):\n    print('x' * 5000)\n    raise ValueError('no')"
    failed = cli("exec", "-", "--json", stdin=code)
    run_id = json.loads(failed.stdout)["run_id"]
    assert failed.returncode == 1
    record = value(cli("runs", "show", run_id, "--json"))
    assert (record["status"], record["error"]["type"]) == ("failed", "ValueError")
    assert run_id in {row["run_id"] for row in value(cli("runs", "list", "--status", "failed", "--json"))}
    assert cli("runs", "logs", run_id).stdout.startswith("x" * 5000)
    assert cli("runs", "cancel", run_id).stderr == f"{run_id} had ended before (failed)\n"


def test_interrupting_a_run_cancels_it(cli: Cli, served: Path) -> None:
    command = start_sleeping(served)
    (run,) = until(lambda: value(cli("runs", "list", "--status", "running", "--json")))
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=BOUND_S)
    assert command.returncode == 130
    until(lambda: not value(cli("runs", "list", "--status", "running", "--json")))
    assert value(cli("runs", "show", run["run_id"], "--json"))["outcome"] == "cancelled"


def start_sleeping(data_dir: Path) -> subprocess.Popen[bytes]:
    """``skillyard exec`` of something that takes ten minutes."""
    command = subprocess.Popen(
        [sys.executable, "-m", "skillyard", "exec", "-"],
        env=environ(data_dir),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert command.stdin is not None
    command.stdin.write(b"import time\ndef main(args): time.sleep(600)")
    command.stdin.close()
    command.stdin = None
    return command


def test_a_limit_above_its_maximum_is_refused_by_name(cli: Cli) -> None:
    done = cli("run", "demo.length", "--limit", "memory_mb=99999999")
    assert done.returncode == 2
    assert "limits.memory_mb" in done.stderr


def test_tokens_made_beside_a_running_server_work_at_once(cli: Cli, served: Path) -> None:
    token = cli("token", "create", "reader", "--scopes", "discover").stdout.strip()
    url = json.loads((served / "server.json").read_text())["url"]
    assert cli("skill", "list", "--url", url, "--token", token).returncode == 0
    refused = cli("exec", "-", "--url", url, "--token", token, stdin="def main(args): ...")
    assert refused.returncode == 4
    assert cli("token", "revoke", "reader").returncode == 0
    assert cli("skill", "list", "--url", url, "--token", token).returncode == 3


def test_a_data_directory_in_use_is_said_to_be(cli: Cli, skills: Path) -> None:
    listed = cli("skill", "list", "--skills-dir", str(skills))
    assert (listed.returncode, "works beside it" in listed.stderr) == (0, True)
    done = cli("skill", "approve", "demo.length", "--skills-dir", str(skills))
    assert done.returncode == 5
    assert "in use" in done.stderr


def test_without_a_server_the_work_is_done_in_process(tmp_path: Path, skills: Path) -> None:
    def local(*args: str, stdin: str = "") -> Done:
        return skillyard(tmp_path / "data", *args, stdin=stdin)

    done = local("run", "demo.length", "--args", '{"text": "abc"}', "--skills-dir", str(skills))
    assert value(done)["length"] == 3
    assert [row["skill"] for row in value(local("runs", "list", "--json"))] == ["demo.length"]
    assert local("run", "demo.absent").returncode == 2


def test_interrupting_a_run_in_process_cancels_it(tmp_path: Path) -> None:
    command = start_sleeping(tmp_path / "data")
    until(lambda: running_records(tmp_path / "data" / "skillyard.db"))
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=BOUND_S)
    assert command.returncode == 130
    (record,) = value(skillyard(tmp_path / "data", "runs", "list", "--json"))
    assert (record["status"], record["outcome"]) == ("failed", "cancelled")


def running_records(database: Path) -> int:
    """Read beside the process that owns the data directory."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM runs WHERE status = 'running'").fetchone()
            return int(count)
    except sqlite3.OperationalError:
        return 0


def test_a_secret_reaches_the_skill_that_declares_it_and_nothing_else(tmp_path: Path, skills: Path) -> None:
    own = tmp_path / "skills"
    root = Path(skillyard(tmp_path, "skill", "new", "demo.secret", "--dir", str(own)).stdout.strip())
    manifest = root / "skill.toml"
    manifest.write_text(manifest.read_text().split("[inputs]")[0] + '\n[permissions]\nsecrets = ["DEMO_KEY"]\n')
    (root / "code/main.py").write_text(
        "import os\ndef main(args):\n    print(os.environ['DEMO_KEY'])\n    return {'n': len(os.environ['DEMO_KEY'])}\n"
    )
    data_dir = tmp_path / "data"
    run = ("run", "demo.secret", "--skills-dir", str(own), "--json")
    assert json.loads(skillyard(data_dir, *run).stdout)["error"]["type"] == "MissingSecret"
    assert skillyard(data_dir, "secret", "set", "DEMO_KEY", stdin="xyzzy-12345\n").returncode == 0
    done = skillyard(data_dir, *run)
    assert value(done)["output"] == {"n": 11}
    assert "xyzzy" not in done.stdout + done.stderr


def until(condition: Callable[[], Any]) -> Any:
    """What the condition gives once it is true."""
    return waiting.until(condition, BOUND_S)
