"""A channel carries frames and their descriptors in order, and a bad one ends it without an exception."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from skillyard.ipc.channel import HEAD, Channel, Header, encode

pytestmark = pytest.mark.anyio


async def test_messages_and_their_descriptors_arrive_in_order_and_whole() -> None:
    ours, theirs = socket.socketpair()
    got: list[tuple[Header, list[int]]] = []
    lost = asyncio.Event()
    one = Channel(asyncio.get_running_loop(), ours, lambda *_: None, lambda: None)
    Channel(asyncio.get_running_loop(), theirs, lambda message, _, fds: got.append((message, fds)), lost.set)
    for number in range(60):
        made = [socket.socket() for _ in range(number % 7)]
        one.send({"number": number, "text": "x" * (number * 3001)}, sockets=made)
    async with asyncio.timeout(20):
        while len(got) < 60:
            await asyncio.sleep(0)
    for number, (message, fds) in enumerate(got):
        assert (message["number"], len(message["text"]), len(fds)) == (number, number * 3001, number % 7)
        for fd in fds:
            os.close(fd)
    one.close()
    async with asyncio.timeout(20):
        await lost.wait()
    sock = socket.socket()
    one.send({"late": True}, sockets=[sock])  # nobody is there: it is closed, not leaked
    assert sock.fileno() == -1


@pytest.mark.parametrize(
    "frame",
    [
        *(HEAD.pack(len(header), 0) + header for header in (b"{", b"[" * 100_000, b"5", b"\xff", b"null")),
        HEAD.pack(2, 1 << 31) + b"{}",
        b"\xff" * 64,
        *(encode({"sockets": count}) for count in (1, -1, True, "1", 1e9)),
    ],
)
async def test_a_frame_that_is_not_a_message_ends_the_channel_and_raises_nothing(frame: bytes) -> None:
    ours, theirs = socket.socketpair()
    lost = asyncio.Event()
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    Channel(asyncio.get_running_loop(), ours, lambda *_: None, lost.set)
    with theirs:
        theirs.sendall(frame)
        async with asyncio.timeout(20):
            await lost.wait()
    assert not failed


async def test_a_message_that_cannot_be_taken_does_not_hold_up_the_next() -> None:
    ours, theirs = socket.socketpair()
    taken, second = list[Header](), asyncio.Event()
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))

    def take(message: Header, *_: object) -> None:
        taken.append(message)
        if len(taken) == 1:
            raise KeyError("what is missing")
        second.set()

    channel = Channel(asyncio.get_running_loop(), ours, take, lambda: None)
    with theirs:
        theirs.sendall(2 * encode({}))
        async with asyncio.timeout(20):
            await second.wait()
        channel.close()
    assert [type(context["exception"]) for context in failed] == [KeyError]


async def test_descriptors_of_a_frame_that_is_not_whole_are_closed() -> None:
    ours, theirs = socket.socketpair()
    lost = asyncio.Event()
    Channel(asyncio.get_running_loop(), ours, lambda *_: None, lost.set)
    reading, writing = os.pipe()
    with theirs:
        socket.send_fds(theirs, [encode({}, sockets=1)[:-1]], [writing])
    os.close(writing)
    async with asyncio.timeout(20):
        await lost.wait()
    assert os.read(reading, 1) == b"", "nobody holds the other end"
    os.close(reading)
