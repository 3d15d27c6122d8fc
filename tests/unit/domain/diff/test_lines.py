"""Unified diffs: right for any two texts, and bounded in time when somebody made them slow."""

from __future__ import annotations

import difflib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.diff.files import Room, unified

LINES = st.lists(st.sampled_from(("a", "b", "c", "", "- d", "@@ x", "\\ No")), max_size=14)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, LINES, st.sampled_from(("", "\n")))
PLENTY = 10**6


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
@given(old=TEXTS, new=TEXTS, steps=st.sampled_from((PLENTY, 0, 3)))
def test_patch_understands_it(tmp_path_factory: pytest.TempPathFactory, old: str, new: str, steps: int) -> None:
    lines = list(unified(old, new, Room(steps=steps)))
    assert bool(lines) == (old != new)
    if not lines:
        return
    home: Path = tmp_path_factory.mktemp("patch")
    (home / "file").write_text(old)
    (home / "diff").write_text("--- file\n+++ file\n" + "\n".join(lines) + "\n")
    subprocess.run(["patch", "-s", "-i", "diff", "file"], cwd=home, check=True, capture_output=True, timeout=20)
    assert ((home / "file").read_text() if (home / "file").exists() else "") == new


def test_hunks_are_those_of_diff() -> None:
    old = [f"line {i}" for i in range(60)]
    new = [*old[:10], "new", *old[10:30], *old[31:57], "end"]
    mine = list(unified("\n".join(old) + "\n", "\n".join(new) + "\n", Room()))
    theirs = [line.rstrip("\n") for line in difflib.unified_diff(old, new, lineterm="")][2:]
    assert mine == theirs


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["x"] * 100_000, ["y"] * 100_000),
        ([str(i) for i in range(60_000)], [str(i) for i in reversed(range(60_000))]),
        (["a", "b"] * 40_000, ["b", "b", "a"] * 30_000),
        ([str(i % 90) for i in range(60_000)], [str(i % 89) for i in range(60_000)]),
    ],
)
@pytest.mark.timeout(60)
def test_it_ends(old: list[str], new: list[str]) -> None:
    assert list(unified("\n".join(old), "\n".join(new), Room()))


def test_a_spent_budget_replaces_the_rest() -> None:
    old, new = ["same", *"abcd", "same"], ["same", *"bdac", "same"]
    short, rough = (list(unified("\n".join(old), "\n".join(new), room)) for room in (Room(), Room(steps=0)))
    assert rough[1:] == [
        " same",
        *(f"-{line}" for line in "abcd"),
        *(f"+{line}" for line in "bdac"),
        " same",
        "\\ No newline at end of file",
    ]
    assert len(short) < len(rough)
