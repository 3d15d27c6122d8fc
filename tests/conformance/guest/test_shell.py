"""A command inside: its files, its output told apart, its end, and the files that it leaves."""

from __future__ import annotations

import os
from typing import Any

import pytest

from skillyard.domain.sandbox.frames import BlobBegin, Notes
from skillyard.engine.commands.output import STDERR, STDOUT, Unmarker
from tests.conformance.guest.conftest import PREFIX, GuestBox, Ran

FILES = {"count": 20, "each_bytes": 100_000, "bytes": 300_000}


def command(box: GuestBox, text: str, **changes: Any) -> Ran:
    """Runs ``text`` in the skill ``acme``; ``changes`` are the command's."""
    if "acme" not in box.skills:
        box.mount_skill("acme", {"SKILL.md": "# Acme\n", "scripts/say.sh": "#!/bin/sh\necho said\n"}, entry=None)
        os.chmod(box.root / "skills" / "acme" / "scripts" / "say.sh", 0o755)
    asked = {
        "skill": "acme", "language": "bash", "text": text, "workdir": "skill", "env": {}, "inputs": [], "outputs": [],
        **changes,
    }  # fmt: skip
    return box.call(None, op="command", skill="acme", command=asked, files=FILES)


def apart(ran: Ran) -> dict[str, str]:
    streams = {STDOUT: b"", STDERR: b""}
    for stream, data in Unmarker().feed(ran.logs.encode()):
        streams[stream] += data
    return {stream: data.decode() for stream, data in streams.items()}


def kept(ran: Ran) -> dict[str, bytes]:
    paths = {frame.n: frame.path for frame in ran.frames if isinstance(frame, BlobBegin)}
    return {path: ran.blobs[n][1] for n, path in paths.items() if n in ran.blobs}


def skipped(ran: Ran) -> dict[str, str]:
    return dict(next((frame.skipped for frame in ran.frames if isinstance(frame, Notes)), ()))


def test_stdout_and_stderr_are_apart_and_in_order(box: GuestBox) -> None:
    ran = command(box, "echo one; sleep 0.05; echo two >&2; sleep 0.05; echo three")
    assert apart(ran) == {STDOUT: "one\nthree\n", STDERR: "two\n"}
    assert ran.logs == "one\n\x002two\n\x001three\n"
    assert ran.value == {"exit_code": 0}


@pytest.mark.parametrize(
    ("text", "value"),
    [("exit 3", {"exit_code": 3}), ("kill -9 $$", {"exit_code": 137, "signal": 9}), ("nope", {"exit_code": 127})],
)
def test_the_end_is_a_value(box: GuestBox, text: str, value: dict[str, int]) -> None:
    assert command(box, text).value == value


def test_nul_and_forged_marks_are_output_of_their_own_stream(box: GuestBox) -> None:
    ran = command(box, r"printf 'a\0002b'; printf 'c\0' >&2")
    assert apart(ran) == {STDOUT: "a\x002b", STDERR: "c\0"}


def test_python_runs_too_with_its_arguments_as_they_are(box: GuestBox) -> None:
    ran = command(box, "import sys; print('$(id)', `1` if 0 else 2)".replace("`1` if 0 else ", ""), language="python")
    assert apart(ran)[STDOUT] == "$(id) 2\n"


def test_values_of_variables_are_not_executed(box: GuestBox) -> None:
    odd = "$(touch made) `touch made` \\ \" ' \n é"
    ran = command(box, 'printf %s "$ODD"; ls', env={"ODD": odd})
    assert apart(ran)[STDOUT].startswith(odd)
    assert not (box.workspace / "skill" / "made").exists()


def test_the_skill_is_there_as_a_writable_copy(box: GuestBox) -> None:
    ran = command(box, "scripts/say.sh && echo more >> SKILL.md && pwd && ls")
    assert apart(ran)[STDOUT] == f"said\n{box.workspace}/skill\nSKILL.md\nscripts\n"
    assert (box.root / "skills" / "acme" / "SKILL.md").read_text() == "# Acme\n"


@pytest.mark.parametrize(
    ("workdir", "seen"), [("", ""), ("data/a b", "/data/a b"), ("skill/scripts", "/skill/scripts")]
)
def test_the_working_directory_is_made(box: GuestBox, workdir: str, seen: str) -> None:
    assert apart(command(box, "pwd", workdir=workdir))[STDOUT] == f"{box.workspace}{seen}\n"


def test_inputs_are_files_of_the_command(box: GuestBox) -> None:
    box.mount_blob(f"{PREFIX}9", b"a,b\n")
    ran = command(box, "cat in/data.csv; echo c >> in/data.csv", inputs=[[f"{PREFIX}9", "skill/in/data.csv"]])
    assert apart(ran) == {STDOUT: "a,b\n", STDERR: ""}
    assert (box.root / "blobs" / f"{PREFIX}9").read_bytes() == b"a,b\n"


def test_an_input_over_a_file_of_the_skill_is_refused(box: GuestBox) -> None:
    box.mount_blob(f"{PREFIX}9", b"other")
    ran = command(box, "cat SKILL.md", inputs=[[f"{PREFIX}9", "skill/SKILL.md"]])
    assert ran.failure.type == "SandboxError"
    assert "skill/SKILL.md" in ran.failure.message
    assert ran.logs == ""


def test_an_input_does_not_go_through_a_file(box: GuestBox) -> None:
    box.mount_blob(f"{PREFIX}9", b"other")
    assert command(box, "true", inputs=[[f"{PREFIX}9", "skill/SKILL.md/x"]]).failure.type == "NotADirectoryError"


def test_outputs_come_under_the_number_of_their_pattern(box: GuestBox) -> None:
    made = (
        "mkdir -p out/deep; echo 1 > a.txt; : > empty; echo 2 > out/x.csv; echo 3 > out/y.csv; echo 4 > out/deep/z.csv"
    )
    outputs = [
        "skill/a.txt",
        "skill/empty",
        "skill/out/*.csv",
        "skill/**/*.csv",
        "skill/none",
        "skill/no*.txt",
        "skill/not/there",
    ]
    ran = command(box, made, outputs=outputs)
    assert kept(ran) == {
        "0/skill/a.txt": b"1\n",
        "1/skill/empty": b"",
        "2/skill/out/x.csv": b"2\n",
        "2/skill/out/y.csv": b"3\n",
        "3/skill/out/x.csv": b"2\n",
        "3/skill/out/y.csv": b"3\n",
        "3/skill/out/deep/z.csv": b"4\n",
    }
    assert skipped(ran) == {"4/skill/none": "missing", "6/skill/not/there": "missing"}


def test_links_and_devices_are_not_outputs(box: GuestBox) -> None:
    text = "ln -s /etc/passwd link; ln -s /etc dir; mkfifo pipe; ln -s /dev/zero zero; mkdir d; echo x > d/f"
    ran = command(box, text, outputs=["skill/link", "skill/dir/passwd", "skill/pipe", "skill/zero", "skill/d"])
    assert kept(ran) == {}
    assert set(skipped(ran).values()) == {"kind"}
    assert len(skipped(ran)) == 5
    assert kept(command(box, "true", workdir="", outputs=["skill/**/*"])) == {
        "0/skill/SKILL.md": b"# Acme\n", "0/skill/scripts/say.sh": b"#!/bin/sh\necho said\n", "0/skill/d/f": b"x\n",
    }  # fmt: skip


def test_a_pattern_of_many_stars_gives_each_file_once(box: GuestBox) -> None:
    ran = command(box, "mkdir -p a/b; echo 1 > a/b/f", outputs=["skill/**/**/f"])
    assert kept(ran) == {"0/skill/a/b/f": b"1\n"}


def test_what_is_too_large_is_told(box: GuestBox) -> None:
    ran = command(box, "head -c 100001 /dev/zero > big; echo x > small", outputs=["skill/big", "skill/small"])
    assert kept(ran) == {"1/skill/small": b"x\n"}
    assert skipped(ran) == {"0/skill/big": "size"}


def test_everything_that_the_command_left_is_ended_before_its_files_are_read(box: GuestBox) -> None:
    late = "(trap '' TERM HUP; setsid sh -c 'echo $$ > pid; while :; do echo x >> late; done' & ) ; "
    ran = command(box, late + "while [ ! -s late ]; do :; done; echo done", outputs=["skill/late", "skill/pid"])
    assert apart(ran)[STDOUT] == "done\n"
    pid, now = int(kept(ran)["1/skill/pid"]), (box.workspace / "skill" / "late").read_bytes()
    assert not os.path.exists(f"/proc/{pid}")
    assert kept(ran)["0/skill/late"] == now[: len(kept(ran)["0/skill/late"])]
    assert (box.workspace / "skill" / "late").read_bytes() == now


def test_a_command_without_a_shell_exits_as_in_one(box: GuestBox) -> None:
    ran = command(box, "true", env={"PATH": "/nowhere"})
    assert ran.value in ({"exit_code": 0}, {"exit_code": 127})


def test_a_large_output_is_passed_on_whole_with_marks(box: GuestBox) -> None:
    ran = command(box, "head -c 300000 /dev/zero | tr '\\0' x; head -c 100000 /dev/zero | tr '\\0' y >&2")
    assert apart(ran) == {STDOUT: "x" * 300_000, STDERR: "y" * 100_000}
    assert max(map(len, ran.logs.split("\0"))) <= 64 * 1024
