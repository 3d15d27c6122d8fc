"""Indexes that no git wrote."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.sources import read_source
from skillyard.stores.skills.sources.git_index import MAX_BYTES, read_index
from tests.unit.stores.sources.indexes import LINK, checkout, entry, index

GOOD = entry(b"SKILL.md")
V4 = entry(b"SKILL.md")[:62]


def refused(home: Path) -> Finding:
    unpacked, findings = read_source(home)
    assert unpacked is None
    return findings[-1]


def test_the_plain_one_is_taken(tmp_path: Path) -> None:
    home = checkout(tmp_path, index(GOOD))
    (home / "SKILL.md").write_text("x")
    unpacked, findings = read_source(home)
    assert unpacked is not None, findings
    assert list(unpacked.tree.files) == ["SKILL.md"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not an index"),
        (b"DIRC", "is not an index"),
        (b"DIRX" + index(GOOD)[4:], "is not an index"),
        (index(GOOD, version=1), "version 1"),
        (index(GOOD, version=5), "version 5"),
        (index(GOOD, sum_=b"x" * 20), "check sum"),
        (index(GOOD, count=2), "cut off"),
        (index(GOOD, count=2**32 - 1), "cut off"),
        (index(GOOD, count=0), "unknown extension"),
        (index(entry(b"SKILL.md", length=5)), "length"),
        (index(entry(b"x" * 5000)), "cut off"),
        (index(GOOD, more=b"TREE" + (99).to_bytes(4, "big") + b"x"), "extensions"),
        (index(GOOD, more=b"TRE"), "extensions"),
        (index(GOOD, more=b"evil" + bytes(4)), "unknown extension"),
        (index(V4 + b"\xff" * 40, version=4), "a number"),
        (index(V4 + b"\0" + b"y" * 50, version=4), "cut off"),
    ],
)
def test_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    finding = refused(checkout(tmp_path, raw))
    assert finding.rule == "git-index"
    assert message in finding.message


def test_names_of_version_4_do_not_grow_without_end(tmp_path: Path) -> None:
    def grown(number: int) -> bytes:
        length = min(4000 * number, 0xFFF)
        return bytes(60) + length.to_bytes(2, "big") + b"\0" + b"x" * 4000 + b"\0"

    home = checkout(tmp_path, index(*(grown(number) for number in range(1, 50)), version=4))
    assert "length" in refused(home).message


@pytest.mark.parametrize("path", [b"../secret", b"a/../../secret", b"/etc/passwd", b"a//b", b"./x", b"a/", b".", b".."])
def test_paths_that_leave_are_never_opened(tmp_path: Path, path: bytes) -> None:
    home = checkout(tmp_path / "repo", index(GOOD, entry(path)))
    (home / "SKILL.md").write_text("x")
    (home / "a").mkdir()
    (tmp_path / "secret").write_text("s")
    assert refused(home).rule == "archive-traversal"


def test_links_are_counted(tmp_path: Path) -> None:
    links = [b"%04d" % number for number in range(600)]
    home = checkout(tmp_path, index(GOOD, *(entry(name, LINK) for name in links)))
    (home / "SKILL.md").write_text("x")
    for name in links:
        (home / os.fsdecode(name)).symlink_to("SKILL.md")
    assert refused(home).rule == "archive-files"
    assert "links" in refused(home).message


def test_a_link_that_is_none_any_more(tmp_path: Path) -> None:
    home = checkout(tmp_path, index(GOOD, entry(b"link", LINK)))
    (home / "SKILL.md").write_text("x")
    (home / "link").write_text("SKILL.md")
    assert "is none in the work tree" in refused(home).message


def test_where_git_is_to_be_found(tmp_path: Path) -> None:
    checkout(tmp_path / "elsewhere", index(GOOD))
    home = tmp_path / "home"
    home.mkdir()
    (home / "SKILL.md").write_text("x")
    (home / ".git").write_text("gitdir: ../elsewhere/.git\n")
    assert [entry.path for entry in read_index(home)] == [b"SKILL.md"]
    (home / ".git").write_text("../elsewhere/.git\n")
    assert "not to be found" in refused(home).message


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    home = checkout(tmp_path, b"")
    with (home / ".git/index").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert "more than" in refused(home).message
    (home / ".git/index").unlink()
    os.mkfifo(home / ".git/index")
    assert "is not a file" in refused(home).message


def test_both_hashes_without_a_check_sum(tmp_path: Path) -> None:
    """index.skipHash."""
    wide = entry(b"SKILL.md", width=32)
    assert len(list(read_index(checkout(tmp_path / "1", index(GOOD, sum_=bytes(20)))))) == 1
    assert len(list(read_index(checkout(tmp_path / "2", index(wide, sum_=bytes(32)))))) == 1
    body = index(wide)[:-20]
    assert len(list(read_index(checkout(tmp_path / "3", body + hashlib.sha256(body).digest())))) == 1
