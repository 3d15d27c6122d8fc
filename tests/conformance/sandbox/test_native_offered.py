"""Sandboxes that wait are offered to the server, which hands a request to their worker without the keeper."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.sandbox.spec import Guest, Start
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.ipc.channel import is_quiet
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.link import Link
from skillyard.sandbox.native.protocol import mark_begun
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import code, done, fresh, processes
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
READY = 2
LENGTH = "def main(args): return {'length': len(args['text'])}"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    backend = NativeBackend(tmp_path / "run", NativeSettings(ready=READY))
    if not (found := await backend.probe()).ready:
        await backend.close()
        pytest.skip(found.facts["why"])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ground = Ground(backend, scratch)
    try:
        sandbox = await backend.create(await ground.spec(single=True), fresh("key"))
        if sandbox.made != "made in C":
            pytest.skip("without the compiled part no sandbox is for one program alone")
        await backend.destroy(sandbox.handle)
        yield ground
    finally:
        await backend.close()


def native(ground: Ground) -> NativeBackend:
    assert isinstance(ground.backend, NativeBackend)
    return ground.backend


def link_of(ground: Ground) -> Link:
    link = native(ground)._link
    assert link is not None
    return link


async def offered(link: Link, least: int = READY) -> dict[str, socket.socket]:
    """Returns what the keeper offered, by handle, once it is so much."""
    async with asyncio.timeout(60):
        while sum(map(len, link._ready.values())) < least:
            await asyncio.sleep(0.01)
    return {handle: end for ready in link._ready.values() for handle, end in ready.items()}


async def launched(ground: Ground, guest: Guest, limits: Limits | None = None) -> tuple[str, dict[str, Any]]:
    """Returns the handle of a sandbox that was launched, and what its program gave."""
    spec = await ground.spec(*(() if limits is None else (limits,)), single=True)
    sandbox = (await native(ground).launch(spec, fresh("key"), Start(guest, "p", 60_000))).sandbox
    got = await done(await sandbox.start(guest, id="p"))
    await native(ground).destroy(sandbox.handle)
    assert got.ending.outcome is Outcome.EXIT, got
    return sandbox.handle, {"channel": got.channel}


@contextmanager
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bool, int]]]:
    """Yields which sandbox each create named, whether it was begun, and the bytes that went to the keeper."""
    told: list[tuple[str, bool, int]] = []
    ask = Link.ask

    def listen(link: Link, header: dict[str, Any], body: bytes = b"", **how: Any) -> Any:
        if header["op"] == "create":
            told.append((header["take"], header["begun"], len(body)))
        return ask(link, header, body, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Link, "ask", listen)
        yield told


@pytest.mark.parametrize("size", [1, 60_000, 200_000])
async def test_a_request_comes_whole(ground: Ground, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for _ in range(3):
        known = await offered(link_of(ground))
        with asked(monkeypatch) as told:
            handle, got = await launched(ground, code(LENGTH, {"text": "x" * size}))
        assert b'"length":%d' % size in got["channel"]
        ((named, begun, passed),) = told
        assert named == handle in known
        assert (begun, passed == 0) == ((size < 64 * 1024),) * 2


async def test_a_program_begins_while_the_keeper_stands_still(ground: Ground) -> None:
    await offered(link_of(ground))
    (keeper,) = processes(str(native(ground)._run_dir))
    mark = fresh("alone")
    guest = code(f"import subprocess\ndef main(args): subprocess.run(['sh', '-c', 'sleep 600; true {mark}'])")
    spec = await ground.spec(single=True)
    os.kill(keeper, signal.SIGSTOP)
    try:
        launching = asyncio.create_task(native(ground).launch(spec, fresh("key"), Start(guest, "p", 60_000)))
        async with asyncio.timeout(60):
            while not processes(mark):
                await asyncio.sleep(0.01)
    finally:
        os.kill(keeper, signal.SIGCONT)
    sandbox = (await launching).sandbox
    process = await sandbox.process("p")
    await process.kill("enough")
    assert (await process.wait()).outcome is Outcome.CANCELLED
    await native(ground).destroy(sandbox.handle)
    assert processes(mark) == []


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_one_whose_worker_was_killed_is_passed_over(ground: Ground) -> None:
    (keeper,) = processes(str(native(ground)._run_dir))
    for _ in range(3):
        known = await offered(link_of(ground))
        workers = [worker for pid in children(keeper) if _is_first(pid) for worker in children(pid)]
        assert len(workers) >= READY
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        async with asyncio.timeout(60):
            while any(end.fileno() >= 0 and is_quiet(end) for end in known.values()):
                await asyncio.sleep(0)
        handle, got = await launched(ground, code(LENGTH, {"text": "abc"}))
        assert b'"length":3' in got["channel"]
        assert handle not in known


async def test_one_whose_worker_ends_at_the_mark_is_not_left_behind(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the mark of a request that never came, and nobody is lent it."""
    link = link_of(ground)
    known = await offered(link)
    (keeper,) = processes(str(native(ground)._run_dir))
    firsts = [pid for pid in children(keeper) if _is_first(pid)]
    workers = [worker for pid in firsts for worker in children(pid)]

    def killing(channel: socket.socket) -> None:
        mark_begun(channel)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        until(lambda: not is_quiet(channel), 60, "the worker is gone")

    with asked(monkeypatch) as told, monkeypatch.context() as patch:
        patch.setattr("skillyard.sandbox.native.link.mark_begun", killing)
        _, got = await launched(ground, code(LENGTH, {"text": "abc"}))
    ((named, begun, _),) = told
    assert named in known
    assert not begun
    assert b'"length":3' in got["channel"]
    async with asyncio.timeout(60):
        while set(firsts) & set(children(keeper)):
            await asyncio.sleep(0.01)


async def test_a_channel_that_takes_little_is_used_no_more(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (await offered(link_of(ground))).values():
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    with asked(monkeypatch) as told:
        for _ in range(3):
            _, got = await launched(ground, code(LENGTH, {"text": "x" * 60_000}))
            assert b'"length":60000' in got["channel"], "it is not begun twice, nor with a part of its request"
    assert [begun for _, begun, _ in told] == [True, False, False, False]
    assert await native(ground).survey() == []


async def test_what_a_server_could_reach_ends_with_it(ground: Ground) -> None:
    """A server that was killed may have written a request, and nobody knows of it."""
    link = link_of(ground)
    known = await offered(link)
    kept = [end.dup() for end in known.values()]
    link.close()
    handle, got = await launched(ground, code(LENGTH, {"text": "abc"}))
    assert b'"length":3' in got["channel"]
    assert handle not in known
    for end in kept:
        with end:
            end.settimeout(60)
            assert end.recv(1) == b"", "its worker is gone"
    assert not known.keys() & (await offered(link_of(ground))).keys()


async def test_a_shape_that_nobody_asks_for_is_withdrawn(ground: Ground) -> None:
    link = link_of(ground)
    known = await offered(link)
    for number in range(6):
        await launched(ground, code(LENGTH, {"text": "abc"}), Limits(memory_mb=128 + number))
    async with asyncio.timeout(60):
        while known.keys() & (await offered(link, 0)).keys():
            await asyncio.sleep(0.01)
    assert all(link._ready.values()), "a shape goes with its last offer"
    _, got = await launched(ground, code(LENGTH, {"text": "abc"}))
    assert b'"length":3' in got["channel"]


@pytest.mark.parametrize(
    ("ends", "outcome", "code_or_signal"),
    [
        ("return {'length': 3}", Outcome.EXIT, 0),
        ("os._exit(3)", Outcome.EXIT, 3),
        ("os.kill(os.getpid(), 9)", Outcome.SIGNAL, 9),
    ],
)
async def test_a_program_that_is_faster_than_the_servers_word_for_it(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, ends: str, outcome: Outcome, code_or_signal: int
) -> None:
    """Its worker has a request of which the keeper knows nothing, and is not taken for one that nobody used."""
    link, ask = link_of(ground), Link.ask
    known = await offered(link)
    (keeper,) = processes(str(native(ground)._run_dir))
    firsts = {pid: children(pid) for pid in children(keeper) if _is_first(pid)}

    def late(link: Link, header: dict[str, Any], body: bytes = b"", **how: Any) -> Any:
        if header["op"] == "create":
            assert header["begun"]
            until(lambda: any(map(_is_over, known.values())), 60, "the program is over")
            until(lambda: all(map(_rests, firsts)), 60, "the worker's end was told")
            for _ in range(2):
                ask(link, {"op": "stats"})
                assert select.select([link._channel._sock], [], [], 60)[0], "the keeper has heard that"
        return ask(link, header, body, **how)

    guest = code(f"import os\ndef main(args): {ends}")
    spec = await ground.spec(single=True)
    with monkeypatch.context() as patch:
        patch.setattr(Link, "ask", late)
        sandbox = (await native(ground).launch(spec, fresh("key"), Start(guest, "p", 60_000))).sandbox
    assert sandbox.handle in known, "it was done once"
    got = await done(await sandbox.start(guest, id="p"))
    assert (got.ending.outcome, got.ending.code or got.ending.signal or 0) == (outcome, code_or_signal), got
    await native(ground).destroy(sandbox.handle)


def _is_first(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text() == "first\n"


def _is_over(end: socket.socket) -> bool:
    return end.fileno() >= 0 and not is_quiet(end)


def _rests(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
