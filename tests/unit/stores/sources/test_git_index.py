"""The index of a checkout, beside what git itself says of it; damaged and hostile ones."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.stores.skills.sources.git_index import Tracked, read_index
from tests.unit.stores.sources.repository import git, repository

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def listed(home: Path) -> list[tuple[str, int]]:
    """As git tells it."""
    rows = git(home, "ls-files", "-z", "--stage").stdout.split("\0")[:-1]
    return [(row.partition("\t")[2], int(row.split()[0], 8)) for row in rows]


def found(home: Path) -> list[tuple[str, int]]:
    return [(os.fsdecode(entry.path), entry.mode) for entry in read_index(home)]


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_versions(tmp_path: Path, version: str) -> None:
    home = repository(tmp_path / "r")
    (home / "link").symlink_to("README.md")
    git(home, "add", "link")
    git(home, "update-index", "--index-version", version)
    if version == "3":
        (home / "later").write_text("x")
        git(home, "add", "-N", "later")  # makes extended flags, and so version 3
    assert (home / ".git/index").read_bytes()[7] == int(version)
    assert found(home) == listed(home)
    assert ("link", 0o120000) in found(home)


def test_sha256(tmp_path: Path) -> None:
    home = repository(tmp_path / "r", object_format="sha256")
    assert found(home) == listed(home)


def test_without_check_sum(tmp_path: Path) -> None:
    home = repository(tmp_path / "r")
    raw = (home / ".git/index").read_bytes()
    (home / ".git/index").write_bytes(raw[:-20] + bytes(20))
    assert found(home) == listed(home)


def test_extensions_that_git_adds(tmp_path: Path) -> None:
    home = repository(tmp_path / "r")
    git(home, "update-index", "--untracked-cache", "--force-untracked-cache")
    git(home, "-c", "core.untrackedCache=true", "status")
    git(home, "-c", "index.threads=4", "update-index", "--force-write-index", check=False)
    assert found(home) == listed(home)


def test_conflicts_and_work_trees(tmp_path: Path) -> None:
    home = repository(tmp_path / "r")
    git(home, "checkout", "-qb", "side")
    (home / "README.md").write_text("side\n")
    git(home, "commit", "-qam", "side")
    git(home, "checkout", "-q", "-")
    (home / "README.md").write_text("main\n")
    git(home, "commit", "-qam", "main")
    git(home, "merge", "side", check=False)
    assert [path for path, _ in found(home)].count("README.md") == 3
    git(home, "merge", "--abort")
    git(home, "worktree", "add", "-q", str(tmp_path / "tree"), "side")
    assert (tmp_path / "tree" / ".git").is_file()
    assert found(tmp_path / "tree") == listed(tmp_path / "tree")


def test_sparse_files_are_told(tmp_path: Path) -> None:
    home = repository(tmp_path / "r")
    git(home, "sparse-checkout", "set", "skills/words")
    sparse = {os.fsdecode(entry.path) for entry in read_index(home) if entry.sparse}
    assert "skills/other/SKILL.md" in sparse
    assert "skills/words/SKILL.md" not in sparse


def test_split_and_sparse_indexes_are_refused(tmp_path: Path) -> None:
    home = repository(tmp_path / "r")
    git(home, "update-index", "--split-index")
    with pytest.raises(ArchiveRefused, match="split"):
        found(home)
    git(home, "update-index", "--no-split-index")
    git(home, "sparse-checkout", "set", "--cone", "--sparse-index", "skills/words")
    with pytest.raises(ArchiveRefused, match="sparse"):
        found(home)


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    home = repository(tmp_path_factory.mktemp("seed") / "r", {"a/b": "1", "a/c": "2", "d": "3"})
    raw = {"2": (home / ".git/index").read_bytes()}
    git(home, "update-index", "--index-version", "4")
    return raw | {"4": (home / ".git/index").read_bytes()}


@given(
    version=st.sampled_from(("2", "4")),
    cuts=st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=4)), max_size=5),
    end=st.integers(0, 400),
    sealed=st.booleans(),
)
def test_damaged_ones_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    seed: dict[str, bytes],
    version: str,
    cuts: list[tuple[int, bytes]],
    end: int,
    sealed: bool,
) -> None:
    raw = bytearray(seed[version])
    for at, data in cuts:
        raw[at : at + len(data)] = data
    body = bytes(raw[: max(0, len(raw) - 20 - end)] if end < 200 else raw[:-20])
    home = tmp_path_factory.mktemp("mutant")
    (home / ".git").mkdir()
    (home / ".git/index").write_bytes(body + (hashlib.sha1(body).digest() if sealed else bytes(20)))
    entries: list[Tracked] = []
    with suppress(ArchiveRefused):
        entries.extend(read_index(home))
    assert all(len(entry.path) <= 4096 for entry in entries)


def test_one_that_promises_much_is_refused_at_once(tmp_path: Path) -> None:
    body = b"DIRC" + (4).to_bytes(4, "big") + (2**32 - 1).to_bytes(4, "big") + bytes(100)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/index").write_bytes(body + hashlib.sha1(body).digest())
    with pytest.raises(ArchiveRefused):
        list(read_index(tmp_path))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir()])
def test_what_is_no_file_holds_nobody_up(tmp_path: Path, make: object) -> None:
    (tmp_path / ".git").mkdir()
    make(tmp_path / ".git/index")  # type: ignore[operator]
    with pytest.raises((ArchiveRefused, OSError)):
        list(read_index(tmp_path))


def test_a_large_one(tmp_path: Path) -> None:
    out = io.BytesIO()
    count = 100_000
    out.write(b"DIRC" + (2).to_bytes(4, "big") + count.to_bytes(4, "big"))
    for number in range(count):
        name = b"directory/%08d.py" % number
        entry = bytes(24) + (0o100644).to_bytes(4, "big") + bytes(32) + len(name).to_bytes(2, "big") + name
        out.write(entry + bytes(8 - len(entry) % 8))
    body = out.getvalue()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/index").write_bytes(body + hashlib.sha1(body).digest())
    assert sum(1 for _ in read_index(tmp_path)) == count
