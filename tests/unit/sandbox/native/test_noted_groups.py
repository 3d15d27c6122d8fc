"""The groups of a killed keeper are removed by the note that it left, wherever they are in the hierarchy."""

from __future__ import annotations

from pathlib import Path

from skillyard.sandbox.native.groups import groups

NAME, OTHER = "skillyard-0123456789ab", "skillyard-ba9876543210"


def test_groups_of_a_dead_keeper_go_by_its_note(tmp_path: Path) -> None:
    run_dir, group = tmp_path / "run", tmp_path / "elsewhere" / NAME
    run_dir.mkdir()
    (group / "n1-1").mkdir(parents=True)
    groups.note(str(run_dir), [str(group)])
    assert groups.sweep_noted(str(run_dir)) == []
    assert not group.exists()
    assert groups.sweep_noted(str(run_dir)) == []


def test_those_of_a_living_keeper_stay(tmp_path: Path) -> None:
    groups.note(str(tmp_path), [str(tmp_path / NAME)])
    found = groups.Cgroups(1)
    found.claim(str(tmp_path / NAME))
    assert groups.sweep_noted(str(tmp_path)) == [str(tmp_path / NAME)]
    found.close()
    assert groups.sweep_noted(str(tmp_path)) == []


def test_a_busy_group_is_told(tmp_path: Path) -> None:
    """As the kernel does, which refuses to remove it: here a file stands for the process."""
    (tmp_path / NAME / "n1-1").mkdir(parents=True)
    (tmp_path / NAME / "n1-1" / "process").touch()
    groups.note(str(tmp_path), [str(tmp_path / NAME)])
    assert groups.sweep_noted(str(tmp_path)) == [str(tmp_path / NAME)]


def test_a_note_leads_to_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / OTHER / "below").mkdir(parents=True)
    groups.note(str(tmp_path), [str(tmp_path / "precious"), f"{tmp_path}/{OTHER}/below"])
    assert groups.sweep_noted(str(tmp_path)) == []
    assert (tmp_path / "precious").is_dir()
    assert (tmp_path / OTHER / "below").is_dir()


def test_without_a_note_nothing_happens(tmp_path: Path) -> None:
    assert groups.sweep_noted(str(tmp_path / "not there")) == []
