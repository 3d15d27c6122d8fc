"""A keeper goes on when any one of its callbacks raises: what the callback belongs to ends, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import skillyard
from skillyard.config.backends import NativeSettings
from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Argv, Mount, Owner, SandboxSpec, Stream
from skillyard.domain.work.record import Outcome
from skillyard.ipc.peers import peer
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.keeper.loop import READ, Loop
from skillyard.sandbox.native.launch import _connect
from tests.attacks.preloading.packages import Yard, write_packages
from tests.crash import faulty_keeper

pytestmark = pytest.mark.anyio

OPTIONS = NativeSettings(ready=1)
BOUND_S = 30
SELDOM = {
    "Sandbox.kill_program:after": "two seconds after a kill that init did not manage",
    "Sandbox._begin:after": "a program that ended before the server's word of it",
    "Connection._flush:watch": "a server that does not read",
    "Connection._flush:after": "descriptors of which too many are on their way",
    "Connection.send_with_next:after": "a program that was launched with its sandbox, and goes on for a while",
    "Host._sweep_again:after": "groups that a killed keeper left",
    "Keeper._until_empty:after": "when it ends",
    "PidSpace.end:watch": "when a zygote with packages is closed",
    "PidSpace.end.<locals>.reap:after": "the same",
    "Program.open_stdin:watch": "a reader that is gone before anything is written",
    "Service._leave_soon:after": "four seconds after the start and after a server is lost",
    "Zygotes._age_later:after": "ten seconds without use",
    "ZygoteProcess.asks:after": "twenty seconds after a clone was asked for",
    "ZygoteProcess._lose_patience:after": "the same",
    "ZygoteProcess._give_time:after": "an import that takes too long",
    "ZygoteProcess._look:after": "an import that takes a while",
    "Shower.__init__:when_idle": "when it begins",
    "Host.give_back:after": "two seconds after a group was given back",
    "Host._fade:after": "the same",
    "Host.give_back:when_idle": "behind the end of a sandbox, for which nobody waits",
    "Host._look:when_idle": "groups of sandboxes that ended together",
    "Host._bury:after": "control groups that the kernel still holds",
    "Sandboxes._refill:after": "a run that is no longer short",
    "Sandboxes._refill_failed:after": "after a fault",
    "Zygote._promote:after": "a zygote that is replaced while it is at work",
    "_watch_often.<locals>.lent:after": "the first sandbox that is lent",
    "end_orphans:watch": "a zygote that ended before it told of a clone",
    "_watch_often.<locals>.again:after": "after a fault",
}
if os.geteuid() != 0:
    SELDOM["Host.bury:when_idle"] = "control groups, which an ordinary user rarely has"
"""Callbacks that the work below does not lead to. All go through the one loop that the first tests hold to the rule."""


@pytest.mark.parametrize("guarded", [False, True])
def test_a_loop_goes_on_after_each_kind_of_call_failed(guarded: bool, capfd: pytest.CaptureFixture[str]) -> None:
    loop, told, ended = Loop(), list[str](), list[Exception]()
    loop.on_fault = told.append
    turns = loop.guarded(ended.append) if guarded else loop
    reading, writing = os.pipe()
    os.write(writing, b"x")

    def fails(*_: int) -> None:
        raise ValueError("of one")

    turns.watch(reading, READ, fails)
    turns.after(0, fails)
    turns.when_idle(fails)
    loop.after(0.05, lambda: setattr(loop, "running", False))
    loop.run()
    assert len(told) == 5, "a descriptor that stays ready is called three times, and then no more"
    assert len(ended) == (5 if guarded else 0)
    assert "of one" in capfd.readouterr().err


def test_what_fails_for_ever_is_not_told_for_ever(capfd: pytest.CaptureFixture[str]) -> None:
    loop = Loop()
    for _ in range(1000):
        loop.after(0, lambda: [][0])
    loop.after(0.001, lambda: setattr(loop, "running", False))
    loop.run()
    assert capfd.readouterr().err.count("IndexError") == 100


class Faulty:
    """A keeper at ``directory`` with one fault to come."""

    def __init__(self, directory: Path, fault: str, when: str) -> None:
        self.directory = directory
        run_dir = directory / "run"
        run_dir.mkdir(mode=0o700)
        config = {"run_dir": str(run_dir), "fault": fault, "when": when, **OPTIONS.model_dump()}
        roots = [str(Path(skillyard.__file__).parents[1]), str(Path(__file__).parents[2])]
        run = f"runpy.run_path({faulty_keeper.__file__!r}, run_name='__main__')"
        code = f"import sys, runpy; sys.path[:0] = {roots!r}; {run}"
        words = [sys.executable, "-I", "-S", "-B", "-c", code, json.dumps(config)]
        done = subprocess.run(words, stdout=subprocess.PIPE)
        said = json.loads(done.stdout)
        if "pid" not in said:
            pytest.skip(said["error"])
        self.backend = NativeBackend(run_dir, OPTIONS)
        self.yard = Yard(self.backend, write_packages(directory / "packages"))

    @property
    def pid(self) -> int:
        sock = _connect(self.directory / "run")
        assert sock is not None
        with sock:
            return peer(sock)[0]

    def arm(self) -> None:
        (self.directory / "run" / faulty_keeper.ARMED).touch()

    @property
    def fired(self) -> bool:
        return not (self.directory / "run" / faulty_keeper.ARMED).exists()

    def called(self) -> set[str]:
        return set((self.directory / "run" / faulty_keeper.CALLED).read_text().splitlines())


async def work(faulty: Faulty, key: str) -> None:
    """A guest, a program with input, one that is killed, a long output that is read while it comes, and modules."""
    assert await faulty.yard.evaluate("1 + 1", "good") == 2
    backend = faulty.backend
    shown = Mount(Content("shown", faulty.directory / "packages"), "/skills/shown")
    sandbox = await backend.create(SandboxSpec(single=False, mounts=(shown,)), key)
    try:
        # It rests with its first byte, so that its pipe gets full.
        rests = ("sh", "-c", "dd bs=1 count=1 2>/dev/null; sleep 0.3; exec cat")
        cat = await sandbox.start(Argv(rests, stdin=True), id="cat", timeout_ms=10_000)
        await cat.send(b"x" * 300_000)
        await cat.close_stdin()
        assert len(b"".join([piece async for piece in cat.output(Stream.STDOUT)])) == 300_000
        assert (await cat.wait()).code == 0
        slow = await sandbox.start(Argv(("sh", "-c", "sleep 0.2; echo x")), id="slow", timeout_ms=10_000)
        assert b"".join([piece async for piece in slow.output(Stream.STDOUT)]) == b"x\n"
        sleeper = await sandbox.start(Argv(("sleep", "60")), id="sleeper", timeout_ms=10_000)
        await sleeper.kill("enough")
        assert (await sleeper.wait()).outcome is Outcome.CANCELLED
        late = await sandbox.start(Argv(("sleep", "60")), id="late", timeout_ms=100)
        assert (await late.wait()).outcome is Outcome.TIMEOUT
    finally:
        await backend.destroy(sandbox.handle)


async def echoes(faulty: Faulty, handle: str, id: str) -> None:
    sandbox = await faulty.backend.attach(handle)
    process = await sandbox.start(Argv(("echo", id)), id=id, timeout_ms=10_000)
    assert b"".join([piece async for piece in process.output(Stream.STDOUT)]).decode().strip() == id
    await process.wait()


async def test_the_work_below_calls_all_but_these(tmp_path: Path) -> None:
    faulty = Faulty(tmp_path, "", "")
    try:
        await work(faulty, "a")
        assert set(faulty_keeper.places()) - faulty.called() - SELDOM.keys() == set()
        assert SELDOM.keys() <= set(faulty_keeper.places())
    finally:
        await faulty.backend.close()


def _cases() -> Iterator[Any]:
    """The short form has each place once, and each time of a failure with half of them."""
    for number, place in enumerate(sorted(set(faulty_keeper.places()) - SELDOM.keys())):
        for at, when in enumerate(("before", "after")):
            yield pytest.param(place, when, marks=() if at == number % 2 else pytest.mark.long)


@pytest.mark.parametrize(("place", "when"), list(_cases()))
async def test_a_callback_that_raises_ends_what_it_belongs_to(place: str, when: str, tmp_path: Path) -> None:
    """A session of a task beside it goes on, and so does the keeper: what comes next is served."""
    faulty = Faulty(tmp_path, place, when)
    try:
        spec = SandboxSpec(owner=Owner.TASK, single=False)
        bystander = (await faulty.backend.create(spec, "bystander")).handle
        await echoes(faulty, bystander, "before")
        before = faulty.pid
        faulty.arm()
        assert faulty.pid == before
        with suppress(SkillyardError, AssertionError):
            async with asyncio.timeout(BOUND_S):
                await work(faulty, "victim")
        assert faulty.fired
        async with asyncio.timeout(BOUND_S):
            await work(faulty, "next")
            await echoes(faulty, bystander, "after")
            await faulty.backend.destroy(bystander)
        assert faulty.pid == before
    finally:
        await faulty.backend.close()
