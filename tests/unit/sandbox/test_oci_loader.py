"""The loader, as the program that it is in a container: what it makes of honest streams, and of hostile ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skillyard.sandbox.oci import loader
from skillyard.sandbox.oci.volumes import _pieces

SOURCE = Path(loader.__file__).read_text()
BOUND_S = 30.0


def load(word: str, volume: Path, stream: bytes = b"") -> dict[str, str]:
    """Returns the loader's word about ``it`` in a volume."""
    words = [sys.executable, "-I", "-S", "-c", SOURCE, word, str(volume / "it")]
    done = subprocess.run(words, input=stream, capture_output=True, timeout=BOUND_S)
    assert done.stderr == b""
    told: dict[str, str] = json.loads(done.stdout)
    assert done.returncode == int("error" in told)
    return told


def stream_of(entries: Sequence[Any], data: bytes = b"") -> bytes:
    head = json.dumps(entries).encode()
    return f"{len(head):08x}".encode() + head + data


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


def everything(root: Path) -> dict[str, tuple[str, str | int]]:
    return {name: (kind, value) for name, kind, value in loader.entries(str(root))}


def test_a_tree_arrives_whole_and_closed(volume: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep/er").mkdir(parents=True)
    (tree / "empty").mkdir()
    (tree / "deep/er/file").write_bytes(os.urandom(3 << 20))
    (tree / "tool").write_text("#!/bin/sh\n")
    (tree / "tool").chmod(0o700)
    (tree / "link").symlink_to("../../etc/passwd")
    Path(os.fsdecode(bytes(tree) + b"/\xff\nname")).write_text("odd")
    told = load("take", volume, b"".join(_pieces(str(tree))))
    assert told == {"seal": loader.seal(str(tree))} == load("look", volume)
    assert everything(volume / "it") == everything(tree)
    assert (volume / "it/tool").stat().st_mtime == int((tree / "tool").stat().st_mtime), "bytecode remembers it"
    modes = {path.name: path.lstat().st_mode & 0o777 for path in (volume / "it").rglob("*") if not path.is_symlink()}
    assert (modes["file"], modes["tool"], modes["empty"], modes["er"]) == (0o444, 0o555, 0o555, 0o555)


def test_a_file_arrives(volume: Path, tmp_path: Path) -> None:
    for data in (b"", b"x" * 10):
        (tmp_path / "file").write_bytes(data)
        (volume / "it").unlink(missing_ok=True)
        assert load("take", volume, b"".join(_pieces(str(tmp_path / "file")))) == load("look", volume)
        assert (volume / "it").read_bytes() == data


OUT = ["", "d"]
HOSTILE: dict[str, tuple[list[Any], bytes]] = {
    "parent": ([OUT, ["../outside/x", "f", 1, 0]], b"x"),
    "parent inside": ([OUT, ["a", "d"], ["a/../../../outside/x", "f", 1, 0]], b"x"),
    "absolute": ([OUT, ["/outside/x", "f", 1, 0]], b"x"),
    "dot": ([OUT, ["./x", "f", 1, 0]], b"x"),
    "nul": ([OUT, ["a\0b", "f", 1, 0]], b"x"),
    "through a link": ([OUT, ["l", "l", "../../outside"], ["l/x", "f", 1, 0]], b"x"),
    "over a link": ([OUT, ["l", "l", "../../outside/x"], ["l", "f", 1, 0]], b"x"),
    "a link for the root": ([["", "l", "../outside"], ["x", "f", 1, 0]], b"x"),
    "twice": ([OUT, ["x", "f", 1, 0], ["x", "f", 1, 0]], b"xy"),
    "a directory over a link": ([OUT, ["l", "l", "../../outside"], ["l", "d"]], b""),
    "without a root": ([["x", "f", 1, 0]], b"x"),
    "another kind": ([OUT, ["x", "device", 1]], b""),
    "too short": ([OUT, ["x", "f", 2, 0]], b"x"),
    "a name that is none": ([[1, "f", 1, 0]], b"x"),
    "a size that is none": ([["", "f", "x", 0]], b"x"),
    "without a size": ([["", "f"]], b"x"),
    "without a target": ([OUT, ["l", "l"]], b""),
    "no entries": ([], b""),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_stream_leaves_the_place_in_no_way(how: str, volume: Path, tmp_path: Path) -> None:
    told = load("take", volume, stream_of(*HOSTILE[how]))
    assert told.keys() == {"error"}
    assert list((tmp_path / "outside").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "volume"}
    assert {path.name for path in volume.iterdir()} <= {"it"}


@pytest.mark.parametrize("head", [b"", b"zzzzzzzz", b"-0000001[", b"ffffffff", b"00000001{", b"00000002[]"])
def test_a_head_that_is_none_is_told(head: bytes, volume: Path) -> None:
    assert "error" in load("take", volume, head)


def test_more_than_the_content_is_no_content(volume: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    load("take", volume, b"".join(_pieces(str(tmp_path / "file"))))
    (volume / "other").write_text("x")
    assert "error" in load("look", volume)
    assert "error" in load("take", volume, stream_of([["", "f", 1, 0]], b"y"))
    assert (volume / "it").read_text() == "x"


@pytest.mark.parametrize("other", [{"name": "b"}, {"mode": 0o755}, {"data": "y"}, {"link": "m"}])
def test_every_difference_is_another_seal(other: dict[str, Any], tmp_path: Path) -> None:
    usual: dict[str, Any] = {"name": "a", "mode": 0o644, "data": "x", "link": "l"}
    seals = []
    for number, given in enumerate((usual, usual, usual | other)):
        place = tmp_path / str(number)
        place.mkdir()
        (place / given["name"]).write_text(given["data"])
        (place / given["name"]).chmod(given["mode"])
        (place / "link").symlink_to(given["link"])
        seals.append(loader.seal(str(place)))
    assert seals[0] == seals[1] != seals[2]
