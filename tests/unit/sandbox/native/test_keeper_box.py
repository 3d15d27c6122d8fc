"""A sandbox as its keeper sees it, where the order of two messages is nobody's to choose."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillyard.sandbox.native.inside.walls import READY
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.program import Caps
from skillyard.sandbox.native.keeper.request import Lease, Shape
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.linux import kernel
from tests.unit.sandbox.native.places import BarePlace

SHAPE = Shape("base@", "", memory_mb=64, cpus=1.0, pids=16, disk_mb=16)
CAPS = Caps(1 << 16, 1 << 16, 1 << 16, False)


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
