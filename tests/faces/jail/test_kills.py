"""Kills at work: a jail's client, the jail's own process, and its keeper. Nothing of it is left, counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faces.jail.conftest import Jails, marked, until
from tests.faces.jail.test_reach import serving
from tests.faces.jail.test_streams import STUBBORN

_LEFT_S = 30.0
_CLIENT = "import json, subprocess, sys\nsubprocess.Popen(json.loads(sys.argv[1])).wait()"
_TALKING = f"""
import socket
held = socket.create_connection(("127.0.0.1", int(__import__("sys").argv[2])))
{STUBBORN}
"""


@dataclass
class Alive:
    """A jail at work: its client and all that belongs to it by then."""

    client: subprocess.Popen[bytes]
    jail: int
    keeper: int
    pids: set[tuple[int, str]]
    groups: set[Path]

    def left(self) -> list[str]:
        """Returns the processes and control groups that there are still."""
        told = [f"pid {pid}: {_words(pid)}" for pid, began in self.pids if _began(pid) == began]
        return [*told, *(str(group) for group in self.groups if group.exists())]


def _words(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:300]
    return ""


def _began(pid: int) -> str:
    """Returns the time at which a process began, which tells it from a later one; empty for none and a zombie."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return rest[18] if state != "Z" else ""


def _family(seeds: set[int]) -> set[int]:
    """Returns processes with all that they and theirs started."""
    parents = {pid: _parent(pid) for pid in _numbers()}
    found = set(seeds)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _groups(pid: int) -> set[Path]:
    """Returns the control groups of a process that were made for it."""
    found = set()
    lines: list[str] = []
    with suppress(OSError):  # it has ended
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup", *([controllers.removeprefix("name=")] if controllers else []))
        group = Path(f"{root}/{path}")
        if group.is_dir() and "skillyard" in path:
            found.add(group)
    return found


def _start(jails: Jails, port: int) -> Alive:
    word = f"kill-{os.getpid()}-{time.monotonic_ns()}"
    rule = f"127.0.0.1:{port}"
    words = jails.words("--allow", rule, "--", "python3", "-c", _TALKING, word, str(port))
    client = subprocess.Popen(
        [sys.executable, "-c", _CLIENT, json.dumps(words)],
        env=jails.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    jails.started.append(client)
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    programs: list[int] = []

    def found() -> bool:
        programs[:] = marked(word)
        return len(programs) > 2  # the jail, the program, and the daemon that it left

    until(found, "the daemon of the program", _LEFT_S)
    home = str(jails.home / "jails")
    named = {pid for pid in _numbers() if _names(pid, home)}
    mine = _family(named | set(programs)) - {client.pid, os.getpid()}
    jail = next(pid for pid in programs if _parent(pid) == client.pid)
    keeper = next(pid for pid in named if _names(pid, "ground import main"))
    inside = [pid for pid in programs if pid not in (client.pid, jail)]
    groups = set[Path]().union(*(_groups(pid) for pid in inside))
    pids = {(pid, began) for pid in mine if (began := _began(pid))}
    assert len(inside) >= 2, "the program and the daemon that it left"
    return Alive(client, jail, keeper, pids, groups)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _names(pid: int, word: str) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def _hang_up(alive: Alive) -> None:
    for stream in (alive.client.stdin, alive.client.stdout):
        assert stream is not None
        stream.close()


KILLS: dict[str, Callable[[Alive], None]] = {
    "its client is killed": lambda alive: alive.client.kill(),
    "its client hangs up": _hang_up,
    "the jail is killed": lambda alive: os.kill(alive.jail, 9),
    "its keeper is killed": lambda alive: os.kill(alive.keeper, 9),
}


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS.keys())
def test_nothing_is_left(jails: Jails, kill: Callable[[Alive], None]) -> None:
    with serving([]) as port:
        alive = _start(jails, port)
        assert len(alive.left()) >= 5, "the jail, its keeper, its gate and two processes inside at the least"
        kill(alive)
        with suppress(AssertionError):
            until(lambda: not alive.left(), "the end of all", _LEFT_S)
        assert alive.left() == []
    done = jails.run("--", "true")
    assert done.returncode == 0, done.stderr
    ends = [(record.status.value, record.outcome) for record in jails.records()]
    assert len(ends) == 2
    assert all(outcome is not None for _, outcome in ends), ends
    assert {path.name for path in (jails.home / "jails").iterdir()} == {"0"}
