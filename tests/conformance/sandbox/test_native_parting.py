"""A native sandbox whose program is done: its end is told at once, and confirmed when nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.sandbox.spec import EnvironmentRef, Owner
from skillyard.domain.work.record import Outcome
from skillyard.ports.sandbox import Sandbox
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import code, collect, eventually, fresh, processes, start

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
BOUND_S = 60
TRIES = 200
PLAIN, AHEAD = EnvironmentRef(), EnvironmentRef("ahead", preload=("decimal",))
PAUSES = {"x86_64": ("34 ", "7 0x0 0x0 "), "aarch64": ("73 ",)}
"""Starts of /proc/PID/syscall of a process in pause(2), or in poll(2) of nothing."""
STAYS = """
import os, subprocess
def main(args):
    subprocess.Popen(['/bin/sh', '-c', 'sleep 600 # ' + args['mark']], start_new_session=True)
    print('left', args['mark'])
    return {'held': len(b'x' * (16 << 20))}
"""
TOLD = """
import signal, subprocess
def main(args):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    subprocess.Popen(['/bin/sh', '-c', 'sleep 600 # ' + args['mark']])
    signal.sigwait([signal.SIGUSR1])
    return {}
"""
"""It comes to its end when it is told so from outside."""


@pytest.fixture(scope="module", params=[True, False], ids=["compiled", "python"])
async def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    backend = NativeBackend(tmp_path_factory.mktemp("native") / "run", NativeSettings(compiled=request.param, ready=1))
    if not (found := await backend.probe()).ready:
        pytest.skip(found.facts["why"])
    yield Ground(backend, tmp_path_factory.mktemp("scratch"))
    await backend.close()


def native(ground: Ground) -> NativeBackend:
    assert isinstance(ground.backend, NativeBackend)
    return ground.backend


async def parting(ground: Ground, mark: str) -> Sandbox:
    """Returns a sandbox whose program is done; one that it left was at work.

    Where a worker has ended already when the keeper looks, its init tells of it, and nothing is told before.
    """
    for _ in range(TRIES):
        sandbox, early = await _done(ground, mark)
        if early:
            return sandbox
        await ground.backend.destroy(sandbox.handle)
    pytest.fail("no end was told before the sandbox was gone")


async def _done(ground: Ground, mark: str, environment: EnvironmentRef = PLAIN) -> tuple[Sandbox, bool]:
    sandbox = await ground.backend.create(await ground.spec(single=True, environment=environment), fresh("key"))
    process = await start(sandbox, code(STAYS, {"mark": mark}))
    ending = await process.wait()
    assert (ending.outcome, ending.code) == (Outcome.EXIT, 0)
    assert ending.usage.cpu_ms
    assert not ending.parting or (ending.usage.peak_memory_bytes or 0) > 16 << 20
    assert await collect(process) == f"left {mark}\n".encode(), "the output is whole"
    return sandbox, ending.parting


@pytest.mark.parametrize("environment", [PLAIN, AHEAD], ids=["plain", "ahead"])
async def test_each_end_of_a_small_sandbox_is_told_before_it_is_gone(
    ground: Ground, environment: EnvironmentRef
) -> None:
    """Its worker waits for the end that its keeper brings, so that the keeper always meets it."""
    early = []
    for number in range(20):
        sandbox, told = await _done(ground, f"early-{os.getpid()}-{number}", environment)
        await ground.backend.destroy(sandbox.handle)
        early.append(told)
    assert all(early)


async def test_nothing_is_left_when_its_end_is_confirmed(ground: Ground, tmp_path: Path) -> None:
    for number in range(10):
        mark = f"{tmp_path.name}-{os.getpid()}-{number}"
        sandbox = await parting(ground, mark)
        usage = await ground.backend.destroy(sandbox.handle)
        assert processes(mark) == []
        assert usage.cpu_ms
        assert sandbox.handle not in [held.handle for held in await ground.backend.survey()]
    assert not native(ground)._parting
    assert not native(ground)._usages


def _keeper(ground: Ground) -> int:
    """Returns the keeper; the first process of a pid namespace of a zygote is its child and has its command line."""
    found = processes(str(native(ground)._run_dir))
    (keeper,) = [pid for pid in found if _parent(pid) not in found]
    return keeper


def _parent(pid: int) -> int:
    """Returns the parent of a process, or 0 of one that is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _worker(mark: str) -> int:
    """Returns the parent of the process that is marked; 0 where there is none."""
    return next((_parent(pid) for pid in processes(mark)), 0)


def _does(pid: int) -> str:
    """Returns the system call of a process; empty when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/syscall").read_text()
    return ""


@pytest.mark.skipif(os.uname().machine not in PAUSES, reason="the number of its system call is not known")
@pytest.mark.parametrize("environment", [PLAIN, AHEAD], ids=["plain", "ahead"])
async def test_a_worker_that_is_done_waits_and_ends_when_it_is_asked_for_its_stack(
    ground: Ground, environment: EnvironmentRef
) -> None:
    """Else its init, which asks where the time is over, would wait a second for it."""
    keeper = _keeper(ground)
    mark = f"asked-{os.getpid()}-{fresh('mark')}"
    sandbox = await ground.backend.create(await ground.spec(single=True, environment=environment), fresh("key"))
    process = await start(sandbox, code(TOLD, {"mark": mark}))
    await eventually(lambda: _worker(mark) > 0, "it is at work", BOUND_S)
    worker = _worker(mark)
    if not _does(worker):
        pytest.skip("this user may not see what a process of a sandbox does")
    with stopped(keeper):
        os.kill(worker, signal.SIGUSR1)
        await eventually(lambda: _does(worker).startswith(PAUSES[os.uname().machine]), "it waits", BOUND_S)
        os.kill(worker, signal.SIGXCPU)
        await eventually(lambda: not Path(f"/proc/{worker}").exists(), "it ends", BOUND_S)
    ending = await process.wait()
    assert (ending.outcome, ending.code) == (Outcome.EXIT, 0)
    await ground.backend.destroy(sandbox.handle)


@contextmanager
def stopped(keeper: int) -> Iterator[None]:
    os.kill(keeper, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(keeper, signal.SIGCONT)


async def test_it_is_not_confirmed_while_the_keeper_does_not_know(ground: Ground) -> None:
    keeper = _keeper(ground)
    for number in range(TRIES):
        sandbox = await parting(ground, f"waits-{os.getpid()}-{number}")
        with stopped(keeper):
            destroying = asyncio.create_task(ground.backend.destroy(sandbox.handle))
            done, _ = await asyncio.wait([destroying], timeout=0.1)
        await asyncio.wait_for(destroying, BOUND_S)
        if not done:
            return
    pytest.fail("each was gone before its keeper stood still")


async def test_a_task_is_told_of_when_it_is_gone(ground: Ground) -> None:
    """Another server may be the one to hear of it."""
    sandbox = await ground.backend.create(await ground.spec(single=True, owner=Owner.TASK), fresh("key"))
    process = await start(sandbox, code("def main(args): return {}"))
    assert not (await process.wait()).parting
    await ground.backend.destroy(sandbox.handle)


async def test_it_ends_with_its_keeper(ground: Ground) -> None:
    """The last test here: each other one needs that keeper."""
    keeper = _keeper(ground)
    mark = f"ends-{os.getpid()}"
    sandbox = await parting(ground, mark)
    os.kill(keeper, signal.SIGKILL)
    await asyncio.wait_for(ground.backend.destroy(sandbox.handle), BOUND_S)
    async with asyncio.timeout(BOUND_S):
        while processes(mark):
            await asyncio.sleep(0.01)
