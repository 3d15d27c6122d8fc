"""Files that a run leaves in ``out``: what comes back, and what a hostile tree does not achieve."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.domain.sandbox.frames import BlobBegin, Notes
from tests.conformance.guest.conftest import GuestBox, Ran

FILES = {"count": 20, "each_bytes": 100_000, "bytes": 300_000}


def leaving(box: GuestBox, body: str, files: dict[str, int] | None = None, **changes: Any) -> Ran:
    """Runs ``body`` in the working directory."""
    return box.call("import os, sys, threading, socket\n" + body, entrypoint=None, files=files or FILES, **changes)


def files_of(ran: Ran) -> dict[str, bytes]:
    paths = {frame.n: frame.path for frame in ran.frames if isinstance(frame, BlobBegin) and frame.path}
    return {path: ran.blobs[n][1] for n, path in paths.items() if n in ran.blobs}


def notes_of(ran: Ran) -> Notes:
    return next((frame for frame in ran.frames if isinstance(frame, Notes)), Notes())


def skipped(ran: Ran) -> dict[str, str]:
    return dict(notes_of(ran).skipped)


def test_files_come_back_with_their_paths(box: GuestBox) -> None:
    nested = "os.makedirs('out/b/ü')\nopen('out/b/ü/c d.bin', 'wb').write(b'0' * 90_000)"
    ran = leaving(box, f"open('out/a.csv', 'w').write('x,y')\n{nested}")
    assert files_of(ran) == {"a.csv": b"x,y", "b/ü/c d.bin": b"0" * 90_000}
    assert notes_of(ran) == Notes(script=True)


def test_a_run_that_leaves_nothing_says_nothing(box: GuestBox) -> None:
    ran = leaving(box, "def main(): return 1")
    assert [type(frame).__name__ for frame in ran.frames] == ["Result"]


@pytest.mark.parametrize("ending", ["1 / 0", "sys.exit(3)", "raise KeyboardInterrupt"])
def test_they_come_back_from_a_run_that_fails(box: GuestBox, ending: str) -> None:
    ran = leaving(box, f"open('out/a', 'w').write('x')\n{ending}")
    assert ran.failure
    assert files_of(ran) == {"a": b"x"}


def test_other_files_are_named(box: GuestBox) -> None:
    ran = leaving(
        box, "open('report.csv', 'w').write('x')\nos.mkdir('data')\nopen('.hidden', 'w')\nos.mkdir('__pycache__')"
    )
    assert notes_of(ran).others == ("data", "report.csv")
    many = leaving(box, "for i in range(50): open(f'f{i}', 'w')")
    assert (len(notes_of(many).others), notes_of(many).more) == (10, 42)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("os.symlink('/etc/passwd', 'out/x')", "kind"),
        ("os.symlink('/', 'out/x')", "kind"),
        ("os.symlink('x', 'out/x')", "kind"),
        ("os.mkfifo('out/x')", "kind"),
        ("s = socket.socket(socket.AF_UNIX)\nos.chdir('out')\ns.bind('x')\nos.chdir('..')", "kind"),
        ("open('out/x', 'w').truncate(10**12)", "size"),
        ("open('out/x', 'wb').write(b'0' * 100_001)", "size"),
    ],
)
def test_what_is_no_plain_file_of_its_size_is_named_and_not_sent(box: GuestBox, body: str, why: str) -> None:
    ran = leaving(box, f"open('out/ok', 'w').write('y')\n{body}")
    assert files_of(ran) == {"ok": b"y"}
    assert skipped(ran) == {"x": why}


@pytest.mark.parametrize("name", ["b'bad\\xff'", "b'new\\nline'", "b'es\\x1bc'", "b'back\\\\slash'", "'bi\\u202edi'"])
def test_names_that_cannot_be_passed_on_are_told_and_not_sent(box: GuestBox, name: str) -> None:
    prefix = "b'out/'" if name.startswith("b") else "'out/'"
    ran = leaving(box, f"open({prefix} + {name}, 'w').write('x')")
    assert files_of(ran) == {}
    assert set(skipped(ran).values()) == {"name"}


def test_the_directory_itself_may_be_a_link_or_gone(box: GuestBox) -> None:
    (box.root / "secret").write_text("s")
    ran = leaving(box, f"os.rmdir('out')\nos.symlink({str(box.root)!r}, 'out')")
    assert (files_of(ran), ran.value) == ({}, {})
    assert leaving(box, "if os.path.islink('out'): os.unlink('out')\nelse: os.rmdir('out')").value == {}
    assert leaving(box, "os.rmdir('out') if os.path.isdir('out') else os.unlink('out')\nopen('out', 'w')").value == {}


def test_many_deep_and_large_trees_end_at_the_caps(box: GuestBox) -> None:
    many = leaving(box, "for i in range(12_000): open(f'out/{i:05}', 'w')")
    assert len(files_of(many)) == 20
    assert notes_of(many).more > 9000
    assert len(notes_of(many).skipped) == 10
    deep = leaving(
        box,
        "import shutil\nshutil.rmtree('out')\nos.mkdir('out')\nos.chdir('out')\n"
        "for _ in range(500):\n    os.mkdir('d')\n    os.chdir('d')\n    open('f', 'w').write('x')\nos.chdir('/')",
    )
    assert 10 < len(files_of(deep)) <= 20
    assert "depth" in skipped(deep).values()


def test_all_together_are_bounded(box: GuestBox) -> None:
    ran = leaving(box, "for name in 'abcd': open(f'out/{name}', 'w').write('x' * 90_000)")
    assert list(files_of(ran)) == ["a", "b", "c"]
    assert skipped(ran) == {"d": "together"}
    few = leaving(box, "from runtime import blobs\nfor i in range(3): blobs.write_text('x')", max_blobs=4)
    assert len(files_of(few)) == 1


def test_a_file_that_grows_is_as_long_as_it_was(box: GuestBox) -> None:
    body = """
file = open('out/x', 'wb')
def grow():
    while True:
        file.write(b'x' * 1000)
        file.flush()
        os.truncate('out/x', 50_000)
threading.Thread(target=grow, daemon=True).start()
"""
    ran = leaving(box, body)
    assert ran.value == {}
    assert all(len(data) <= 100_000 for data in files_of(ran).values())


@pytest.mark.parametrize("broken", ["os.scandir = None", "os.open = lambda *a, **k: 1 / 0", "os.fstat = sys.exit"])
def test_a_program_that_breaks_what_this_needs_has_its_result(box: GuestBox, broken: str) -> None:
    assert leaving(box, f"open('out/x', 'w').write('x')\ndef main():\n    {broken}\n    return 7").value == {
        "result": 7
    }
