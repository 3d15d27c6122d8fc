"""A sandbox as its keeper sees it, where the order of two messages is nobody's to choose."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillyard.sandbox.native.inside.walls import DONE, READY
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.program import Caps
from skillyard.sandbox.native.keeper.request import Lease, Shape
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.spool import IN_MEMORY
from skillyard.sandbox.native.linux import kernel
from tests.unit.sandbox.native.places import BarePlace

SHAPE = Shape("base@", "", memory_mb=64, cpus=1.0, pids=16, disk_mb=16)
CAPS = Caps(1 << 16, 1 << 20, 1 << 16, False)


@pytest.fixture
def init() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for the init that a zygote cloned."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def ready() -> list[Sandbox]:
    return []


@pytest.fixture
def box(loop: Loop, tmp_path: Path, ready: list[Sandbox]) -> Iterator[Sandbox]:
    made = Sandbox(loop, "n1", SHAPE, BarePlace(), str(tmp_path))
    made.on_ready = ready.append
    yield made
    made.handed_over([])
    made.release()


def hear(loop: Loop) -> None:
    """Let the loop take what has come."""
    loop.when_idle(lambda: setattr(loop, "running", False))
    loop.running = True
    loop.run()


def test_ready_waits_for_what_it_can_be_killed_by(
    box: Sandbox, loop: Loop, ready: list[Sandbox], init: subprocess.Popen[bytes]
) -> None:
    os.write(box.inside_control.fileno(), READY)
    hear(loop)
    assert ready == []
    assert box.ready_at is None
    box.cloned(init.pid, kernel.pidfd_open(init.pid))
    assert ready == [box]


def test_ready_when_the_zygote_was_first(
    box: Sandbox, loop: Loop, ready: list[Sandbox], init: subprocess.Popen[bytes]
) -> None:
    box.cloned(init.pid, kernel.pidfd_open(init.pid))
    hear(loop)
    assert ready == []
    os.write(box.inside_control.fileno(), READY)
    hear(loop)
    assert ready == [box]
    assert box.ready_at is not None


def test_words_that_break_the_rules_end_it_even_before_the_zygote_spoke(
    box: Sandbox, loop: Loop, init: subprocess.Popen[bytes]
) -> None:
    os.write(box.inside_control.fileno(), b"5")
    hear(loop)
    box.on_dead = lambda *_: setattr(loop, "running", False)
    box.cloned(init.pid, kernel.pidfd_open(init.pid))
    loop.after(10, lambda: setattr(loop, "running", False))
    loop.running = True
    loop.run()
    assert box.dead


def test_a_kept_one_gives_its_init_time_to_end_a_program(
    box: Sandbox, loop: Loop, init: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the files of a session, and on a busy host its init gets no processor for seconds."""
    monkeypatch.setattr("skillyard.sandbox.native.keeper.sandbox.KILL_GRACE_S", 0.0)
    box.lease = Lease("the-key", "task", False, 60_000, "somebody")
    box.cloned(init.pid, kernel.pidfd_open(init.pid))
    program = box.start("p", {"argv": ["true"], "env": {}, "cwd": "/", "stdin": False}, CAPS, None)
    box.kill_program(program, "cancelled", "enough")
    loop.after(0.2, lambda: setattr(loop, "running", False))
    loop.run()
    assert init.poll() is None


def says_done(box: Sandbox, result: bytes) -> list[tuple[bool, bool]]:
    """Has a guest come to its end; returns what is told: whether the sandbox was parting, whether it was dead."""
    told: list[tuple[bool, bool]] = []
    box.on_program_end = lambda box, _: told.append((box.parting, box.dead))
    box.start("p", {}, CAPS, b"{}")
    box.inside_channel.sendall(result + DONE)
    box.inside_channel.shutdown(socket.SHUT_WR)
    return told


@pytest.mark.parametrize(
    ("owner", "output", "unknown", "early"),
    [
        ("run", b"R", False, True),
        ("task", b"R", False, False),
        ("run", b"x" * IN_MEMORY + b"x", False, False),
        ("run", b"R", True, False),
    ],
    ids=["a run's", "a task's", "with much output", "whose use nobody can tell yet"],
)
def test_a_guest_that_is_done_is_told_of_before_its_init_is_gone(
    box: Sandbox,
    loop: Loop,
    init: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    owner: str,
    output: bytes,
    unknown: bool,
    early: bool,
) -> None:
    """Only what needs nothing of the sandbox any more: the rest of an output is read from there."""
    ended: list[Sandbox] = []
    monkeypatch.setattr(box.place, "end", ended.append)
    box.account.meter.used.cpu_seconds = None if unknown else 0.5
    box.on_dead = lambda *_: setattr(loop, "running", False)
    box.lease = Lease("the-key", owner, True, 60_000, "somebody")
    box.cloned(init.pid, kernel.pidfd_open(init.pid))
    told = says_done(box, output)
    loop.after(0.1, lambda: setattr(loop, "running", False))
    loop.run()
    assert ended == [box], "it was told to end first"
    assert told == ([(True, False)] if early else [])
    assert box.parting is early
    init.kill()
    loop.after(60, lambda: setattr(loop, "running", False))
    loop.running = True
    loop.run()
    assert box.dead
    assert told == [(True, False) if early else (False, True)], "it is told once"
    assert box.programs["p"].ending is not None
    assert box.programs["p"].ending["outcome"] == "exit"


def test_an_end_that_somebody_gave_is_told_when_it_is_confirmed(
    box: Sandbox, loop: Loop, init: subprocess.Popen[bytes]
) -> None:
    box.on_dead = lambda *_: setattr(loop, "running", False)
    box.lease = Lease("the-key", "run", True, 60_000, "somebody")
    box.cloned(init.pid, kernel.pidfd_open(init.pid))
    told = says_done(box, b"R")
    box.kill_program(box.programs["p"], "cancelled", "enough")
    loop.after(60, lambda: setattr(loop, "running", False))
    loop.run()
    assert told == [(False, True)]
