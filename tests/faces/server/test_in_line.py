"""Commands that need the same data directory at once: they wait for each other, and work beside a server."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skillyard.faces.cli import target
from tests.crash.server import Server
from tests.faces.cli.conftest import Cli, bare

__all__ = ["bare"]

BOUND_S = 120
EXAMPLES = Path(__file__).resolve().parents[3] / "src/skillyard/bundled/examples"
HOLD = """
import sys
from pathlib import Path
from skillyard.data_dir import DataDir
with DataDir(Path(sys.argv[1])).owned():
    print("held", flush=True)
    sys.stdin.read()
"""


def environ(data_dir: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SKILLYARD_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**clean, "SKILLYARD_DATA_DIR": str(data_dir), "PATH": path}


def shell(line: str, data_dir: Path, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line], env=environ(data_dir), cwd=place, capture_output=True, text=True, timeout=BOUND_S
    )


@contextmanager
def held(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """By another process, until its standard input is closed."""
    command = [sys.executable, "-c", HOLD, str(data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.communicate(timeout=BOUND_S)


@pytest.mark.parametrize("served", [False, True], ids=["alone", "beside a server"])
def test_the_first_commands_of_the_readme_and_of_a_new_skill(tmp_path: Path, served: bool) -> None:
    data_dir = tmp_path / "data"
    (tmp_path / "sales.csv").write_text("region,amount\nnorth,3\nsouth,5\nnorth,7\n")

    def work() -> None:
        line = f"skillyard run examples.csv.summarize --skills-dir {EXAMPLES} --blob blob=sales.csv --save reports"
        done = shell(line, data_dir, tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == 3
        assert len(list((tmp_path / "reports").iterdir())) == 1
        assert ("works beside it" in done.stderr) == served
        made = shell("skillyard skill new a.b --dir 'my skills'", data_dir, tmp_path)
        steps = [step.removeprefix("next:").strip() for step in made.stderr.splitlines()]
        assert [shlex.split(step)[1] for step in steps] == ["skill", "skill", "run"]
        for step in steps:
            done = shell(step, data_dir, tmp_path)
            assert done.returncode == 0, (step, done.stderr)
        assert shell("skillyard runs list", data_dir, tmp_path).returncode == 0
        kept = f" --data-dir {data_dir}/beside" if served else ""
        runs = json.loads(shell(f"skillyard runs list --json{kept}", data_dir, tmp_path).stdout)
        assert [run["skill"] for run in runs] == ["a.b", "examples.csv.summarize"]

    if not served:
        work()
        return
    with Server(data_dir):
        work()
        refused = shell("skillyard skill publish 'my skills/a.b' --skills-dir 'my skills'", data_dir, tmp_path)
        assert (refused.returncode, refused.stdout) == (5, "")
        assert "without --skills-dir the server does it" in refused.stderr
        assert shell("skillyard skill publish 'my skills/a.b'", data_dir, tmp_path).returncode == 0


def test_three_at_once_wait_for_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def main(args): return args['n']")
    each = " & ".join(f"skillyard exec a.py --args '{{\"n\": {n}}}' > {n} || touch failed" for n in range(3))
    done = shell(f"{each} & wait", tmp_path / "data", tmp_path)
    assert not (tmp_path / "failed").exists(), done.stderr
    assert [json.loads((tmp_path / str(n)).read_text())["result"] for n in range(3)] == [0, 1, 2]


def test_who_waits_says_for_whom_and_goes_on(tmp_path: Path) -> None:
    with held(tmp_path / "data") as holder:
        command = [sys.executable, "-m", "skillyard", "runs", "list", "--json"]
        with subprocess.Popen(
            command, env=environ(tmp_path / "data"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as waiting:
            assert waiting.stderr is not None
            said = waiting.stderr.readline()
            assert f"waiting for process {holder.pid} " in said
            assert waiting.poll() is None
            holder.communicate(timeout=BOUND_S)
            out, err = waiting.communicate(timeout=BOUND_S)
            assert (waiting.returncode, json.loads(out), err) == (0, [], "")


def test_nobody_waits_for_ever(tmp_path: Path, bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "PATIENCE_S", 0.6)
    with held(tmp_path / "data") as holder:
        done = bare("runs", "list")
    assert done.exit_code == 5
    assert f"in use by process {holder.pid} " in done.stderr
    assert "(waited 1 s)" in done.stderr
    assert bare("runs", "list").exit_code == 0
