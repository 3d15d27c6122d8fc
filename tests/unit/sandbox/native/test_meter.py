"""A sandbox's processor time is counted with its children's, which are looked at where there were any."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillyard.sandbox.native.groups.groups import Group
from skillyard.sandbox.native.keeper.account import ProcessMeter

CHILDREN_S = 0.2
WORKER = f"""
import os, time
pid = os.fork()
while pid == 0 and time.process_time() < {CHILDREN_S}:
    pass
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
print("done", flush=True)
input()
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[int]:
    """A process whose child computed and was reaped."""
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        yield process.pid
        process.kill()


def test_nothing_is_counted_for_a_worker_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "pids.peak").write_text("2\n")
    group = Group(2, {"": str(tmp_path)})
    group.open_counters()
    meter = ProcessMeter(group, weighs=False)
    meter.look()
    group.close_counters()
    assert meter.used.cpu_seconds is None


@pytest.mark.parametrize(
    ("peak", "counted"),
    [("2\n", False), ("3\n", True), ("", True), (None, True)],
    ids=["init and worker", "one more", "unreadable", "not counted"],
)
def test_children_are_counted_unless_there_was_none(
    worker: int, tmp_path: Path, peak: str | None, counted: bool
) -> None:
    if peak is not None:
        (tmp_path / "pids.peak").write_text(peak)
    group = Group(2, {"": str(tmp_path)})
    group.open_counters()
    meter = ProcessMeter(group, weighs=False)
    meter.worker = worker
    meter.look()
    group.close_counters()
    assert meter.used.cpu_seconds is not None
    assert (meter.used.cpu_seconds >= 0.9 * CHILDREN_S) == counted
