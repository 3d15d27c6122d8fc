"""Sandboxes for one program, whose first process is a static program where the compiled part is there."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.sandbox.spec import Argv, Start, Stream
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds import root
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import code, collect, done, fresh, look, processes, python, run, start

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
LIMITS = Limits(timeout_ms=60_000)
PATIENCE = float(os.environ.get("SKILLYARD_TEST_PATIENCE") or 1)


@pytest.fixture(scope="module", params=[True, False], ids=["compiled", "python"])
async def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    if request.param and root.compiled_part() is None:
        pytest.skip("the compiled part was not built here: python hatch_build.py")
    backend = NativeBackend(tmp_path_factory.mktemp("native") / "run", NativeSettings(compiled=request.param))
    if not (found := await backend.probe()).ready:
        pytest.skip(found.facts["why"])
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), patience=PATIENCE)
    await backend.close()


FIRST = """
import json, os
def seen(name):
    try:
        fd = os.open(f'/proc/1/{name}', os.O_RDONLY)
        os.read(fd, 64)
        return 'read'
    except OSError as error: return type(error).__name__
def listed(name):
    try: return os.listdir(f'/proc/1/{name}')
    except OSError as error: return type(error).__name__
status = dict(line.split(':', 1) for line in open('/proc/1/status'))
held = [int(status[name], 16) for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')]
try: os.kill(1, 9); os.kill(1, 19); killed = 'asked in vain'
except OSError as error: killed = type(error).__name__
print(json.dumps({
    'name': status['Name'].strip(), 'state': status['State'].split()[0], 'uid': status['Uid'].split(), 'held': held,
    'plain': [status['NoNewPrivs'].strip(), status['Seccomp'].strip(), status['Threads'].strip()],
    'files': {name: seen(name) for name in ('mem', 'environ', 'maps', 'auxv', 'syscall')},
    'places': {name: listed(name) for name in ('fd', 'map_files')},
    'limits': open('/proc/self/limits').read().split('Max processes')[1].split()[0], 'killed': killed,
}))
"""


async def test_nobody_looks_into_the_first_process(ground: Ground) -> None:
    """The command's own exec comes after the worker's fork: it is the look that foreign code has."""
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        seen = await look(sandbox, FIRST)
    own = isinstance(ground.backend, NativeBackend) and ground.backend._settings.compiled
    assert (seen["name"] == "first") is own
    assert set(seen["files"].values()) == {"PermissionError"}
    assert set(seen["places"].values()) == {"PermissionError"}
    assert seen["uid"] == ["65532"] * 4
    assert seen["held"] == [0] * 5
    assert seen["plain"] == ["1", "2", "1"]
    assert seen["state"] == "S"


async def test_a_sandbox_for_a_command_has_the_init_that_forks_one(ground: Ground) -> None:
    """The static program would start an interpreter for it, which takes longer than many a command."""
    async with ground.sandbox(LIMITS, single=True, command=True) as sandbox:
        seen = await look(sandbox, FIRST)
    assert seen["name"].startswith("python")
    assert set(seen["files"].values()) == {"PermissionError"}
    async with ground.sandbox(LIMITS, single=True, command=True) as sandbox:
        got = await run(sandbox, code("def main(args): return {'is': 'a guest'}"))
    assert (got.ending.outcome, got.ending.code) == (Outcome.EXIT, 0)


GUEST_LOOK = """
import os
def main(args):
    try: os.open('/proc/1/mem', os.O_RDONLY); mem = 'read'
    except OSError as error: mem = type(error).__name__
    return {'first': open('/proc/1/comm').read().strip(), 'mem': mem, 'own': os.getpid() > 1,
            'null': os.fstat(0).st_rdev == os.stat('/dev/null').st_rdev, 'parent': os.getppid()}
"""


async def test_a_guest_stands_behind_the_same_walls(ground: Ground) -> None:
    for _ in range(3):
        async with ground.sandbox(LIMITS, single=True) as sandbox:
            got = await run(sandbox, code(GUEST_LOOK))
        assert got.ending.outcome is Outcome.EXIT
        assert b'"mem":"PermissionError","own":true,"null":true,"parent":1' in got.channel


@pytest.mark.parametrize("single", [True, False])
async def test_a_guest_is_launched_with_its_sandbox(ground: Ground, single: bool) -> None:
    backend, guest = ground.backend, code("import os\ndef main(args): return {'sum': 3, 'pid': os.getpid()}")
    assert isinstance(backend, NativeBackend)
    for number in range(5):
        spec, key, first = await ground.spec(LIMITS, single=single), fresh("key"), Start(guest, f"p{number}", 60_000)
        sandbox = (await backend.launch(spec, key, first)).sandbox
        process = await sandbox.start(guest, id=first.id)
        got = await done(process)
        assert (got.ending.outcome, got.channel.count(b'"sum":3')) == (Outcome.EXIT, 1)
        await backend.destroy(sandbox.handle)
    assert await backend.survey() == []


@pytest.mark.parametrize("single", [True, False])
async def test_a_launch_is_told_of_while_its_program_runs(ground: Ground, single: bool) -> None:
    """The keeper waits a moment for the end, which a long program does not have."""
    backend, guest = ground.backend, code("import time\ndef main(args): time.sleep(600)")
    assert isinstance(backend, NativeBackend)
    spec, key, began = await ground.spec(LIMITS, single=single), fresh("key"), time.monotonic()
    async with asyncio.timeout(60):
        launching = backend.launch(spec, key, Start(guest, "p", 60_000))
        launched, created = await asyncio.gather(launching, backend.create(spec, key))
    assert launched.sandbox is created, "the key names one sandbox"
    assert 0 < launched.ago_s < time.monotonic() - began
    process = await created.process("p")
    await process.kill()
    assert (await process.wait()).outcome is Outcome.CANCELLED
    await backend.destroy(created.handle)
    assert await backend.survey() == []


async def test_a_launched_program_begins_before_anybody_waits_for_it(ground: Ground) -> None:
    backend, mark = ground.backend, fresh("begun")
    assert isinstance(backend, NativeBackend)
    source = f"import subprocess\ndef main(args): subprocess.run(['sh', '-c', 'sleep 600; true {mark}'])"
    spec, key = await ground.spec(LIMITS, single=True), fresh("key")
    launching = backend.launch(spec, key, Start(code(source), "p", 60_000))
    async with asyncio.timeout(60):
        while not processes(mark):
            await asyncio.sleep(0.01)
    launching.close()  # nobody waits for it: the key still names the sandbox
    await backend.destroy((await backend.create(spec, key)).handle)
    assert (await backend.survey(), processes(mark)) == ([], [])


async def test_programs_do_not_interrupt_those_that_drive_them(ground: Ground) -> None:
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        got = await run(sandbox, code("import os\ndef main(args): return {'policy': os.sched_getscheduler(0)}"))
    assert b'"policy":%d' % os.SCHED_BATCH in got.channel


async def test_a_launch_that_is_given_up_leaves_nothing(ground: Ground) -> None:
    backend, mark = ground.backend, fresh("given-up")
    assert isinstance(backend, NativeBackend)
    source = f"import subprocess\ndef main(args): subprocess.run(['sh', '-c', 'sleep 600; true {mark}'])"
    spec = await ground.spec(LIMITS, single=True)
    for pause_s in (0, 0.002, 0.01, 0.03):
        launching = asyncio.create_task(backend.launch(spec, fresh("key"), Start(code(source), "p", 60_000)))
        await asyncio.wait([launching], timeout=pause_s)
        if not launching.cancel():
            await backend.destroy((await launching).sandbox.handle)
        await asyncio.wait([launching])
    async with asyncio.timeout(60):
        while await backend.survey() or processes(mark):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("size", [1, 150_000])
async def test_a_command_gets_its_words_variables_and_place(ground: Ground, size: int) -> None:
    source = (
        "import os, sys; print(len(sys.argv[1]), os.environ['ODD'], os.getcwd(), sorted(os.listdir('/proc/self/fd')))"
    )
    pieces = ["w" * min(size, 90_000), "w" * max(0, size - 90_000)]
    program = Argv(("python3", "-I", "-c", source, *pieces), env={"ODD": 'é"\\ \n'}, cwd="/tmp")
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        process = await sandbox.start(program, id='an odd "id" \\ é', timeout_ms=60_000)
        got = await done(process)
    assert (got.ending.outcome, got.ending.code) == (Outcome.EXIT, 0)
    assert got.stdout.decode() == f"{min(size, 90_000)} " + 'é"\\ \n' + " /tmp ['0', '1', '2', '3']\n"
    assert got.ending.usage.cpu_ms


async def test_a_command_has_an_input_a_status_and_a_signal(ground: Ground) -> None:
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        process = await start(sandbox, python("import sys; sys.exit(len(sys.stdin.read()))", stdin=True))
        await process.send(b"seven..")
        await process.close_stdin()
        assert ((await process.wait()).outcome, (await process.wait()).code) == (Outcome.EXIT, 7)
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        got = await run(sandbox, python("import os; os.kill(os.getpid(), 15)"))
        assert (got.ending.outcome, got.ending.signal) == (Outcome.SIGNAL, 15)
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        got = await run(sandbox, Argv(("/no/such/program",)))
        assert (got.ending.code, b"/no/such/program" in got.stderr) == (127, True)


@pytest.mark.parametrize(
    ("source", "outcome"),
    [("import os\ndef main(args): os._exit(9)", 9), ("import os\ndef main(args): os.kill(os.getpid(), 11)", -11)],
)
async def test_a_worker_that_ends_otherwise_is_told_of(ground: Ground, source: str, outcome: int) -> None:
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        ending = (await run(sandbox, code(source))).ending
    assert (ending.code, ending.signal) == ((outcome, None) if outcome >= 0 else (None, -outcome))


STAYS = """
import os, subprocess, time
def main(args):
    open('kept', 'w').write('it')
    subprocess.Popen(['sleep', '600'], start_new_session=True)
    for _ in range(5):
        if os.fork() == 0: os._exit(0)
    print('stays', flush=True)
    time.sleep(600)
"""


async def test_a_program_over_its_time_leaves_its_files_to_another(ground: Ground) -> None:
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        process = await start(sandbox, code(STAYS), timeout_ms=round(1500 * ground.patience))
        ending = await process.wait()
        assert ending.outcome is Outcome.TIMEOUT
        seen = await run(sandbox, code("import os\ndef main(args): return {'left': open('kept').read(), 'pids': "
                                       "[p for p in os.listdir('/proc') if p.isdigit() and p != '1']}"))  # fmt: skip
        assert seen.ending.outcome is Outcome.EXIT
        assert b'"left":"it"' in seen.channel
        assert re.search(rb'"pids":\["[0-9]+"\]', seen.channel), "it alone is there beside the first process"


async def test_the_last_stack_is_read_by_the_next_program(ground: Ground) -> None:
    async with ground.sandbox(LIMITS, single=True) as sandbox:
        process = await start(sandbox, code("import time\ndef main(args): time.sleep(600)"), timeout_ms=1500)
        assert (await process.wait()).outcome is Outcome.TIMEOUT
        program = code("")
        request = {**program.request, "op": "collect"}
        collecting = await sandbox.start(type(program)(request), id=fresh("program"), timeout_ms=60_000)
        assert b"line 2, in main" in await collect(collecting, Stream.CHANNEL)


async def test_sandboxes_for_one_and_for_several_programs_come_from_one_zygote(ground: Ground) -> None:
    for single in (True, False, True, False):
        async with ground.sandbox(LIMITS, single=single) as sandbox:
            assert (await run(sandbox, code("def main(args): return {}"))).ending.code == 0
            if not single:
                assert (await run(sandbox, code("def main(args): return {}"))).ending.code == 0
