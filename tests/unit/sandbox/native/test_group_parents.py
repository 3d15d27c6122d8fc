"""A keeper's groups are its own while it lives, and anybody's to remove when it is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillyard.sandbox.native.groups import groups
from skillyard.sandbox.native.groups.groups import Cgroups

NAME, OTHER = "skillyard-0123456789ab", "skillyard-ba9876543210"
HOLD = """
import sys
from skillyard.sandbox.native.groups import groups as group_parents
group_parents.claim(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def living(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another keeper, with a group in its parent."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / OTHER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        (tmp_path / OTHER / "n1-1").mkdir()
        yield process
        process.kill()


def test_the_groups_of_a_dead_keeper_go_and_those_of_a_living_one_stay(
    tmp_path: Path, living: subprocess.Popen[bytes]
) -> None:
    groups.sweep_dead([str(tmp_path)])
    assert (tmp_path / OTHER / "n1-1").is_dir()
    living.send_signal(signal.SIGKILL)
    living.wait(10)
    groups.sweep_dead([str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_what_has_another_name_stays(tmp_path: Path) -> None:
    names = {"user.slice", "skillyard-server", "skillyard-0123456789abc", "n1-1"}
    for name in names:
        (tmp_path / name).mkdir()
    groups.sweep_dead([str(tmp_path), str(tmp_path / "not there")])
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_what_is_another_users_stays(tmp_path: Path) -> None:
    (tmp_path / OTHER).mkdir()
    os.chown(tmp_path / OTHER, 12345, 12345)
    groups.sweep_dead([str(tmp_path)])
    assert (tmp_path / OTHER).is_dir()


def test_one_that_a_process_is_in_stays(tmp_path: Path) -> None:
    """As the kernel does, which refuses to remove it: here a file stands for the process."""
    (tmp_path / OTHER / "n1-1").mkdir(parents=True)
    (tmp_path / OTHER / "n1-1" / "process").touch()
    (tmp_path / OTHER / "n1-2").mkdir()
    groups.sweep_dead([str(tmp_path)])
    assert [path.name for path in (tmp_path / OTHER).iterdir()] == ["n1-1"]


def test_a_parent_that_was_swept_away_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the making and the locking of it."""
    make, swept = os.makedirs, list[str]()

    def make_and_lose(path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        make(path, mode, exist_ok)
        if not swept:
            swept.append(path)
            groups.sweep_dead([str(tmp_path)])

    monkeypatch.setattr(os, "makedirs", make_and_lose)
    fd = groups.claim(str(tmp_path / NAME))
    try:
        assert os.path.samestat(os.fstat(fd), os.stat(tmp_path / NAME))
        assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o700
        groups.sweep_dead([str(tmp_path)])
        assert (tmp_path / NAME).is_dir()
    finally:
        os.close(fd)


def test_one_directory_for_several_controllers_is_claimed_once(tmp_path: Path) -> None:
    found = Cgroups(1)
    path = str(tmp_path / NAME)
    assert found.claim(path) == found.claim(path) == path
    assert len(found.claims) == 1
    found.parents = dict.fromkeys(("memory", "pids"), path)
    found.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_still_busy_is_told_and_removed_later(tmp_path: Path) -> None:
    found = Cgroups(1, {"memory": str(tmp_path / NAME)})
    found.claim(str(tmp_path / NAME))
    busy = tmp_path / NAME / "n1-1"
    for name in ("n1-1/process", "n1-2"):
        (tmp_path / NAME / name).mkdir(parents=True)
    left = found.sweep()
    assert left == [str(busy)]
    (busy / "process").rmdir()
    assert groups.remove(left) == []
    assert list((tmp_path / NAME).iterdir()) == []
    found.close()
