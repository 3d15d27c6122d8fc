"""gVisor sandboxes for one guest, whose first process is the static program where the compiled part is there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.sandbox.spec import Argv, Start
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.native.grounds import root
from skillyard.sandbox.native.grounds.gvisor import jail
from skillyard.sandbox.native.grounds.gvisor.backend import GvisorBackend
from skillyard.sandbox.native.grounds.gvisor.place import find_sentry
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import code, look, processes, run
from tests.conformance.sandbox import gvisor_ground
from tests.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.ordinary,
    pytest.mark.skipif(bool(gvisor_ground.absent()), reason=gvisor_ground.absent()),
]
PYTHON = root.find_interpreter()
LIMITS = Limits(timeout_ms=60_000)


@pytest.fixture(scope="module", params=[True, False], ids=["compiled", "python"])
async def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    if request.param and root.compiled_part() is None:
        pytest.skip("the compiled part was not built here: python hatch_build.py")
    base = tmp_path_factory.mktemp("gvisor")
    native = NativeSettings(compiled=request.param)
    backend = GvisorBackend(base / "run", gvisor_ground.OPTIONS.changed(ready=0), native)
    assert (await backend.probe()).ready
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), witness=gvisor_ground._witness, patience=4.0)
    await backend.close()


SEEN = """
import json, os, resource
def kill(number):
    try: os.kill(1, number); return 'killed'
    except OSError as error: return type(error).__name__
def seen():
    status = dict(line.split(':', 1) for line in open('/proc/self/status') if ':' in line)
    return {
        'uids': os.getresuid() + os.getresgid(), 'groups': os.getgroups(),
        'held': {name: int(status[name], 16) for name in status if name.startswith('Cap')},
        'seccomp': status['Seccomp'].strip(), 'first': os.listdir('/proc/1'), 'kill': [kill(9), kill(19), kill(24)],
        'limits': [resource.getrlimit(getattr(resource, 'RLIMIT_' + name))[1] for name in ('NPROC', 'NOFILE', 'CORE')],
        'blocked': [name for name in ('fuse', 'ptmx') if os.path.exists('/dev/' + name)],
        'session': os.getsid(0) == os.getpid() > 1, 'parent': os.getppid(), 'cwd': os.getcwd(), 'umask': os.umask(0o22),
    }
"""
EXPECTED = {
    "uids": [65532] * 6,
    "groups": [],
    "seccomp": "2",
    "first": [],
    "kill": ["PermissionError"] * 3,
    "limits": [LIMITS.pids - 1, 1024, 0],
    "blocked": [],
    "session": True,
    "parent": 1,
    "cwd": "/workspace",
    "umask": 0o22,
}
GUEST = f"""{SEEN}
def main(args):
    found, opened = seen(), range(20)
    found['fds'] = [fd for fd in opened if os.path.exists(f'/proc/self/fd/{{fd}}')]
    found['forked'] = '; main(' in open('/proc/self/cmdline').read()
    return found
"""


async def test_a_guest_stands_behind_the_same_walls(ground: Ground) -> None:
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        got = await run(sandbox, code(GUEST))
    assert (got.ending.outcome, got.ending.code) == (Outcome.EXIT, 0), got
    found = json.loads(got.channel[got.channel.index(b"{") : got.channel.rindex(b"}") + 1])
    assert set(found.pop("held").values()) == {0}
    assert found.pop("fds") == [0, 1, 2, 3, 4], "nothing of the keeper's"
    assert isinstance(ground.backend, GvisorBackend)
    assert found.pop("forked") is not ground.backend.keeper_options()["compiled"]
    assert found == EXPECTED


async def test_another_program_stands_behind_the_same_walls(ground: Ground) -> None:
    """The static program starts an interpreter for it."""
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        found = await look(sandbox, f"{SEEN}\nprint(json.dumps(seen()))")
    assert set(found.pop("held").values()) == {0}
    assert found == {**EXPECTED, "uids": found["uids"]}
    assert set(found["uids"]) == {65532}


async def test_a_command_s_words_and_status_come_back(ground: Ground) -> None:
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        got = await run(sandbox, Argv(("sh", "-c", 'echo "$SAID"; echo "$SAID" >&2; exit 3'), env={"SAID": "é"}))
    assert (got.ending.outcome, got.ending.code) == (Outcome.EXIT, 3)
    assert (got.stdout.decode(), got.stderr.decode()) == ("é\n", "é\n")


HOG = """
import time
def main(args):
    held = bytearray(b'x') * (160 << 20)
    time.sleep(600)
"""
WRITER = """
import hashlib
def main(args):
    with open('big', 'wb') as file:
        for _ in range(160):
            file.write(bytes(1 << 20))
    for _ in range(3):
        with open('big', 'rb') as file:
            hashlib.file_digest(file, 'sha256')
    return {}
"""


@pytest.mark.parametrize(("source", "outcome"), [(HOG, Outcome.MEMORY), (WRITER, Outcome.EXIT)])
async def test_memory_ends_at_its_own_limit_and_files_are_none(ground: Ground, source: str, outcome: Outcome) -> None:
    """The host sees one sum: the first process tells how much of it is files."""
    limits = Limits(timeout_ms=30_000, memory_mb=64, disk_mb=256)
    async with ground.sandbox(limits, single=True) as sandbox:
        got = await run(sandbox, code(source))
    assert got.ending.outcome is outcome, got


async def test_memory_counts_that_a_program_took_before_the_keeper_heard_of_it(tmp_path: Path) -> None:
    if root.compiled_part() is None:
        pytest.skip("without the compiled part no sandbox is for one program alone")
    backend = GvisorBackend(tmp_path / "run", gvisor_ground.OPTIONS.changed(ready=1), NativeSettings())
    spec = await Ground(backend, tmp_path).spec(Limits(timeout_ms=20_000, memory_mb=64, disk_mb=256), single=True)
    try:
        await backend.destroy((await backend.create(spec, "first")).handle)
        link = backend._link
        assert link is not None
        await asyncio.to_thread(until, lambda: bool(link._ready), 60, "one is offered")
        [keeper] = processes(str(tmp_path / "run"))
        os.kill(keeper, signal.SIGSTOP)
        try:
            launching = asyncio.create_task(backend.launch(spec, "key", Start(code(HOG), "p", 20_000)))
            await asyncio.to_thread(until, lambda: _held(keeper) > 160 << 20, 60, "it has the memory")
        finally:
            os.kill(keeper, signal.SIGCONT)
        process = await (await launching).sandbox.process("p")
        assert (await process.wait()).outcome is Outcome.MEMORY
    finally:
        await backend.close()


def _held(keeper: int) -> int:
    sentry = find_sentry(keeper)
    return 0 if sentry is None else sentry.guest_bytes()


async def test_a_guest_that_ends_otherwise_is_told(ground: Ground) -> None:
    for source, outcome in (("os._exit(7)", Outcome.EXIT), ("os.kill(os.getpid(), 9)", Outcome.SIGNAL)):
        async with ground.sandbox(LIMITS, single=True) as sandbox:
            got = await run(sandbox, code(f"import os\ndef main(args):\n    {source}"))
        assert got.ending.outcome is outcome, got


@pytest.mark.parametrize(("single", "first"), [(True, "first"), (False, os.path.basename(PYTHON.executable))])
def test_the_first_process_is_the_static_one_where_it_is_for_one_guest(single: bool, first: str) -> None:
    contents = jail.Contents(PYTHON, "", [], disk_bytes=1 << 20, memory_bytes=1 << 20, processes=8, single=single)
    words = json.loads(jail.config(contents))["process"]["args"]
    assert os.path.basename(words[0]) == first
