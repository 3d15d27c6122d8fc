"""Attacks by heads and answers of services that have no end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from resource import getpagesize

from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, NotShown, escaped
from skillyard.verify.front import ANSWER_S, Answer
from skillyard.verify.listening import OFFER, PAUSE_S, Service, add

FLOODS = Family("floods", invariants=(7,))

_MIB = 1024 * 1024
_MOST_GROWTH = 96 * _MIB
"""Memory that the server may take for answers of one service, with what its allocator keeps."""

_HEADS = r"""
    part = {
        "/fields": b"x-a: b\r\n", "/field": b"y" * 4096, "/interim": b"HTTP/1.1 103 Hints\r\n\r\n",
        "/extension": b"z" * 4096, "/trailers": b"x-a: b\r\n",
    }[path]
    start = {
        "/fields": OK, "/field": OK + b"x-a: ", "/interim": b"",
        "/extension": OK + b"transfer-encoding: chunked\r\n\r\n1;",
        "/trailers": OK + b"transfer-encoding: chunked\r\n\r\n0\r\n",
    }[path]
    peer.sendall(start)
    while True:
        peer.sendall(part * 64)
"""


async def _heads(service: Service) -> Judgement:
    before = _memory()
    for path in ("/fields", "/field", "/interim", "/extension", "/trailers"):
        asking = asyncio.create_task(service.front.say(service.request(path), ANSWER_S * 6))
        most = before
        while not asking.done():
            await asyncio.wait((asking,), timeout=PAUSE_S)
            most = max(most, _memory())
        said = asking.result()
        if len(said.raw) > _MIB:
            return escaped(f"{path[1:]}: {len(said.raw)} bytes of a head came out")
        if not said.raw:
            return escaped(f"{path[1:]}: the server still reads it after {ANSWER_S * 6:.0f} s")
        if most - before > _MOST_GROWTH:
            return escaped(f"{path[1:]}: the server took {(most - before) // _MIB} MiB")
    return CONTAINED


add(
    FLOODS,
    "heads",
    "Send header fields, interim answers and trailers without an end.",
    _HEADS,
    _heads,
    alone=True,
)

_DRIPPING = r"""
    said = b"x-a: b\r\n" * 1000
    peer.sendall(b"HTTP/1.1 200 OK\r\n" if path == "/fields" else b"")
    for at in range(len(said)):
        peer.sendall(said[at : at + 1] if path == "/fields" else b"HTTP/1.1 103 Hints\r\n\r\n"[at % 22 : at % 22 + 1])
        time.sleep(0.1)
"""


async def _dripping(service: Service) -> Judgement:
    async def one(path: str) -> Answer:
        return await service.front.say(service.request(path), ANSWER_S * 5)

    for path, said in zip(("/fields", "/interim"), await asyncio.gather(one("/fields"), one("/interim")), strict=True):
        if said.status not in (502, 504):
            return escaped(f"{path[1:]}: a head that drips holds its connection: {said.raw[:100]!r}")
    return CONTAINED


add(FLOODS, "dripping", "Hold connections by a head that comes a byte at a time.", _DRIPPING, _dripping)

_BODIES = r"""
    if path == "/ws":
        start = SWITCHING + accept(head) + b"\r\n"
    elif path == "/chunks":
        start = OK + b"transfer-encoding: chunked\r\n\r\n"
    else:
        start = OK + b"content-length: 1000000000000\r\n\r\n"
    peer.sendall(start)
    part = b"10000\r\n" + b"x" * 65536 + b"\r\n" if path == "/chunks" else b"x" * 65536
    while True:
        peer.sendall(part)
"""


async def _bodies(service: Service) -> Judgement:
    """Watches the memory of this process while nobody reads endless answers."""
    before, held = _memory(), []
    try:
        for path, more in (("/body", b""), ("/chunks", b""), ("/ws", OFFER)):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.front.port, limit=1024)
            held.append(writer)
            writer.write(service.request(path, more))
            if not await reader.readexactly(12):
                raise NotShown("no answer came")
        for _ in range(30):
            await asyncio.sleep(PAUSE_S)
            if (grown := _memory() - before) > _MOST_GROWTH:
                return escaped(f"the server took {grown // _MIB} MiB")
    except asyncio.IncompleteReadError as error:
        raise NotShown(f"no answer came: {error.partial!r}") from None
    finally:
        for writer in held:
            writer.transport.abort()
    return CONTAINED


add(
    FLOODS,
    "bodies",
    "Fill the server's memory with answers that their caller does not read.",
    _BODIES,
    _bodies,
    alone=True,
)


def _memory() -> int:
    """Returns the resident memory of this process, which serves the answers, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * getpagesize()
