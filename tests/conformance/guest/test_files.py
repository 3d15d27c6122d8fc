"""The files helper: what ``Sandbox.read``, ``write`` and ``entries`` are made of."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from skillyard.guest.files import DAMAGED, GIVEN_UP, MISSING, NO_SPACE, NOT_REGULAR, PIECE, REFUSED, USAGE, WINDOW
from tests.conformance.guest.conftest import PYTHON, GuestBox

DONE = 0


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return kind + len(payload).to_bytes(4) + payload


def answers(raw: bytes) -> list[tuple[bytes, bytes]]:
    found = []
    while raw:
        size = int.from_bytes(raw[1:5])
        found.append((raw[:1], raw[5 : 5 + size]))
        raw = raw[5 + size :]
    return found


def asked(operation: str, path: str | bytes | Path, stdin: bytes = b"", **words: Any) -> bytes:
    request = {"op": operation, "path": os.fsdecode(path), **words}
    pieces = [frame(b"D", stdin[at : at + 65536]) for at in range(0, len(stdin), 65536)]
    content = [*pieces, frame(b"E")] if operation in ("write", "put") else []
    return b"".join((frame(b"Q", json.dumps(request).encode()), *content))


def ran(box: GuestBox, said: bytes) -> list[tuple[bytes, bytes]]:
    command: list[str | Path] = [PYTHON, "-I", "-S", box.tree, "files"]
    done = subprocess.run(command, input=said, capture_output=True, timeout=30, cwd=box.workspace)
    assert (done.returncode, done.stderr) == (0, b"")
    return answers(done.stdout)


def files(
    box: GuestBox, operation: str, path: str | bytes | Path, stdin: bytes = b"", **words: Any
) -> tuple[int, bytes, str]:
    """Returns the status of one request, what it gave, and why it failed."""
    *given, (kind, told) = ran(box, asked(operation, path, stdin, **words))
    assert all(kind == b"D" for kind, _ in given)
    answer = json.loads(told)
    out = b"".join(payload for _, payload in given) or (told if answer else b"")
    return (DONE, out, "") if kind == b"O" else (answer["status"], b"", answer["text"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, b"0123456789"),
        ({"offset": 3}, b"3456789"),
        ({"offset": 3, "length": 4}, b"3456"),
        ({"offset": 3, "length": None}, b"3456789"),
        ({"offset": 8, "length": 100}, b"89"),
        ({"offset": 10}, b""),
        ({"offset": 99}, b""),
        ({"offset": 0, "length": 0}, b""),
    ],
)
def test_reading_a_part(box: GuestBox, words: dict[str, Any], expected: bytes) -> None:
    (box.workspace / "f").write_bytes(b"0123456789")
    assert files(box, "read", box.workspace / "f", **words) == (DONE, expected, "")


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
    assert why


def test_a_device_is_not_read(box: GuestBox) -> None:
    assert files(box, "read", "/dev/zero")[:2] == (NOT_REGULAR, b"")


@pytest.mark.parametrize("operation", ["read", "entries"])
@pytest.mark.parametrize("path", ["nothing", "no/such/file", "file/below"])
def test_what_is_missing(box: GuestBox, operation: str, path: str) -> None:
    (box.workspace / "file").write_text("")
    assert files(box, operation, box.workspace / path)[0] == MISSING


def test_writing_makes_parents_and_replaces(box: GuestBox) -> None:
    path = box.workspace / "a/b/c.txt"
    assert files(box, "write", path, stdin=b"one", mode=0o600) == (DONE, b'{"size": 3}', "")
    assert files(box, "write", path, stdin=b"\0" * 3_000_000, mode=0o644) == (DONE, b'{"size": 3000000}', "")
    assert path.read_bytes() == b"\0" * 3_000_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["c.txt"]


def test_writing_replaces_a_link_and_not_its_target(box: GuestBox) -> None:
    make_special(box.workspace / "x", "link")
    assert files(box, "write", box.workspace / "x", stdin=b"new", mode=0o644)[0] == DONE
    assert (box.workspace / "x").read_bytes() == b"new"
    assert (box.workspace / "target").read_text() == "target"


def test_writing_replaces_a_fifo_without_waiting(box: GuestBox) -> None:
    make_special(box.workspace / "x", "fifo")
    assert files(box, "write", box.workspace / "x", stdin=b"new", mode=0o644)[0] == DONE


@pytest.mark.parametrize("path", ["directory", "directory/"])
def test_a_directory_is_not_replaced(box: GuestBox, path: str) -> None:
    make_special(box.workspace / "directory", "directory")
    assert files(box, "write", f"{box.workspace}/{path}", stdin=b"new", mode=0o644)[0] == NOT_REGULAR
    assert [p.name for p in box.workspace.iterdir()] == ["directory"]


def test_a_full_disk_leaves_the_old_file(box: GuestBox) -> None:
    (box.workspace / "f").write_text("old")
    source = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000));"
    source += f"sys.argv[0] = {str(box.tree)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [PYTHON, "-I", "-S", "-c", source, "files"]
    said = asked("write", box.workspace / "f", bytes(1_000_000), mode=0o644)
    done = subprocess.run(command, input=said, capture_output=True, timeout=30)
    [(kind, told)] = answers(done.stdout)
    assert (kind, json.loads(told)["status"]) == (b"F", NO_SPACE), done.stderr
    assert [p.name for p in box.workspace.iterdir()] == ["f"]
    assert (box.workspace / "f").read_text() == "old"


def test_what_the_kernel_refuses(box: GuestBox) -> None:
    assert files(box, "write", "/proc/self/nothing", stdin=b"x", mode=0o644)[0] in (REFUSED, MISSING)
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
    assert files(box, "write", path, stdin=b"data", mode=0o644)[0] == DONE
    assert files(box, "read", path) == (DONE, b"data", "")


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_entries_of_what_is_no_directory(box: GuestBox, kind: str) -> None:
    make_special(box.workspace / "x", kind)
    assert files(box, "entries", box.workspace / "x")[0] in (MISSING, NOT_REGULAR)


@pytest.mark.parametrize("words", [{"op": "run"}, {"op": "read", "offset": "a"}, {"op": "stat", "more": 1}, {}])
def test_wrong_words_are_told_how(box: GuestBox, words: dict[str, object]) -> None:
    (box.workspace / "x").write_text("x")
    asking = frame(b"Q", json.dumps({"path": str(box.workspace / "x"), **words}).encode())
    [(kind, told)] = ran(box, asking)
    assert (kind, json.loads(told)["status"]) == (b"F", USAGE)


def test_one_program_serves_many_requests(box: GuestBox) -> None:
    said = [asked("write", box.workspace / f"d/{n}", b"x" * n, mode=0o644) for n in range(100)]
    said += [
        asked("read", box.workspace / "d/99"),
        asked("read", box.workspace / "no"),
        asked("stat", box.workspace / "d/7"),
    ]
    *written, data, end, missing, about = ran(box, b"".join(said))
    assert [json.loads(told)["size"] for _, told in written] == list(range(100))
    assert (data, end) == ((b"D", b"x" * 99), (b"O", b"{}"))
    assert json.loads(missing[1])["status"] == MISSING
    assert json.loads(about[1]).items() >= {"name": "7", "kind": "file", "size": 7, "mode": 0o644}.items()


def test_a_failed_write_takes_what_was_sent_before_the_next(box: GuestBox) -> None:
    said = asked("write", box.workspace, b"x" * 500_000, mode=0o644) + asked("stat", box.workspace)
    failed, about = ran(box, said)
    assert (failed[0], about[0]) == (b"F", b"O")


def test_more_is_sent_only_on_credit(box: GuestBox) -> None:
    (box.workspace / "f").write_bytes(bytes(2 * WINDOW))
    given = ran(box, asked("read", box.workspace / "f"))
    assert sum(len(payload) for _, payload in given) == WINDOW
    given = ran(box, asked("read", box.workspace / "f") + frame(b"C", (2 * WINDOW).to_bytes(4)))
    assert sum(len(payload) for kind, payload in given if kind == b"D") == 2 * WINDOW


def test_what_is_given_up_is_not_written(box: GuestBox) -> None:
    said = asked("write", box.workspace / "f", b"x" * 1000, mode=0o644)[:-5] + frame(b"X")
    [(kind, told)] = ran(box, said)
    assert (kind, json.loads(told)["status"]) == (b"F", GIVEN_UP)
    assert list(box.workspace.iterdir()) == []


def test_a_tree_is_removed_whatever_its_modes_and_depth(box: GuestBox) -> None:
    deep = box.workspace / "top"
    deep.mkdir()
    where = os.getcwd()
    os.chdir(deep)
    try:
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(where)
    (deep / "link").symlink_to("/etc")
    (deep / "shut").mkdir()
    (deep / "shut/file").write_text("x")
    (deep / "shut").chmod(0)
    assert files(box, "remove", deep) == (DONE, b"", "")
    assert files(box, "remove", deep)[0] == MISSING
    assert list(box.workspace.iterdir()) == []


def test_a_link_is_removed_and_not_its_target(box: GuestBox) -> None:
    (box.workspace / "kept").mkdir()
    (box.workspace / "kept/file").write_text("x")
    (box.workspace / "link").symlink_to("kept")
    assert files(box, "remove", box.workspace / "link")[0] == DONE
    assert (box.workspace / "kept/file").exists()


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made:
        for info, data in entries:
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return out.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o755 if kind == tarfile.DIRTYPE else 0o640
    return info


def test_a_tree_goes_in_and_out(box: GuestBox) -> None:
    tree = archive(
        (entry("d", tarfile.DIRTYPE), b""),
        (entry("d/\udcff"), b"bytes"),
        (entry("d/link", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (entry("x" * 200 + "/" + "y" * 200), b"long"),
    )
    assert files(box, "put", box.workspace / "new/in", tree) == (DONE, b"", "")
    assert os.readlink(box.workspace / "new/in/d/link") == "/etc/passwd"
    os.mkfifo(box.workspace / "new/in/fifo")
    status, out, _ = files(box, "get", box.workspace / "new/in")
    assert status == DONE
    with tarfile.open(fileobj=io.BytesIO(out), errors="surrogateescape") as got:
        names = {member.name: member for member in got}
    assert sorted(names) == ["d", "d/link", "d/\udcff", "x" * 200, "x" * 200 + "/" + "y" * 200]
    assert (names["d/\udcff"].mode, names["d/link"].linkname) == (0o640, "/etc/passwd")
    one = files(box, "get", box.workspace / "new/in/d/link")[1]
    with tarfile.open(fileobj=io.BytesIO(one)) as got:
        assert [(member.name, member.issym()) for member in got] == [("link", True)]


@pytest.mark.parametrize(
    "hostile",
    [
        entry("../up"),
        entry("/absolute"),
        entry("a/../../up"),
        entry("hard", tarfile.LNKTYPE, "/etc/passwd"),
        entry("device", tarfile.CHRTYPE),
        entry("fifo", tarfile.FIFOTYPE),
        entry("link/through"),
        entry("d/" * 300 + "deep"),
    ],
    ids=lambda info: info.name[:12],
)
def test_a_hostile_stream_is_refused(box: GuestBox, hostile: tarfile.TarInfo) -> None:
    target = box.workspace / "out"
    target.mkdir()
    tree = archive((entry("link", tarfile.SYMTYPE, "../out"), b""), (hostile, b""))
    status, _, why = files(box, "put", box.workspace / "in", tree)
    assert status == DAMAGED, why
    assert list(target.iterdir()) == []
    assert not (box.workspace / "up").exists()


@pytest.mark.parametrize("stream", [b"", b"no tar at all" * 100, archive((entry("a"), b"x" * 2000))[:1000]])
def test_what_is_no_archive_is_refused(box: GuestBox, stream: bytes) -> None:
    assert files(box, "put", box.workspace / "in", stream)[0] == DAMAGED


def test_a_tree_comes_in_frames_that_the_host_takes(box: GuestBox) -> None:
    """The headers of small entries are joined with the large file behind them."""
    top = box.workspace / "tree"
    for name in ("a", "b", "c"):
        (top / name).mkdir(parents=True)
    (top / "d").write_bytes(os.urandom(2 * PIECE))
    command = asked("get", top)
    *given, (kind, _) = ran(box, command)
    assert kind == b"O"
    assert max(len(payload) for _, payload in given) <= PIECE
    with tarfile.open(fileobj=io.BytesIO(b"".join(payload for _, payload in given))) as tree:
        found = tree.extractfile("d")
        assert found is not None
        assert found.read() == (top / "d").read_bytes()
