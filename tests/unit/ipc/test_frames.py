"""Sockets travel beside the frame that names them, whatever the stream takes at once."""

from __future__ import annotations

import os
import socket

import pytest

from skillyard.ipc.channel import AT_ONCE, BESIDE, FrameReader, Outbox, encode
from skillyard.ipc.packets import descriptors


def pipes(count: int) -> list[socket.socket]:
    return [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]


def inodes(sockets: list[socket.socket]) -> list[int]:
    return [os.fstat(sock.fileno()).st_ino for sock in sockets]


class Reader:
    """Frames as they come, with the inodes of their descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = FrameReader()
        self.got: list[tuple[dict[str, object], list[int]]] = []

    def read(self, most: int) -> None:
        try:
            data, beside, flags, _ = self._sock.recvmsg(most, BESIDE, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        assert not flags & socket.MSG_CTRUNC
        self._frames.feed(data, descriptors(beside))
        while (frame := self._frames.next()) is not None:
            header, _, mine = frame
            self.got.append((header, [os.fstat(fd).st_ino for fd in mine]))
            for fd in mine:
                os.close(fd)


@pytest.mark.parametrize("piece", [7, 4096, 1 << 20])
def test_each_frame_comes_with_its_own(piece: int) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    outbox, reader = Outbox(ours), Reader(theirs)
    wanted = []
    for number, (count, size) in enumerate(
        [(0, 10), (2, 10), (0, 200_000 if piece > 7 else 9000), (1, 0), (260, 30), (0, 1)]
    ):
        sockets = pipes(count)
        wanted.append(({"n": number}, inodes(sockets)))
        outbox.put(encode({"n": number}, b"x" * size, count), sockets)
    for _ in range(100_000):
        done = outbox.flush()
        reader.read(piece)
        if done and len(reader.got) == len(wanted):
            break
    assert reader.got == wanted
    ours.close()
    theirs.close()


def test_what_is_never_sent_is_closed() -> None:
    ours, theirs = socket.socketpair()
    sockets = pipes(AT_ONCE + 1)
    outbox = Outbox(ours)
    outbox.put(b"frame", sockets)
    outbox.drop()
    assert all(sock.fileno() == -1 for sock in sockets)
    assert outbox.flush()
    ours.close()
    theirs.close()


def test_nobody_reads_it() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    outbox, sockets = Outbox(ours), pipes(1)
    outbox.put(b"frame", sockets)
    with pytest.raises(OSError, match="pipe"):
        outbox.flush()
    outbox.drop()
    assert sockets[0].fileno() == -1
    ours.close()
