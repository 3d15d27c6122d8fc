"""Finding, filling and removing control groups, on directories that look like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skillyard.sandbox.native.groups import groups, hierarchies
from skillyard.sandbox.native.groups.groups import Cgroups, Group, GroupLimits

LIMITS = GroupLimits(memory_bytes=64 << 20, pids=17, cpus=1.5)


@pytest.fixture(autouse=True)
def kernel_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel fills a new group with its files; here a write makes them."""
    monkeypatch.setattr(groups, "write", lambda path, text: Path(path).write_text(text))


@pytest.fixture
def unified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A version 2 tree whose root hands every controller down, with us in a group below it."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids io\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "user" / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(hierarchies, "mounted", lambda: ({}, str(tmp_path)))
    monkeypatch.setattr(hierarchies, "own_paths", lambda: {"": "/user"})
    return tmp_path


def test_version_2_claims_the_nearest_group_that_hands_controllers_down(unified: Path) -> None:
    (unified / "user" / "cgroup.subtree_control").unlink()
    (unified / "user" / "cgroup.subtree_control").mkdir()  # writing fails, as where a group has processes
    found = hierarchies.find("skillyard-test")
    assert found.version == 2
    assert found.parents == dict.fromkeys(("memory", "pids", "cpu"), str(unified / "skillyard-test"))


def test_version_2_prefers_our_own_group(unified: Path) -> None:
    found = hierarchies.find("skillyard-test")
    assert found.parents["memory"] == str(unified / "user" / "skillyard-test")
    assert (unified / "user" / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_version_2_takes_what_is_handed_down_and_names_the_rest(unified: Path) -> None:
    """A user's systemd may delegate memory and pids alone."""
    (unified / "user" / "cgroup.controllers").write_text("memory pids\n")
    found = hierarchies.find("skillyard-test")
    assert (found.has("memory"), found.has("pids"), found.has("cpu")) == (True, True, False)
    assert found.missing == {"cpu": f"it is not handed down to {unified}/user"}
    written = {path.name for path in Path(_make(found, 2).directories[""]).iterdir()}
    assert written == {"memory.max", "pids.max"}


def test_version_2_opens_groups_to_whoever_clones_into_them(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: opened.append((path, uid)))
    found = hierarchies.find("skillyard-test")
    parent = found.parents["memory"]
    assert found.let_clone(os.geteuid()) == f"{parent}/zygotes/cgroup.procs"
    found.make("n1-1-0", LIMITS)
    assert opened == []
    found.let_clone(4711)
    group = _make(found, 2).directories[""]
    assert opened == [(f"{parent}/cgroup.procs", 4711), (f"{group}/cgroup.procs", 4711)]


def test_version_2_sets_each_limit(unified: Path) -> None:
    group = _make(hierarchies.find("skillyard-test"), 2)
    written = {path.name: path.read_text() for path in Path(group.directories[""]).iterdir()}
    assert written == {"memory.max": str(64 << 20), "pids.max": "17", "cpu.max": "150000 100000"}


def test_nothing_that_can_be_written_is_named_per_controller(unified: Path) -> None:
    for directory in (unified, unified / "user"):
        (directory / "cgroup.subtree_control").unlink(missing_ok=True)
        (directory / "cgroup.subtree_control").mkdir()
    found = hierarchies.find("skillyard-test")
    assert found.parents == {}
    assert set(found.missing) == {"memory", "pids", "cpu"}


def test_version_1_takes_one_directory_a_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = {}
    for controller in ("memory", "pids", "cpu"):
        (tmp_path / controller / "own").mkdir(parents=True)
        mounts[controller] = str(tmp_path / controller)
    monkeypatch.setattr(hierarchies, "mounted", lambda: (mounts, None))
    monkeypatch.setattr(hierarchies, "own_paths", lambda: dict.fromkeys(mounts, "/own"))
    found = hierarchies.find("skillyard-test")
    assert found.version == 1
    group = _make(found, 1)
    assert (Path(group.directories["memory"]) / "memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (Path(group.directories["pids"]) / "pids.max").read_text() == "17"
    assert (Path(group.directories["cpu"]) / "cpu.cfs_quota_us").read_text() == "150000"
    assert all("/own/skillyard-test/" in path for path in group.directories.values())


def test_what_one_controller_lacks_the_others_still_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pids").mkdir()
    monkeypatch.setattr(hierarchies, "mounted", lambda: ({"pids": str(tmp_path / "pids")}, None))
    monkeypatch.setattr(hierarchies, "own_paths", dict)
    found = hierarchies.find("skillyard-test")
    assert found.has("pids")
    assert not found.has("memory")
    assert found.missing == dict.fromkeys(("memory", "cpu"), "the host mounts no such controller")


@pytest.mark.parametrize(
    ("version", "files", "kills", "refused", "peak"),
    [
        (
            2,
            {"memory.events": "low 0\noom 1\noom_kill 2\n", "memory.peak": "4096\n", "pids.events": "max 7\n"},
            2,
            7,
            4096,
        ),
        (
            1,
            {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "pids.events": "max 0\n"},
            1,
            0,
            None,
        ),
    ],
)
def test_counters_are_read(
    tmp_path: Path, version: int, files: dict[str, str], kills: int, refused: int, peak: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    names = ("",) if version == 2 else ("memory", "pids")
    group = Group(version, dict.fromkeys(names, str(tmp_path)))
    group.open_counters()
    assert (group.oom_kills(), group.refused_forks(), group.peak_memory()) == (kills, refused, peak)


def test_a_group_that_is_gone_counts_as_removed(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    group = Group(2, {"": str(tmp_path / "box")})
    assert group.remove()
    assert group.remove()
    assert not (tmp_path / "box").exists()


def test_the_sweep_removes_what_a_killed_keeper_left(tmp_path: Path) -> None:
    for name in ("n1-1", "n1-2"):
        (tmp_path / name).mkdir()
    found = Cgroups(2, {"memory": str(tmp_path)})
    found.sweep()
    assert list(tmp_path.iterdir()) == []


def _make(found: Cgroups, version: int) -> Group:
    group = found.make("n1-1-1", LIMITS)
    assert group.version == version
    return group
