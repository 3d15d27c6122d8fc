"""The standard streams of a jail are those of its program: bytes, waiting, ends, exit codes and signals."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.faces.jail.conftest import BOUND_S, Jails, marked

_MIB = 1 << 20


def test_bytes_go_through_unchanged(jails: Jails) -> None:
    sent = bytes(range(256)) * (4 * _MIB // 256) + b"no newline"
    done = jails.run("--", "cat", stdin=sent)
    assert done.stdout == sent
    assert (done.stderr, done.returncode) == (b"", 0)
    [record] = jails.records()
    assert (record.kind.value, record.status.value) == ("jail", "completed")
    assert record.output == {"exit_code": 0, "bytes": {"stdin": len(sent), "stdout": len(sent), "stderr": 0}}
    assert record.guarantees["network"]["attestor"] == "kernel"


def test_a_files_bytes_go_through_too(jails: Jails, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"from a file\n")
    with (tmp_path / "in").open("rb") as given, (tmp_path / "out").open("wb") as taken:
        process = jails.start("--", "cat", stdin=given, stdout=taken)
        assert process.wait(BOUND_S) == 0
    assert (tmp_path / "out").read_bytes() == b"from a file\n"


def test_a_program_answers_while_its_input_is_open(jails: Jails) -> None:
    process = jails.start("--", "python3", "-uc", "import sys\nfor line in sys.stdin: print(line.strip()[::-1])")
    assert process.stdin is not None
    assert process.stdout is not None
    for word in (b"abc", b"skillyard"):
        process.stdin.write(word + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == word[::-1]
    process.stdin.close()
    assert process.wait(BOUND_S) == 0


def test_exit_codes_are_those_of_the_program(jails: Jails) -> None:
    done = jails.run("--", "sh", "-c", "echo said; echo wrong >&2; exit 41")
    assert (done.stdout, done.stderr, done.returncode) == (b"said\n", b"wrong\n", 41)
    assert jails.run("--", "sh", "-c", "kill -SEGV $$").returncode == 128 + signal.SIGSEGV
    assert jails.run("--", "no-such-program").returncode == 127


def test_a_program_waits_for_a_reader_that_does_not_read(jails: Jails) -> None:
    code = f"import os\nfor n in range(64):\n os.write(2, b'.')\n os.write(1, b'x' * {_MIB})"
    process = jails.start("--", "python3", "-c", code)
    assert process.stdout is not None
    assert process.stderr is not None
    told = _until_silent(process.stderr.fileno())
    assert told < 16, f"{told} MiB were taken that nobody read"
    out, err = process.communicate(timeout=BOUND_S)
    assert (len(out), told + len(err), process.returncode) == (64 * _MIB, 64, 0)


def _until_silent(fd: int) -> int:
    """Returns how many bytes come until none come for a second."""
    found = 0
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while selector.select(BOUND_S if not found else 1.0):
            found += len(os.read(fd, 4096))
            if found >= 64:
                break
        return found


def test_a_closed_output_is_at_its_end_while_the_program_goes_on(jails: Jails) -> None:
    code = "import os, sys\nos.write(1, b'last')\nos.close(1)\nsys.stdin.read()\nos.write(2, b'still here')"
    process = jails.start("--", "python3", "-c", code)
    assert process.stdout is not None
    assert process.stdout.read() == b"last"
    assert process.poll() is None
    _, err = process.communicate(timeout=BOUND_S)
    assert err == b"still here"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_tree(jails: Jails, number: signal.Signals) -> None:
    process, word = _stubborn(jails, "sig")
    process.send_signal(number)
    assert process.wait(BOUND_S) == 128 + number
    assert marked(word) == []
    [record] = jails.records()
    assert record.outcome is not None
    assert record.outcome.value == "cancelled"


STUBBORN = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
else:
    print("ready", flush=True)
while True:
    signal.pause()
"""


def _stubborn(jails: Jails, name: str) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a program that ignores signals and the end of its input, and left a daemon behind."""
    word = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
    process = jails.start("--", "python3", "-c", STUBBORN, word)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert marked(word)
    return process, word
