"""Ports of a sandbox that are reached from outside, where a backend offers that."""

from __future__ import annotations

import asyncio

from skillyard.domain.errors import InvalidInput, SandboxGone, SkillyardError
from skillyard.domain.sandbox.guarantees import Level
from skillyard.ports.sandbox import ByteStream, Forwarding, Process, Sandbox
from skillyard.testing.sandbox_suite.check import Failed, Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, eventually, look, python, start, until

forwarding = Section("forwarding")

ECHO = """
import socket, sys, threading
family, host = (socket.AF_INET6, '::1') if 'six' in sys.argv else (socket.AF_INET, '127.0.0.1')
server = socket.create_server((host, int(sys.argv[1])), family=family)
print('listens', flush=True)
def serve(there):
    while data := there.recv(65536): there.sendall(data)
    there.close()
while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
FLOOD = """
import socket, sys
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('listens', flush=True)
there, sent = server.accept()[0], 0
there.settimeout(1)
try:
    while sent < 1 << 28: sent += there.send(b'x' * 65536)
except OSError: pass
print('sent', sent, flush=True)
"""
LAST = """
import socket, sys
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('listens', flush=True)
there, got = server.accept()[0], b''
while data := there.recv(65536): got += data
there.sendall(got + b', %d' % len(got))
there.close()
"""
REACH = """
import json, socket, sys
reached = []
for port in sys.argv[1:]:
    try: socket.create_connection(('127.0.0.1', int(port)), 2).close()
    except OSError: continue
    reached.append(port)
print(json.dumps(reached))
"""
PORT = 8000
"""Not 8080: a backend may need that one itself."""


@forwarding.check("forwarding")
async def a_port_inside_is_a_stream_outside(ground: Ground) -> None:
    async with ground.sandbox(forwarding=True) as sandbox:
        await _listening(sandbox, ECHO, str(PORT))
        stream = await _forward(sandbox, PORT)
        for data in (b"hello", bytes(range(256)) * 4096):
            sending = asyncio.create_task(stream.write(data))
            expect(await _exactly(stream, len(data)) == data, "bytes go in and come back as they are")
            await sending
        await stream.close()
        await stream.close()


@forwarding.check("forwarding")
async def ipv6_is_reached_too(ground: Ground) -> None:
    async with ground.sandbox(forwarding=True) as sandbox:
        process = await start(sandbox, python(ECHO, str(PORT), "six"))
        try:
            await until(process, b"listens")
        except AssertionError:
            return  # this kernel has no IPv6
        stream = await _forward(sandbox, PORT)
        await stream.write(b"six")
        expect(await _exactly(stream, 3) == b"six", "a listener of IPv6 alone is reached")
        await stream.close()


@forwarding.check("forwarding")
async def many_connections_are_apart(ground: Ground) -> None:
    async with ground.sandbox(forwarding=True) as sandbox:
        await _listening(sandbox, ECHO, str(PORT))
        streams = [await _forward(sandbox, PORT) for _ in range(20)]
        for number, stream in enumerate(streams):
            await stream.write(b"%04d" % number)
        told = [await _exactly(stream, 4) for stream in streams]
        expect(told == [b"%04d" % number for number in range(20)], "each gets its own bytes", told)
        for stream in streams:
            await stream.close()


@forwarding.check("forwarding")
async def one_direction_ends_before_the_other(ground: Ground) -> None:
    async with ground.sandbox(forwarding=True) as sandbox:
        await _listening(sandbox, LAST, str(PORT))
        stream = await _forward(sandbox, PORT)
        await stream.write(b"all of it")
        await stream.end()
        await stream.end()
        expect(await _exactly(stream, 12) == b"all of it, 9", "who ended its direction gets the rest")
        expect(await stream.read() == b"", "and then the end")
        await stream.close()


@forwarding.check("forwarding")
async def bytes_that_nobody_asked_for_are_seen(ground: Ground) -> None:
    async with ground.sandbox(forwarding=True) as sandbox:
        await _listening(sandbox, ECHO, str(PORT))
        stream = await _forward(sandbox, PORT)
        await stream.write(b"x")
        expect(await _exactly(stream, 1) == b"x" and stream.quiet(), "a connection that stands still is quiet")
        await stream.write(b"y")
        await eventually(lambda: not stream.quiet(), "bytes that came are seen before they are read", 20)
        expect(await _exactly(stream, 1) == b"y" and stream.quiet(), "and it is quiet when they were read")
        await stream.close()
        expect(not stream.quiet(), "and not when it was closed")


@forwarding.check("forwarding")
async def nobody_listening_is_refused(ground: Ground) -> None:
    async with ground.sandbox(forwarding=True) as sandbox:
        for port in (PORT, 1, 65535):
            await _refused(sandbox, port)
        for wrong in (0, -1, 65536):
            await _refused(sandbox, wrong)


@forwarding.check("forwarding")
async def the_end_inside_is_the_end_outside(ground: Ground) -> None:
    async with ground.sandbox(forwarding=True) as sandbox:
        process = await _listening(sandbox, ECHO, str(PORT))
        stream = await _forward(sandbox, PORT)
        await process.kill()
        await process.wait()
        expect(await stream.read() == b"", "a stream ends with the program that held it")
        await stream.close()
        await _refused(sandbox, PORT)
    other = None
    async with ground.sandbox(forwarding=True) as sandbox:
        await _listening(sandbox, ECHO, str(PORT))
        stream = await _forward(sandbox, PORT)
        await stream.write(b"x")
        await _exactly(stream, 1)
        other = stream
    expect(await other.read() == b"", "and with the sandbox")
    try:
        await _forward(sandbox, PORT)
    except (SandboxGone, SkillyardError):
        return
    expect(False, "a destroyed sandbox has no ports")


@forwarding.check("forwarding")
async def ports_of_others_are_not_reached(ground: Ground) -> None:
    """Neither those of another sandbox nor those of the host; and none of ours is seen by them."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    host_port = server.sockets[0].getsockname()[1]
    try:
        async with ground.sandbox(forwarding=True) as one, ground.sandbox(forwarding=True) as other:
            await _listening(one, ECHO, str(PORT))
            stream = await _forward(one, PORT)
            await _refused(other, PORT)
            await _refused(other, host_port)
            seen = await look(other, REACH, str(PORT), str(host_port))
            expect(seen == [], "another sandbox reaches neither", seen)
            seen = await look(one, REACH, str(host_port))
            expect(seen == [], "a forwarded port leads nowhere from inside", seen)
            await stream.close()
    finally:
        server.close()
        await server.wait_closed()


@forwarding.check("forwarding")
async def a_flood_waits_for_its_reader(ground: Ground) -> None:
    async with ground.sandbox(forwarding=True) as sandbox:
        process = await _listening(sandbox, FLOOD, str(PORT))
        stream = await _forward(sandbox, PORT)
        told = (await until(process, b"sent ")).split(b"sent ")[1]
        expect(int(told) < 64 << 20, "a reader that does not read holds the sender", told)
        await stream.close()


@forwarding.check()
async def what_is_offered_is_there(ground: Ground) -> None:
    ability = (await ground.backend.probe()).abilities.get("forwarding")
    if ability is None or ability.level is Level.MISSING:
        expect(ability is None or ability.why, "a backend that cannot forward says why", ability)
        return
    async with ground.sandbox(forwarding=True) as sandbox:
        expect(isinstance(sandbox, Forwarding), "a backend that offers forwarding has the method")


async def _listening(sandbox: Sandbox, source: str, *words: str) -> Process:
    process = await start(sandbox, python(source, *words))
    await until(process, b"listens")
    return process


async def _forward(sandbox: Sandbox, port: int) -> ByteStream:
    if not isinstance(sandbox, Forwarding):
        raise Failed("a backend that offers forwarding has the method")
    return await sandbox.forward(port)


async def _refused(sandbox: Sandbox, port: int) -> None:
    try:
        stream = await _forward(sandbox, port)
    except InvalidInput:
        return
    await stream.close()
    expect(False, "a port on which nobody listens is refused", port)


async def _exactly(stream: ByteStream, size: int) -> bytes:
    got = b""
    while len(got) < size:
        data = await stream.read()
        if not data:
            raise Failed(f"the stream ended after {len(got)} of {size} bytes")
        got += data
    return got
