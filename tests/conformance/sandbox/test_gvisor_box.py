"""What comes from a sentry is hostile: a keeper that hears it loses that sandbox and nothing else."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.ipc.channel import read_object
from skillyard.sandbox.native.grounds.namespaces.mounts import Shower, new_tree
from skillyard.sandbox.native.inside.walls import READY
from skillyard.sandbox.native.keeper import messages
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Shape
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.linux import kernel
from skillyard.testing.sandbox_suite.ground import descriptors
from tests.unit.sandbox.native.places import gvisor_place

SHAPE = Shape("base@", "", memory_mb=64, cpus=1.0, pids=16, disk_mb=16)
LIES = (
    b"[" * 100_000,
    b"\xff\xfe",
    b"null",
    b'"ready"',
    b"{}",
    b'{"weighed":-1}',
    b'{"weighed":true}',
    b'{"weighed":1e400}',
    b'{"ended":"p","status":"0"}',
    b'{"ended":["p"],"status":0,"cpu":0,"rss":0}',
    b'{"ended":"p","status":0,"cpu":null,"rss":0}',
    b'{"not_lent":"never started"}',
    b'{"idle_worker_gone":{}}',
)


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="what a box shows is a mount, which an ordinary user makes in the keeper's namespace alone",
)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def ready() -> list[Sandbox]:
    return []


@pytest.fixture
def sentry() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for a runsc."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def box(
    loop: Loop, tmp_path: Path, ready: list[Sandbox], sentry: subprocess.Popen[bytes]
) -> Iterator[tuple[Sandbox, socket.socket]]:
    """And the other end of its control socket."""
    os.close(new_tree())  # or nothing is begun: a container's root may make no mounts
    place = gvisor_place(loop, SHAPE)
    made = Sandbox(loop, "n1", SHAPE, place, str(tmp_path))
    made.on_ready = ready.append
    theirs = made.inside_control.dup()
    place.started(made, sentry.pid, kernel.pidfd_open(sentry.pid), "ptrace", [])
    yield made, theirs
    made.release()
    place.release()
    theirs.close()


def hear(loop: Loop) -> None:
    loop.when_idle(lambda: setattr(loop, "running", False))
    loop.running = True
    loop.run()


def until_dead(loop: Loop, box: Sandbox) -> None:
    box.on_dead = lambda *_: setattr(loop, "running", False)
    loop.after(10, lambda: setattr(loop, "running", False))
    loop.running = True
    loop.run()
    assert box.dead


@pytest.mark.parametrize("room", range(4))
def test_a_place_that_cannot_be_made_holds_nothing(room: int, loop: Loop) -> None:
    """A place takes four descriptors: two trees and a pipe."""
    os.close(new_tree())
    shower = Shower(Loop())
    before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            filled.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(256))
        for _ in range(room):
            os.close(filled.pop())
        with pytest.raises(OSError, match="Too many open files"):
            gvisor_place(loop, SHAPE, shower)
    finally:
        for fd in filled:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert descriptors() == before


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie[:30].decode("latin-1"))
def test_a_lie_ends_the_sandbox_that_tells_it(lie: bytes, box: tuple[Sandbox, socket.socket], loop: Loop) -> None:
    made, theirs = box
    theirs.send(lie)
    until_dead(loop, made)


def test_ready_is_said_once(box: tuple[Sandbox, socket.socket], loop: Loop, ready: list[Sandbox]) -> None:
    """A sandbox that were ready twice would be lent twice."""
    made, theirs = box
    for _ in range(2):
        theirs.send(READY)
    until_dead(loop, made)
    assert ready == [made]


def test_descriptors_that_are_sent_are_closed(box: tuple[Sandbox, socket.socket], loop: Loop) -> None:
    _, theirs = box
    before = descriptors()
    with open(os.devnull, "rb") as file:
        sent = array("i", [file.fileno()] * 8)
        theirs.sendmsg([b'{"weighed":1}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
    hear(loop)
    assert descriptors() == before


def test_a_talker_does_not_keep_the_keeper_from_others(box: tuple[Sandbox, socket.socket], loop: Loop) -> None:
    _, theirs = box
    theirs.setblocking(False)
    fired: list[bool] = []
    loop.after(0, lambda: fired.append(True))

    def talk() -> None:
        try:
            while True:
                theirs.send(b'{"weighed":1}')
        except BlockingIOError:
            return

    talk()
    hear(loop)
    assert fired


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["ready", "ended", "status", "weighed"]), inner),
)


@given(JSON | st.binary())
def test_anything_is_a_message_or_refused(said: Any) -> None:
    raw = said if isinstance(said, bytes) else json.dumps(said).encode()
    try:
        message = messages.read(read_object(raw, messages.MOST_BYTES))
    except ValueError:
        return
    assert all(isinstance(value, bool | int | float | str) for value in message.values())
