"""The files helper: what ``Sandbox.read``, ``write`` and ``entries`` are made of."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from skillyard.guest.files import DONE, MISSING, NO_SPACE, NOT_REGULAR, REFUSED, USAGE
from tests.unit.guest.conftest import PYTHON, GuestBox


def files(box: GuestBox, *words: str | bytes | Path, stdin: bytes = b"") -> tuple[int, bytes, str]:
    command = [PYTHON, "-I", "-S", box.tree, *words]
    ran = subprocess.run(command, input=stdin, capture_output=True, timeout=30, cwd=box.workspace)
    return ran.returncode, ran.stdout, ran.stderr.decode()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), b"0123456789"),
        (("3",), b"3456789"),
        (("3", "4"), b"3456"),
        (("3", "-"), b"3456789"),
        (("8", "100"), b"89"),
        (("10",), b""),
        (("99",), b""),
        (("0", "0"), b""),
    ],
)
def test_reading_a_part(box: GuestBox, words: tuple[str, ...], expected: bytes) -> None:
    (box.workspace / "f").write_bytes(b"0123456789")
    assert files(box, "read", box.workspace / "f", *words) == (DONE, expected, "")


def make_special(path: Path, kind: str) -> None:
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "link":
            (path.parent / "target").write_text("target")
            path.symlink_to("target")
        case "dangling":
            path.symlink_to("nothing")
        case "directory":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        case "device":
            path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["fifo", "link", "dangling", "directory", "socket", "device"])
def test_only_regular_files_are_read(box: GuestBox, kind: str) -> None:
    make_special(box.workspace / "x", kind)
    status, out, why = files(box, "read", box.workspace / "x")
    assert (status, out) == (NOT_REGULAR, b"")
    assert why.count("\n") == 1


def test_a_device_is_not_read(box: GuestBox) -> None:
    assert files(box, "read", "/dev/zero")[:2] == (NOT_REGULAR, b"")


@pytest.mark.parametrize("operation", ["read", "entries"])
@pytest.mark.parametrize("path", ["nothing", "no/such/file", "file/below"])
def test_what_is_missing(box: GuestBox, operation: str, path: str) -> None:
    (box.workspace / "file").write_text("")
    assert files(box, operation, box.workspace / path)[0] == MISSING


def test_writing_makes_parents_and_replaces(box: GuestBox) -> None:
    path = box.workspace / "a/b/c.txt"
    assert files(box, "write", path, "600", stdin=b"one") == (DONE, b"3\n", "")
    assert files(box, "write", path, stdin=b"\0" * 3_000_000) == (DONE, b"3000000\n", "")
    assert path.read_bytes() == b"\0" * 3_000_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["c.txt"]


def test_writing_replaces_a_link_and_not_its_target(box: GuestBox) -> None:
    make_special(box.workspace / "x", "link")
    assert files(box, "write", box.workspace / "x", stdin=b"new")[0] == DONE
    assert (box.workspace / "x").read_bytes() == b"new"
    assert (box.workspace / "target").read_text() == "target"


def test_writing_replaces_a_fifo_without_waiting(box: GuestBox) -> None:
    make_special(box.workspace / "x", "fifo")
    assert files(box, "write", box.workspace / "x", stdin=b"new")[0] == DONE


@pytest.mark.parametrize("path", ["directory", "directory/"])
def test_a_directory_is_not_replaced(box: GuestBox, path: str) -> None:
    make_special(box.workspace / "directory", "directory")
    assert files(box, "write", f"{box.workspace}/{path}", stdin=b"new")[0] == NOT_REGULAR
    assert [p.name for p in box.workspace.iterdir()] == ["directory"]


def test_a_full_disk_leaves_the_old_file(box: GuestBox) -> None:
    (box.workspace / "f").write_text("old")
    source = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000));"
    source += f"sys.argv[0] = {str(box.tree)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [PYTHON, "-I", "-S", "-c", source, "write", str(box.workspace / "f")]
    ran = subprocess.run(command, input=bytes(1_000_000), capture_output=True, timeout=30)
    assert ran.returncode == NO_SPACE, ran.stderr
    assert [p.name for p in box.workspace.iterdir()] == ["f"]
    assert (box.workspace / "f").read_text() == "old"


def test_what_the_kernel_refuses(box: GuestBox) -> None:
    assert files(box, "write", "/proc/self/nothing", stdin=b"x")[0] in (REFUSED, MISSING)
    assert files(box, "read", box.workspace / ("x" * 300))[0] == REFUSED


def test_entries_are_sorted_json_lines(box: GuestBox) -> None:
    (box.workspace / "b.txt").write_text("12345")
    for name, kind in (("a", "directory"), ("c", "link"), ("d", "fifo")):
        make_special(box.workspace / name, kind)
    (box.workspace / "line\nbreak").write_text("")
    Path(os.fsdecode(os.fsencode(box.workspace) + b"/\xff")).write_text("")
    status, out, _ = files(box, "entries", box.workspace)
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == DONE
    assert [(row["name"], row["kind"]) for row in rows] == [
        ("a", "directory"),
        ("b.txt", "file"),
        ("c", "link"),
        ("d", "other"),
        ("line\nbreak", "file"),
        ("target", "file"),
        ("\udcff", "file"),
    ]
    assert rows[1]["size"] == 5


def test_names_that_are_not_utf8_can_be_used(box: GuestBox) -> None:
    path = os.fsencode(box.workspace) + b"/\xff\xfe"
    assert files(box, "write", path, stdin=b"data")[0] == DONE
    assert files(box, "read", path) == (DONE, b"data", "")


def test_entries_have_a_limit(box: GuestBox) -> None:
    for n in range(5):
        (box.workspace / f"{n}").touch()
    status, out, _ = files(box, "entries", box.workspace, "3")
    assert (status, [json.loads(line)["name"] for line in out.splitlines()]) == (DONE, ["0", "1", "2"])


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_entries_of_what_is_no_directory(box: GuestBox, kind: str) -> None:
    make_special(box.workspace / "x", kind)
    assert files(box, "entries", box.workspace / "x")[0] in (MISSING, NOT_REGULAR)


@pytest.mark.parametrize(
    "words", [(), ("read",), ("remove", "x"), ("read", "x", "a"), ("write", "x", "9"), ("entries", "x", "1", "2", "3")]
)
def test_wrong_words_are_told_how(box: GuestBox, words: tuple[str, ...]) -> None:
    status, out, why = files(box, *words)
    assert (status, out) == (USAGE, b"")
    assert why
