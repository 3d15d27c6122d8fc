"""Unified diffs: right for any two texts, shortest when there is time, bounded in time when somebody made them slow."""

from __future__ import annotations

import difflib
import shutil
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillyard.domain.diff.lines import Budget, edits, unified

LINES = st.lists(st.sampled_from(("a", "b", "c", "", "- d", "@@ x", "\\ No")), max_size=14)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, LINES, st.sampled_from(("", "\n")))
PLENTY = 10**6


@settings(deadline=None, max_examples=300)
@given(LINES, LINES, st.sampled_from((PLENTY, 0, 5)))
def test_edits_make_the_new_of_the_old(old: list[str], new: list[str], steps: int) -> None:
    found = edits(old, new, Budget(steps))
    made, at = [], 0
    for edit in found:
        assert edit.old_from >= at
        made += old[at : edit.old_from] + new[edit.new_from : edit.new_to]
        assert len(made) == edit.new_to
        at = edit.old_to
    assert made + old[at:] == new
    assert all(a.old_to < b.old_from or a.new_to < b.new_from for a, b in pairwise(found))


@settings(deadline=None, max_examples=200)
@given(LINES, LINES)
def test_none_is_shorter(old: list[str], new: list[str]) -> None:
    found = edits(old, new, Budget(PLENTY))
    cost = sum(e.old_to - e.old_from + e.new_to - e.new_from for e in found)
    common = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, before in enumerate(old):
        for j, after in enumerate(new):
            longest = max(common[i][j + 1], common[i + 1][j])
            common[i + 1][j + 1] = common[i][j] + 1 if before == after else longest
    assert cost == len(old) + len(new) - 2 * common[-1][-1]


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
@settings(deadline=None, max_examples=40)
@given(old=TEXTS, new=TEXTS, steps=st.sampled_from((PLENTY, 3)))
def test_patch_understands_it(tmp_path_factory: pytest.TempPathFactory, old: str, new: str, steps: int) -> None:
    lines = list(unified(old, new, Budget(steps)))
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
    mine = list(unified("\n".join(old) + "\n", "\n".join(new) + "\n", Budget(PLENTY)))
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
def test_time_is_bounded(old: list[str], new: list[str]) -> None:
    started = time.process_time()
    found = edits(old, new, Budget(1_000_000))
    assert found
    assert time.process_time() - started < 10
