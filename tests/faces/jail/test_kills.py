"""Kills at work: a jail's client, its own process, its server, keeper and gate. Nothing of it is left, counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.crash.leftovers import GATE, Footprint, gone, idle
from tests.crash.server import Server
from tests.faces.jail.conftest import BOUND_S, Jails, marked, until
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
    gate: int
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


def _client(jails: Jails, port: int) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a client with a jailed program that holds a connection; returns it and the program's mark."""
    word = f"kill-{os.getpid()}-{time.monotonic_ns()}"
    words = jails.words("--allow", f"127.0.0.1:{port}", "--", "python3", "-c", _TALKING, word, str(port))
    client = subprocess.Popen(
        [sys.executable, "-c", _CLIENT, json.dumps(words)],
        env=jails.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    jails.started.append(client)
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    return client, word


def _start(jails: Jails, port: int) -> Alive:
    client, word = _client(jails, port)
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
    gate = next(pid for pid in named if _names(pid, GATE))
    inside = [pid for pid in programs if pid not in (client.pid, jail)]
    groups = set[Path]().union(*(_groups(pid) for pid in inside))
    pids = {(pid, began) for pid in mine if (began := _began(pid))}
    assert len(inside) >= 2, "the program and the daemon that it left"
    return Alive(client, jail, keeper, gate, pids, groups)


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


def _gone(word: str) -> bool:
    return not marked(word)


def _hang_up(alive: Alive) -> None:
    for stream in (alive.client.stdin, alive.client.stdout):
        assert stream is not None
        stream.close()


KILLS: dict[str, Callable[[Alive], None]] = {
    "its client is killed": lambda alive: alive.client.kill(),
    "its client hangs up": _hang_up,
    "the jail is killed": lambda alive: os.kill(alive.jail, 9),
    "its keeper is killed": lambda alive: os.kill(alive.keeper, 9),
    "its gate is killed": lambda alive: os.kill(alive.gate, 9),
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


def test_nothing_is_left_on_a_server(jails: Jails) -> None:
    """One kill after another: the server has what it lost again for the next jail."""
    ends = []
    with serving([]) as port, Server(jails.home, SKILLYARD_SERVER__GRACE_S="0.2") as server:
        footprint = Footprint(jails.home)

        def command(word: str) -> int:
            return next(pid for pid in marked(word) if _names(pid, "skillyard"))

        def hang_up(client: subprocess.Popen[bytes], _: str) -> None:
            for stream in (client.stdin, client.stdout):
                assert stream is not None
                stream.close()

        kills: dict[str, Callable[[subprocess.Popen[bytes], str], object]] = {
            "its client is killed": lambda client, _: client.kill(),
            "its client hangs up": hang_up,
            "the command is killed": lambda _, word: os.kill(command(word), 9),
            "the gate is killed": lambda *_: footprint.kill_gates(),
            "the keeper is killed": lambda *_: footprint.kill_keeper(),
            "the server is killed": lambda *_: server.kill(),
        }
        for name, kill in kills.items():
            client, word = _client(jails, port)
            assert footprint.glance().sandboxed, name
            kill(client, word)
            until(partial(_gone, word), f"the end of its program and its command: {name}", _LEFT_S)
            client.wait(BOUND_S)
            assert client.stderr is not None
            ends.append((name, client.stderr.read()))
            if server.alive:
                idle(footprint, _LEFT_S)
        gone(footprint, _LEFT_S)
        assert not (jails.home / "jails").exists(), "none ran alone"
    with Server(jails.home) as again, again.client() as caller:
        runs = caller.call("runs.list", {"limit": 50})["runs"]
    outcomes = [run["outcome"] for run in reversed(runs)]
    assert outcomes == ["cancelled", "cancelled", "cancelled", "lost", "lost", "lost"]
    said = dict(ends)
    assert b"its way out is lost" in said["the gate is killed"]
    assert all(b"start it again" in said[f"the {part} is killed"] for part in ("gate", "keeper", "server")), said
