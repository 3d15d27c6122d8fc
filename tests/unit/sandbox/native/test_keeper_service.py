"""A keeper that lost its server ends itself, and one whose server takes no descriptors for a while goes on."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from skillyard.ipc.channel import FrameReader, encode
from skillyard.sandbox.native.keeper.connection import WITH_NEXT_S, Connection
from skillyard.sandbox.native.keeper.ground import Ground
from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Lease, Shape
from skillyard.sandbox.native.keeper.sandbox import Sandbox
from skillyard.sandbox.native.keeper.sandboxes import Sandboxes
from skillyard.sandbox.native.keeper.service import Service
from tests.unit.sandbox.native.places import BarePlace

BOUND_S = 20.0


class Slow:
    """Sandboxes of which one is still ending at the first ``looks`` looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def survey(self) -> list[object]:
        self.looks -= 1
        return [object()] if self.looks >= 0 else []

    def met(self) -> None:
        """Has nothing to offer to a server."""

    def left(self) -> None:
        """Has offered nothing."""


def run(loop: Loop) -> bool:
    """Returns whether the loop ended by itself."""
    late: list[bool] = []

    def stop() -> None:
        late.append(True)
        loop.running = False

    loop.after(BOUND_S, stop)
    loop.running = True
    loop.run()
    return not late


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_a_keeper_without_server_ends_when_its_last_sandbox_is_gone(looks: int) -> None:
    loop, slow = Loop(), Slow(looks)
    Service(loop, cast(Sandboxes, slow), cast(Ground, None), {}, linger_s=0.01)
    assert run(loop)
    assert slow.looks < 0


class Failing(Slow):
    def survey(self) -> list[object]:
        if super().survey():
            raise RuntimeError("a fault of the keeper's")
        return []


def test_a_fault_does_not_keep_it() -> None:
    loop = Loop()
    Service(loop, cast(Sandboxes, Failing(2)), cast(Ground, None), {}, linger_s=0.01)
    assert run(loop)


def test_a_server_that_comes_keeps_it() -> None:
    loop = Loop()
    service = Service(loop, cast(Sandboxes, Slow(0)), cast(Ground, None), {}, linger_s=0.01)
    ours, theirs = socket.socketpair()
    service.connected(Connection(loop, ours, service.heard, service.disconnected))
    loop.after(0.1, theirs.close)
    went: list[str] = []
    loop.after(0.05, lambda: went.append("on"))
    assert run(loop)
    assert went


class Crowded(socket.socket):
    """Refuses descriptors as the kernel does while too many of this user are on their way (unix(7))."""

    refusals = 3

    def sendmsg(self, *args: Any) -> int:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.ETOOMANYREFS, "too many references")
        return super().sendmsg(*args)


def test_descriptors_that_are_refused_are_sent_again() -> None:
    loop = Loop()
    pair = socket.socketpair()
    ours, theirs = Crowded(fileno=pair[0].detach()), pair[1]
    ended: list[Connection] = []
    connection = Connection(loop, ours, lambda *_: None, ended.append)
    given = [socket.socket() for _ in range(2)]
    connection.send({"first": 1}, sockets=given)
    connection.send({"second": 2})
    assert ours.refusals == 2, "the second frame waits for the first"
    got: list[tuple[bytes, int]] = []

    def take() -> None:
        data, fds, _, _ = socket.recv_fds(theirs, 4096, 8, socket.MSG_DONTWAIT)
        for fd in fds:
            socket.close(fd)
        got.append((data, len(fds)))
        if b"second" in b"".join(part for part, _ in got):
            loop.running = False

    loop.watch(theirs.fileno(), 1, lambda _: take())
    assert run(loop)
    assert not ended
    assert connection.open
    assert sum(count for _, count in got) == 2
    assert all(sock.fileno() == -1 for sock in given)
    connection.close()
    theirs.close()


def _frames(sock: socket.socket) -> list[dict[str, Any]]:
    """Returns the headers of the frames that are there now."""
    reader, told = FrameReader(), list[dict[str, Any]]()
    try:
        reader.feed(sock.recv(1 << 16, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return told
    while (frame := reader.next()) is not None:
        told.append(frame[0])
    return told


def test_a_frame_that_may_wait_goes_with_the_next_one() -> None:
    loop = Loop()
    ours, theirs = socket.socketpair()
    connection = Connection(loop, ours, lambda *_: None, lambda _: None)
    connection.send_with_next({"first": 1})
    connection.send_with_next({"second": 2})
    assert _frames(theirs) == []
    connection.send({"third": 3})
    assert _frames(theirs) == [{"first": 1}, {"second": 2}, {"third": 3}]
    connection.send_with_next({"last": 4})
    connection.close()
    connection.send_with_next({"too late": 5})
    loop.after(5 * WITH_NEXT_S, lambda: setattr(loop, "running", False))
    assert run(loop)
    assert theirs.recv(1 << 16) == b""
    theirs.close()


def test_a_frame_that_may_wait_goes_alone_when_no_other_comes() -> None:
    loop = Loop()
    ours, theirs = socket.socketpair()
    connection = Connection(loop, ours, lambda *_: None, lambda _: None)
    connection.send_with_next({"first": 1})
    loop.watch(theirs.fileno(), 1, lambda _: setattr(loop, "running", False))
    assert run(loop)
    assert _frames(theirs) == [{"first": 1}]
    connection.close()
    theirs.close()


def test_a_connection_that_closes_forgets_what_waits() -> None:
    loop = Loop()
    pair = socket.socketpair()
    ours = Crowded(fileno=pair[0].detach())
    connection = Connection(loop, ours, lambda *_: None, lambda _: None)
    given = [socket.socket()]
    connection.send({"first": 1}, sockets=given)
    connection.close()
    loop.after(0.05, lambda: setattr(loop, "running", False))
    loop.on_fault = pytest.fail
    assert run(loop)
    assert given[0].fileno() == -1
    pair[1].close()


class Holding(Slow):
    """These sandboxes are held."""

    def __init__(self, *sandboxes: Sandbox) -> None:
        super().__init__(0)
        self.all = {sandbox.handle: sandbox for sandbox in sandboxes}


def _tell(sandboxes: Holding, loop: Loop, header: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what a keeper tells a server that connects, says one thing and goes."""
    service = Service(loop, cast(Sandboxes, sandboxes), cast(Ground, None), {}, linger_s=0.01)
    ours, theirs = socket.socketpair()
    service.connected(Connection(loop, ours, service.heard, service.disconnected))
    theirs.sendall(encode(header))
    loop.after(0.05, lambda: theirs.shutdown(socket.SHUT_WR))
    assert run(loop)
    hello, *told = _frames(theirs)
    theirs.close()
    assert hello["event"] == "hello"
    return told


@pytest.mark.parametrize("asked", [True, False])
def test_a_start_without_a_sandbox_is_told_either_way(asked: bool) -> None:
    """A start that wants no answer has its end announced: its caller waits for that."""
    told = _tell(Holding(), Loop(), {"op": "start", "handle": "gone", "id": "p", **({"q": 7} if asked else {})})
    if asked:
        assert (told[0]["a"], "gone" in told[0]) == (7, True)
    else:
        assert told == [{"event": "end", "handle": "gone", "id": "p", "gone": False}]


@pytest.mark.parametrize("argv", [["true"], None], ids=["a program", "a guest"])
def test_a_start_behind_the_end_of_init_is_told_as_one_without_a_sandbox(
    tmp_path: Path, argv: list[str] | None
) -> None:
    """A limit ends a sandbox while somebody starts a program, and the keeper hears of the end behind that."""
    loop = Loop()
    box = Sandbox(
        loop, "n1", Shape("base@", "", memory_mb=64, cpus=1.0, pids=16, disk_mb=16), BarePlace(), str(tmp_path)
    )
    box.lease = Lease("the-key", "task", False, 60_000, "somebody")
    box.handed_over([])  # of the inner ends nobody has one now
    if argv is None:
        assert box.channel is not None
        box.channel.close()
        box.channel = None
    start = {"op": "start", "handle": "n1", "id": "p", "q": 7, "argv": argv, "env": {}, "cwd": "/", "stdin": False}
    bounds = dict.fromkeys(("log_bytes", "channel_bytes", "stderr_bytes"), 1 << 16) | {"ring": False, "tied": False}
    told = _tell(Holding(box), loop, start | bounds | {"timeout_ms": 1000})
    box.release()
    assert told == [{"a": 7, "gone": "the sandbox has ended"}]
    assert not box.programs
