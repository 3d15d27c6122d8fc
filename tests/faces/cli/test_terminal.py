"""On a terminal: signs of life for what takes long, and nothing that foreign text could steer."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.yardserver import TOKEN, YardServer, completed

BOUND_S = 30


@dataclass
class Terminal:
    """Standard error of a command, as a terminal would get it."""

    master: int
    slave: int
    seen: bytearray = field(default_factory=bytearray)

    def until(self, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + BOUND_S
        while not condition() and time.monotonic() < end:
            if select.select([self.master], [], [], 0.05)[0]:
                self.seen += os.read(self.master, 65536)
        return condition()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    master, slave = pty.openpty()
    yield Terminal(master, slave)
    os.close(master)
    os.close(slave)


def start(
    yard: YardServer,
    tmp_path: Path,
    terminal: Terminal,
    *args: str,
    stdin: int | None = None,
    stdout: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    environ = {
        **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
        "TERM": "xterm",
        "SKILLYARD_URL": yard.url,
        "SKILLYARD_TOKEN": TOKEN,
        "SKILLYARD_DATA_DIR": str(tmp_path),
        "COLUMNS": "60",
    }
    command = [sys.executable, "-m", "skillyard", *args]
    return subprocess.Popen(command, env=environ, stdin=stdin, stdout=stdout, stderr=terminal.slave)


def test_a_long_run_shows_a_sign_of_life(yard: YardServer, tmp_path: Path, terminal: Terminal) -> None:
    enough = threading.Event()

    def run(params: dict[str, Any]) -> dict[str, Any]:
        enough.wait(BOUND_S)
        return completed({"n": 1}, logs_preview="\x1b]0;evil\x07log\n")

    yard.methods["execute_skill"] = run
    command = start(yard, tmp_path, terminal, "run", "a.b")
    assert terminal.until(lambda: b"running" in terminal.seen)
    enough.set()
    assert terminal.until(lambda: command.poll() is not None and b"completed" in terminal.seen)
    out, _ = command.communicate(timeout=BOUND_S)
    assert out == b'{\n  "n": 1\n}\n'
    assert b"\\x1b]0;evil\\x07log" in terminal.seen
    assert b"\x1b]0;evil" not in terminal.seen


def test_a_quick_run_shows_none(yard: YardServer, tmp_path: Path, terminal: Terminal) -> None:
    yard.methods["execute_skill"] = lambda params: completed()
    command = start(yard, tmp_path, terminal, "run", "a.b")
    assert terminal.until(lambda: command.poll() is not None and b"completed" in terminal.seen)
    command.communicate(timeout=BOUND_S)
    assert b"running" not in terminal.seen
    assert b"\x1b" not in terminal.seen


def test_a_long_transfer_shows_how_far_it_is(yard: YardServer, tmp_path: Path, terminal: Terminal) -> None:
    read, write = os.pipe()
    command = start(yard, tmp_path, terminal, "blob", "put", "-", stdin=read)
    os.close(read)
    os.write(write, bytes(1024))
    with os.fdopen(write, "wb", buffering=0) as feed:

        def fed() -> bool:
            feed.write(bytes(4096))
            return b"KiB" in terminal.seen or b"kB" in terminal.seen

        assert terminal.until(fed)
    assert terminal.until(lambda: command.poll() is not None)
    out, _ = command.communicate(timeout=BOUND_S)
    assert out == b"blob:t0\n"


def test_a_long_description_ends_with_the_line_on_a_terminal_alone(
    yard: YardServer, tmp_path: Path, terminal: Terminal
) -> None:
    row = {"name": "a.b", "version": "1.0.0", "kind": "action", "description": "x" * 500}
    yard.methods["list_skills"] = lambda params: {"skills": [row], "next_cursor": None}
    command = start(yard, tmp_path, terminal, "skill", "list", stdout=terminal.slave)
    assert terminal.until(lambda: command.poll() is not None and b"x" in terminal.seen)
    assert max(len(line.rstrip()) for line in terminal.seen.decode().splitlines()) == 60
    out, _ = start(yard, tmp_path, terminal, "skill", "list").communicate(timeout=BOUND_S)
    assert b"x" * 500 in out
