"""Sandboxes with the host's network that may listen: nobody but their server reaches them, and they reach nobody."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from skillyard.domain.errors import InvalidInput
from skillyard.domain.work.limits import Limits
from skillyard.ports.sandbox import Forwarding, Sandbox
from skillyard.sandbox.native.grounds.landlock.ports import MOST_LISTENERS
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import fresh, look, python, start, until
from tests.hosts.landlock.test_attacks import through, tried

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.ordinary,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the attacks name system calls by x86_64's numbers"),
]

SERVE = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", server.getsockname()[1], flush=True)
while True:
    there, whence = server.accept()
    print("came", *whence, flush=True)
    there.sendall(sys.argv[2].encode())
    there.close()
"""
STRANGER = """
import os, socket, struct, sys
port, user = map(int, sys.argv[1:])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
got = []
any_address = struct.pack("=HH124x", 2, 0)
for key in (None, b"", bytes(80), b"guess"):
    with socket.socket() as sock:
        sock.settimeout(0.3)
        try:
            if key: sock.setsockopt(6, 32, any_address + struct.pack("=BBHi80s", 1, 0, len(key), 0, key))
            sock.connect(("127.0.0.1", port))
        except OSError: continue
        got.append("connected with %s" % key)
for address in ("127.0.0.1", "0.0.0.0"):
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try: sock.bind((address, port))
        except OSError: continue
        got.append("took the port")
print(*got, sep="; ")
"""
OTHER = 64_414


@asynccontextmanager
async def listening(ground: Ground, port: int, says: str) -> AsyncIterator[tuple[Sandbox, int]]:
    """Gives a sandbox that listens on ``port``, and the host's port that this is."""
    async with ground.sandbox(forwarding=True) as sandbox:
        process = await start(sandbox, python(SERVE, str(port), says))
        yield sandbox, int((await until(process, b"\n")).split()[1])


async def said_on(sandbox: Sandbox, port: int) -> bytes:
    assert isinstance(sandbox, Forwarding)
    stream = await sandbox.forward(port)
    try:
        return await stream.read()
    finally:
        await stream.close()


async def test_without_it_there_is_no_socket(ground: Ground) -> None:
    body = """
for family in (1, 2, 10): attempt('socket %d' % family, socket.socket, family, 1)
one, two = socket.socketpair()
for name, number in (('bind', 49), ('listen', 50), ('accept', 43), ('connect', 42)):
    attempt(name, call, number, one.fileno(), 0, 0)
"""
    assert set((await tried(ground, body)).values()) == {"EAFNOSUPPORT", "EPERM"}
    async with ground.sandbox() as sandbox:
        assert isinstance(sandbox, Forwarding)
        with pytest.raises(InvalidInput):
            await sandbox.forward(8080)


async def test_two_sandboxes_have_the_same_port(ground: Ground) -> None:
    async with listening(ground, 8080, "one") as (one, first), listening(ground, 8080, "two") as (two, second):
        assert first != second
        assert [await said_on(one, 8080), await said_on(two, 8080)] == [b"one", b"two"]
        for sandbox, other in ((one, second), (two, first), (one, first)):
            assert isinstance(sandbox, Forwarding)
            with pytest.raises(InvalidInput):
                await sandbox.forward(other)


async def test_others_of_the_host_reach_no_port(ground: Ground) -> None:
    """Neither by connecting nor by taking it."""
    async with listening(ground, 8080, "here") as (sandbox, port):
        assert isinstance(sandbox, Forwarding)
        with closing(socket.socket()) as stranger:
            stranger.settimeout(0.3)
            with pytest.raises(TimeoutError):
                stranger.connect(("127.0.0.1", port))
        stream = await sandbox.forward(8080)
        assert await stream.read() == b"here"
        if os.geteuid() == 0:
            words = (sys.executable, "-I", "-S", "-c", STRANGER, str(port), str(OTHER))
            ran = await asyncio.to_thread(subprocess.run, words, capture_output=True, timeout=30)
            assert ran.stdout == b"\n", (ran.stdout, ran.stderr)
        await stream.close()


async def test_nothing_is_reached_from_inside(ground: Ground) -> None:
    body = """
port, other = map(int, sys.argv[1:])
def opened(kind=1, family=2): return socket.socket(family, kind)
def with_option(level, option, value):
    with opened() as sock: sock.setsockopt(level, option, value)
for target in (port, other):
    address = ('127.0.0.1', target)
    attempt('connect %d' % target, opened().connect, address)
    attempt('fast open %d' % target, opened().sendto, b'x', 0x20000000, address)
    attempt('send %d' % target, opened().sendto, b'x', address)
for family, kind, protocol in ((2, 2, 0), (2, 3, 1), (10, 2, 0), (1, 1, 0), (16, 3, 0), (17, 3, 0), (40, 1, 0),
                               (2, 1, 262), (2, 1, 132), (43, 1, 0), (2, 5, 132)):
    attempt('socket %d %d %d' % (family, kind, protocol), socket.socket, family, kind, protocol)
signature = bytes(216)
for level, option, value in ((1, 25, b'eth0'), (1, 25, b''), (1, 62, 0), (1, 27, 0), (1, 44, 0), (1, 36, 1), (1, 60, 1),
                             (6, 14, signature), (6, 32, signature), (6, 38, signature), (6, 30, 1), (6, 23, 5),
                             (6, 31, b'tls'), (6, 19, 1), (6, 13, b'reno'), (0, 15, 1)):
    attempt('option %d %d' % (level, option), with_option, level, option, value)
import fcntl
for where, sock in (('tcp', opened()), ('unix', socket.socketpair()[0])):
    for request in (0x8910, 0x8912, 0x8913, 0x8915, 0x8927, 0x8946, 0x8914):
        attempt('interfaces %s %x' % (where, request), fcntl.ioctl, sock, request, bytearray(64))
server = socket.create_server(('127.0.0.1', 0))
attempt('connect again', server.connect, ('127.0.0.1', port))
attempt('disconnect', call, 42, server.fileno(), bytes(16), 16)
server.shutdown(socket.SHUT_RD)
attempt('listen again', server.listen)
attempt('accept nobody', opened().accept)
attempt('address of another host', opened().bind, ('10.0.0.1', 80))
attempt('address of nobody', call, 49, opened().fileno(), 1, 16)
attempt('short address', call, 49, opened().fileno(), bytes(4), 4)
attempt('descriptor of nobody', call, 49, 999, bytes(16), 16)
attempt('file', call, 49, os.open('/dev/null', 0), bytes(16), 16)
attempt('pair', call, 50, socket.socketpair()[0].fileno(), 5)
"""
    with closing(socket.create_server(("127.0.0.1", 0))) as host:
        async with listening(ground, 8080, "other") as (_, port):
            told = await tried(ground, body, str(host.getsockname()[1]), str(port), forwarding=True)
        assert through(told) == {}
        host.setblocking(False)
        with pytest.raises(BlockingIOError):
            host.accept()


async def test_a_listener_behaves_as_elsewhere(ground: Ground) -> None:
    source = """
import json, socket
told = {}
def attempt(name, function, *args):
    try: told[name] = function(*args)
    except OSError as error: told[name] = error.errno
first = socket.create_server(('', 8080))
attempt('taken', lambda: socket.create_server(('127.0.0.1', 8080)) and 0)
attempt('six', lambda: bool(socket.create_server(('::1', 8080), family=socket.AF_INET6)))
first.close()
attempt('again', lambda: bool(socket.create_server(('127.0.0.1', 8080))))
attempt('low', lambda: bool(socket.create_server(('127.0.0.1', 80))))
free = socket.socket(); free.bind(('', 0)); port = free.getsockname()[1]; free.close()
server = socket.create_server(('127.0.0.1', port))
attempt('twice', lambda: server.listen(5) or 0)
attempt('bound', server.bind, ('127.0.0.1', 9))
bare = socket.socket(); bare.listen()
attempt('bare', lambda: bare.getsockname()[1] > 0)
attempt('blocks', lambda: socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK).getblocking())
attempt('inherited', lambda: socket.socket().get_inheritable())
attempt('waits', lambda: (server.settimeout(0.01), server.accept()))
import asyncio
async def serve():
    async with await asyncio.start_server(lambda r, w: None, '127.0.0.1', 8090) as made: return len(made.sockets) > 0
attempt('asyncio', lambda: asyncio.run(serve()))
print(json.dumps(told))
"""
    told = await ground.look(source, forwarding=True)
    timed_out = told.pop("waits")
    assert timed_out is None
    assert told == {
        "taken": errno.EADDRINUSE, "six": True, "again": True, "low": True, "twice": 0, "bound": errno.EINVAL,
        "bare": True, "blocks": False, "inherited": False, "asyncio": True,
    }  # fmt: skip


FLOOD = """
import json, os, socket, threading, time
kept, made, until = [], [], time.monotonic() + 2
def flood():
    while time.monotonic() < until:
        try:
            sock = socket.socket()
            kept.append(sock)
            made.append(1)
            sock.bind(("127.0.0.1", 0))
            if len(made) % 2: sock.listen()
        except OSError: pass
        if len(kept) > 40: kept.pop(0).close()
print("begins", flush=True)
threads = [threading.Thread(target=flood) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("made", len(made), flush=True)
time.sleep(60)
"""


async def test_a_flood_of_sockets_takes_no_ports_of_the_host_and_holds_up_nobody(ground: Ground) -> None:
    async with ground.sandbox(Limits(pids=64, timeout_ms=60_000), forwarding=True) as sandbox:
        process = await start(sandbox, python(FLOOD))
        await until(process, b"begins")
        async with listening(ground, 8080, "beside") as (beside, _):
            assert await said_on(beside, 8080) == b"beside"
        told = await until(process, b"made ")
        assert int(told.split()[-1]) > 3 * MOST_LISTENERS, told
        await process.kill()


async def test_few_sockets_at_a_time_have_a_port_of_the_host(ground: Ground) -> None:
    source = """
import errno, json, socket
answers, kept = [], []
def listen(sock):
    try: sock.listen()
    except OSError as error: return errno.errorcode[error.errno]
    return 0
for _ in range(24):
    kept.append(socket.socket())
    kept[-1].bind(("127.0.0.1", 0))
    answers.append(listen(kept[-1]))
early = [socket.socket() for _ in range(20)]
for sock in early[-16:]: sock.bind(("127.0.0.1", 0))
late = [listen(early[0])]
for sock in kept: sock.close()
late.append(listen(early[-1]))
print(json.dumps([answers, late]))
"""
    answers, late = await ground.look(source, forwarding=True)
    assert answers == [0] * MOST_LISTENERS + ["ENOBUFS"] * (24 - MOST_LISTENERS)
    assert late == ["EPERM", 0]


async def test_a_killed_program_leaves_no_call_and_no_port(ground: Ground) -> None:
    """Programs that are killed while a call of theirs waits stop neither the keeper nor the next program."""
    source = """
import os, signal, socket, sys
for _ in range(60):
    if (pid := os.fork()) == 0:
        while True: socket.socket().bind(("127.0.0.1", 0))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""
    async with ground.sandbox(forwarding=True) as sandbox:
        assert await look(sandbox, source + "print(1)") == 1
        process = await sandbox.start(python(SERVE, "8080", "after"), id=fresh("program"))
        await until(process, b"listens")
        assert await said_on(sandbox, 8080) == b"after"
        await process.kill()
        await process.wait()
        assert isinstance(sandbox, Forwarding)
        with pytest.raises(InvalidInput):
            await sandbox.forward(8080)
