"""``./demo`` for real, without its setting up, and that it fails when something does not hold."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.demo.material import ATTACKS, HEADER, HOSTILE, write_orders
from skillyard.bench.idle import alive, family

PROJECT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(180)


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.demo", *options]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=170, cwd=PROJECT)


def test_it_shows_the_main_job_and_leaves_the_report_alone(tmp_path: Path) -> None:
    done = demo("--rows", "3000", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "3,000 rows, 6 columns" in done.stdout
    assert '"region": "north"' in done.stdout
    assert "run_code" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text().startswith("# ")


def test_it_shows_every_attack_held_and_the_walls(tmp_path: Path) -> None:
    done = demo("--rows", "1000", "--dir", str(tmp_path), "--keep")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    for attack in ATTACKS:
        assert any(line.strip().startswith("held") and attack in line for line in lines), attack
    assert "BROKEN" not in done.stdout
    assert "seccomp" in done.stdout
    assert all(len(line) <= 104 for line in lines if line.startswith("   "))
    kept = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert (kept[0] / "data" / "skillyard.db").exists()


def test_each_attack_is_tried() -> None:
    names: dict[str, object] = {}
    exec(HOSTILE, names)
    tries = HOSTILE.split("tries = (")[1].split(")")[0].split(",")
    assert len(tries) == len(ATTACKS)
    assert all(callable(names[name.strip()]) for name in tries)


def test_the_table_is_the_same_each_time(tmp_path: Path) -> None:
    size = write_orders(tmp_path / "a.csv", 500)
    write_orders(tmp_path / "b.csv", 500)
    text = (tmp_path / "a.csv").read_text()
    assert size == len(text.encode())
    assert text == (tmp_path / "b.csv").read_text()
    assert text.splitlines()[0] == ",".join(HEADER)
    assert len(text.splitlines()) == 501


def test_an_unusable_directory_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = demo("--dir", str(tmp_path / "file"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT, signal.SIGKILL]
)
def test_interrupted_it_stops_its_server_and_removes_its_directory(tmp_path: Path, number: int) -> None:
    """Killed it removes nothing, and its server stops all the same."""
    command = [sys.executable, "-m", "examples.demo", "--rows", "1000000", "--dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT)
    assert process.stdout is not None
    for line in process.stdout:
        if "ready at" in line:
            break
    run_dir = next(tmp_path.iterdir()) / "data" / "run"
    below = [pid for place in (run_dir, run_dir / "landlock") for pid in family(place)]
    [server] = children(process.pid)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    assert (list(tmp_path.iterdir()) == []) == (number != signal.SIGKILL)
    assert below
    assert wait_until(lambda: not any(alive(pid) for pid in (*below, server)), 60)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
