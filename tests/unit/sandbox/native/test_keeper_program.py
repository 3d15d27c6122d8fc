"""How much of what a guest writes the keeper takes before the server has read it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from skillyard.sandbox.native.inside.walls import DONE
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.program import UNREAD, Caps, Program
from skillyard.sandbox.native.keeper.spool import LINE_BYTES

MIB = 1 << 20
SLACK = 8 * MIB


def turn(loop: Loop, until: Callable[[], bool]) -> None:
    """Let the loop work until something is so; it must become so within ten seconds."""
    out_of_time: list[bool] = []
    bound = loop.after(10, lambda: out_of_time.append(True))

    def look() -> None:
        loop.running = not until() and not out_of_time
        if loop.running:
            loop.after(0.001, look)

    loop.running = True
    look()
    loop.run()
    bound.cancel()
    assert not out_of_time, "it did not happen"


def test_a_guest_waits_for_a_server_that_does_not_read(tmp_path: Path) -> None:
    loop = Loop()
    program = Program(loop, "p", str(tmp_path), Caps(MIB, 4 << 30), lambda _, why: None)
    ours, theirs = socket.socketpair()
    total = 2 * UNREAD
    written = threading.Event()

    def flood() -> None:
        piece = b"x" * MIB
        for _ in range(total // MIB):
            theirs.sendall(piece)
        theirs.sendall(DONE)
        theirs.close()
        written.set()

    program.talk(ours, b"")
    guest = threading.Thread(target=flood)
    guest.start()
    spool = program.spools["channel"]
    turn(loop, lambda: spool.length >= UNREAD)
    idle = threading.Event()
    loop.after(0.3, idle.set)
    turn(loop, idle.is_set)
    assert spool.length <= UNREAD + SLACK
    assert not written.is_set()

    program.taken("channel", spool.length)
    turn(loop, lambda: spool.length > UNREAD + SLACK)
    program.taken("channel", spool.length)
    turn(loop, lambda: spool.closed)
    guest.join(10)
    assert spool.length == total
    program.drop()


def test_what_was_written_before_the_end_is_whole_though_nobody_read(tmp_path: Path) -> None:
    loop = Loop()
    program = Program(loop, "p", str(tmp_path), Caps(MIB, 4 << 30), lambda _, why: None)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    program.talk(ours, b"")
    sent = 0

    def write() -> bool:
        nonlocal sent
        try:
            sent += theirs.send(b"x" * MIB)
        except BlockingIOError:
            return program.spools["channel"].length > UNREAD
        return False

    turn(loop, write)
    theirs.close()
    program.end_of_output()
    assert program.spools["channel"].length == sent
    program.drop()


def test_a_program_waits_for_the_one_reader_of_its_output(tmp_path: Path) -> None:
    loop = Loop()
    program = Program(loop, "p", str(tmp_path), Caps(MIB, MIB, wait=True), lambda _, why: None)
    reading, writing = os.pipe()
    total = 8 * MIB
    ended = threading.Event()

    def flood() -> None:
        for _ in range(total // MIB):
            os.write(writing, b"x" * MIB)
        os.close(writing)
        ended.set()

    program.read_pipe(reading, "stdout")
    writer = threading.Thread(target=flood)
    writer.start()
    line = program.spools["stdout"]
    turn(loop, lambda: line.length >= LINE_BYTES)
    idle = threading.Event()
    loop.after(0.3, idle.set)
    turn(loop, idle.is_set)
    assert line.length <= 2 * LINE_BYTES
    assert not ended.is_set()
    taken = 0

    def take() -> bool:
        nonlocal taken
        taken += len(line.read(taken, MIB))
        program.taken("stdout", taken)
        return line.final and taken == line.length

    turn(loop, take)
    writer.join()
    assert taken == total
    assert list(tmp_path.iterdir()) == []


HEAD = b"B\0\0\0"


@pytest.mark.parametrize(
    ("sent", "heard"),
    [
        ([b"R\0\0\0\x02{}" + DONE], True),
        ([b"R\0\0", b"\0\x02{}Z\0\0", b"\0\0"], True),
        ([HEAD + b"\x05" + DONE], False),
        ([HEAD + b"\x05" + DONE, DONE], True),
        ([DONE + b"x"], False),
        ([HEAD + b"\xff" + DONE], False),
    ],
    ids=[
        "with the result",
        "in pieces",
        "within a frame",
        "behind such a frame",
        "not last",
        "in a frame that goes on",
    ],
)
def test_a_guest_that_is_done_is_heard_before_its_channel_ends(tmp_path: Path, sent: list[bytes], heard: bool) -> None:
    loop, done = Loop(), list[Program]()
    program = Program(loop, "p", str(tmp_path), Caps(MIB, MIB), lambda _, why: None)
    program.on_done = done.append
    ours, theirs = socket.socketpair()
    program.talk(ours, b"")
    spool = program.spools["channel"]
    for piece in sent:
        before = spool.length
        theirs.sendall(piece)
        turn(loop, lambda before=before: spool.length > before or bool(done))  # type: ignore[misc]
    assert bool(done) == heard
    assert spool.length == len(b"".join(sent)) - (len(DONE) if heard else 0)
    theirs.close()
    program.drop()


def test_a_guest_that_is_done_is_heard_though_nobody_read(tmp_path: Path) -> None:
    """It waits for its end, which nobody would bring it before the server reads on."""
    loop, done = Loop(), list[Program]()
    program = Program(loop, "p", str(tmp_path), Caps(MIB, 4 << 30), lambda _, why: None)
    program.on_done = done.append
    ours, theirs = socket.socketpair()
    total = UNREAD + 64 * 1024

    def write() -> None:
        theirs.sendall(b"x" * total + DONE)
        theirs.shutdown(socket.SHUT_WR)

    program.talk(ours, b"")
    guest = threading.Thread(target=write)
    guest.start()
    turn(loop, lambda: bool(done))
    guest.join(10)
    assert program.spools["channel"].length == total
    theirs.close()
    program.drop()
