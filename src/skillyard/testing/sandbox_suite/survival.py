"""Work that outlives the server that started it, where a backend offers that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from skillyard.domain.errors import SandboxGone, SkillyardError
from skillyard.domain.sandbox.frames import FrameReader, Result
from skillyard.domain.sandbox.spec import (
    Guest,
    GuestCall,
    Owner,
    Stream,
    cell_request,
    clear_request,
    interpreter_request,
)
from skillyard.domain.work.record import Ending, Outcome
from skillyard.ports.sandbox import Backend, Process, Sandbox, Snapshots, Snapshotting
from skillyard.testing.sandbox_suite.check import SURVIVAL, Failed, Section, expect, expect_gone
from skillyard.testing.sandbox_suite.ground import (
    Ground,
    code,
    collect,
    contents,
    eventually,
    fresh,
    look,
    pieces,
    processes,
    python,
    until,
)

survival = Section("survival")

COUNT = """
import os, sys, time
for number in range(1000):
    print(number, flush=True)
    while number == 500 and not os.path.exists(HERE + '/workspace/go'): time.sleep(0.01)
sys.exit(9)
"""


@survival.check(SURVIVAL)
async def task_goes_on_without_its_server(ground: Ground) -> None:
    spec, key = await ground.spec(owner=Owner.TASK), fresh("key")
    async with _server(ground) as first:
        sandbox = await first.create(spec, key)
        process = await sandbox.start(python(COUNT), id="count")
        await until(process, b"500\n")
    async with _server(ground) as second:
        try:
            [held] = [held for held in await second.survey() if held.key == key]
            expect(held.owner is Owner.TASK and held.handle == sandbox.handle, "a task is held on", held)
            again = await second.attach(held.handle)
            process = await again.process("count")
            await again.start(python("open('go', 'w').close()"), id="go")
            ending = await process.wait()
            expect(ending.outcome is Outcome.EXIT and ending.code == 9, "its ending is true", ending)
            wanted = b"".join(b"%d\n" % number for number in range(1000))
            expect(await collect(process) == wanted, "and its output complete")
        finally:
            await second.destroy(sandbox.handle)


@survival.check(SURVIVAL)
async def task_that_ended_meanwhile_is_told(ground: Ground) -> None:
    spec, marker = await ground.spec(owner=Owner.TASK), fresh("task")
    async with _server(ground) as first:
        sandbox = await first.create(spec, fresh("key"))
        source = "print('begun', flush=True)\nimport time\ntime.sleep(0.3)\nprint('done')"
        await until(await sandbox.start(python(source, marker), id="short"), b"begun")
    await eventually(lambda: not processes(marker), "the program ends by itself", 10)
    async with _server(ground) as second:
        try:
            process = await (await second.attach(sandbox.handle)).process("short")
            async with asyncio.timeout(10):
                expect((await process.wait()).code == 0, "an ending is kept until somebody asks")
            expect(await collect(process) == b"begun\ndone\n", "and so is the output")
        finally:
            await second.destroy(sandbox.handle)


@survival.check(SURVIVAL)
async def run_ends_with_its_server(ground: Ground) -> None:
    spec, marker = await ground.spec(owner=Owner.RUN), fresh("run")
    async with _server(ground) as first:
        sandbox = await first.create(spec, fresh("key"))
        source = "print('begun', flush=True)\nimport time\ntime.sleep(600)"
        await until(await sandbox.start(python(source, marker), id="long"), b"begun")
    expect_gone(marker, "after close")
    async with _server(ground) as second:
        try:
            await second.attach(sandbox.handle)
        except SandboxGone:
            return
    expect(False, "a sandbox owned as run is gone with its server")


@survival.check(SURVIVAL)
async def start_and_create_of_an_earlier_server_are_found(ground: Ground) -> None:
    """Both are idempotent on their names, whichever server comes with them."""
    spec, key, marker = await ground.spec(owner=Owner.TASK), fresh("key"), fresh("once")
    source = "import os\nopen('begun', 'a').write('x')\nprint(open('begun').read(), flush=True)\ninput()"
    waiting, short = python(source, marker, stdin=True), python("print('short')")
    async with _server(ground) as first:
        sandbox = await first.create(spec, key)
        await until(await sandbox.start(waiting, id="one"), b"x")
        await (await sandbox.start(short, id="short")).wait()
    async with _server(ground) as second:
        try:
            again = await second.create(spec, key)
            expect(again.handle == sandbox.handle, "a key gives the sandbox of the earlier server", again.handle)
            process = await again.start(waiting, id="one")
            expect(len(processes(marker)) <= 2, "a program is not started twice", processes(marker))
            await process.send(b"\n")
            async with asyncio.timeout(10):
                expect((await process.wait()).code == 0, "its end is told to the second server")
                expect(await collect(process) == b"x\n", "and its output is that of the first start")
                ended = await again.start(short, id="short")
                expect((await ended.wait()).code == 0, "one that ended before has its ending")
                expect(await collect(ended) == b"short\n", "and its output")
        finally:
            await second.destroy(sandbox.handle)


@survival.check(SURVIVAL)
async def output_stays_until_a_task_is_destroyed(ground: Ground) -> None:
    """Also where the sandbox ended with its one program, and where its output is large."""
    spec = await ground.spec(owner=Owner.TASK, single=True)
    source = "import sys\nfor i in range(100_000): print(f'{i:09d}')\nprint('e', file=sys.stderr)\nsys.exit(3)"
    async with _server(ground) as first:
        sandbox = await first.create(spec, fresh("key"))
        process = await sandbox.start(python(source), id="large")
        await process.wait()
    for _ in range(2):
        async with _server(ground) as later:
            process = await (await later.attach(sandbox.handle)).process("large")
            expect((await process.wait()).code == 3, "its ending is told to each server")
            whole = b"".join(b"%09d\n" % number for number in range(100_000))
            expect(await collect(process) == whole, "its output is complete")
            expect(await collect(process, Stream.STDERR) == b"e\n", "and so is the other stream")
    async with _server(ground) as last:
        await last.destroy(sandbox.handle)


@survival.check(SURVIVAL)
async def files_of_a_task_are_reached_by_the_next_server(ground: Ground) -> None:
    spec = await ground.spec(owner=Owner.TASK)
    async with _server(ground) as first:
        sandbox = await first.create(spec, fresh("key"))
        await sandbox.write("/workspace/one", pieces(b"first"))
    async with _server(ground) as second:
        try:
            again = await second.attach(sandbox.handle)
            expect(await contents(again, "/workspace/one") == b"first", "what the first wrote is there")
            await again.write("/workspace/one", pieces(b"second"))
            expect(await contents(again, "/workspace/one") == b"second", "and can be written")
        finally:
            await second.destroy(sandbox.handle)


@asynccontextmanager
async def _server(ground: Ground) -> AsyncIterator[Backend]:
    """A server's life: its backend is closed at the end."""
    assert ground.reopen is not None
    backend = await ground.reopen()
    try:
        yield backend
    finally:
        await backend.close()


snapshots = Section("snapshots")


@snapshots.check("snapshots")
async def snapshot_makes_others_of_the_same_files(ground: Ground) -> None:
    """The files come again, apart from each other; the processes do not."""
    backend = ground.backend
    if not isinstance(backend, Snapshots):
        raise Failed("a backend that offers snapshots can discard them")
    marker = fresh("snapshot")
    async with ground.sandbox() as sandbox:
        if not isinstance(sandbox, Snapshotting):
            raise Failed("a backend that offers snapshots has the method")
        await sandbox.write("/workspace/a/file", pieces(b"saved"))
        await sandbox.start(python("import time; time.sleep(600)", marker), id="stays")
        saved = await sandbox.snapshot()
        await sandbox.write("/workspace/a/file", pieces(b"changed later"))
    expect_gone(marker, "after destroy")
    try:
        async with ground.sandbox(snapshot=saved) as one, ground.sandbox(snapshot=saved) as other:
            expect(await contents(one, "/workspace/a/file") == b"saved", "a sandbox of it has the files")
            await one.write("/workspace/a/file", pieces(b"one's own"))
            expect(await contents(other, "/workspace/a/file") == b"saved", "and changes no other")
            expect_gone(marker, "in a sandbox of a snapshot")
    finally:
        await backend.discard(saved)
        await backend.discard(saved)
    try:
        made = await backend.create(await ground.spec(snapshot=saved), fresh("key"))
    except SkillyardError:
        return
    await backend.destroy(made.handle)
    expect(False, "a discarded snapshot makes no sandbox")


keeping = Section("keeping")
KEPT = r'''
import ctypes, subprocess, sys, time
BEATS = HERE + "/workspace/ask"
SOURCE = """
import sys, time
for beat in range(6000):
    try:
        print(sys.argv[1], open(sys.argv[2]).read(), flush=True)
    except OSError:
        pass
    time.sleep(0.05)
"""
def main(args):
    subprocess.Popen([sys.executable, "-c", SOURCE, "below", BEATS], start_new_session=True)
    reaper = ctypes.c_int()
    if ctypes.CDLL(None).prctl(37, ctypes.byref(reaper), 0, 0, 0) == 0 and reaper.value:
        # It leaves the tree as daemons do: a session of its own, and a parent that is gone.
        leave = "import subprocess, sys\nsubprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True)"
        subprocess.run([sys.executable, "-c", leave, "-c", SOURCE, "orphan", BEATS], check=True)
        print("reaps", flush=True)
    sys.argv[1:] = ["beat", BEATS]
    print("ready", flush=True)
    exec(SOURCE)
'''
HIDES = r"""
import ctypes, os, subprocess, sys, threading, time
name = sys.argv[1]
x86 = os.uname().machine == "x86_64"
wait = "import time; time.sleep(300)"
def child(**options):
    subprocess.Popen([sys.executable, "-c", wait, name], **options)
child()
child(start_new_session=True)
child(process_group=0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        child()
    os._exit(0)
CLONE_PARENT = 0x8000
if ctypes.CDLL(None).syscall(56 if x86 else 220, CLONE_PARENT | 17, 0, 0, 0, 0) == 0:
    os.execv(sys.executable, [sys.executable, "-c", wait, name])
# The first thread of this one ends, so that it looks dead.
gone = (
    "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(300,)).start()\n"
    f"ctypes.CDLL(None).syscall({60 if x86 else 93}, 0)"
)
subprocess.Popen([sys.executable, "-c", gone, name])
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
# A chain of processes, each with the pid of nobody who was seen, that wake each other.
chain = (
    "import os, signal, sys\n"
    "while True:\n"
    "    if os.fork(): os._exit(0)\n"
    "    for pid in range(os.getpid() - 3, os.getpid()):\n"
    "        try: os.kill(pid, signal.SIGCONT)\n"
    "        except OSError: pass\n"
)
for _ in range(3):
    subprocess.Popen([sys.executable, "-c", chain, name], start_new_session=True)
print("ready", flush=True)
"""
TOUCHES = """
import os
found = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
for pid in found:
    for flags in (os.O_RDWR, os.O_WRONLY):
        try:
            os.open(f"/proc/{pid}/mem", flags)
        except OSError:
            continue
        print("writable", pid)
print("looked", len(found) > 0)
"""


async def _cleared(sandbox: Sandbox) -> list[str]:
    """Clears a sandbox as between two calls; returns what is left in it."""
    process = await sandbox.start(Guest(clear_request(), alone=True), id=fresh("clear"))
    left: list[str] = _result(await collect(process, Stream.CHANNEL), await process.wait())["left"]
    return left


def _result(channel: bytes, ending: Ending) -> dict[str, Any]:
    reader = FrameReader()
    for _ in reader.feed(channel):
        continue
    final = reader.finish()
    expect(isinstance(final, Result), "a program of ours came to its end", (final, ending))
    assert isinstance(final, Result), "it was looked at"
    return final.value()


@asynccontextmanager
async def _keeping(ground: Ground) -> AsyncIterator[tuple[Sandbox, Process]]:
    async with ground.sandbox() as sandbox:
        kept = await sandbox.start(Guest(code(KEPT).request, kept=True), id="kept")
        await _goes_on(sandbox, kept)
        yield sandbox, kept


async def _goes_on(sandbox: Sandbox, kept: Process) -> None:
    word = fresh("word").encode()
    await sandbox.write("/workspace/ask", pieces(word))
    await sandbox.end_files()
    orphan = [b"orphan"] if b"reaps" in await until(kept, b"ready") else []
    for who in (b"beat", b"below", *orphan):
        await until(kept, who + b" " + word)


LEAVES = """
import os, sys
print(sorted(os.listdir(HERE + "/tmp")), os.path.exists("mine"))
for path in ("mine", HERE + "/tmp/left"):
    open(path, "w").close()
"""


@keeping.check("private_proc")
async def calls_find_files_of_the_workspace_alone(ground: Ground) -> None:
    """A session keeps its sandbox: calls that leave nothing are seen to leave nothing."""
    async with ground.sandbox() as sandbox:
        for before in (b"[] False\n", b"[] True\n"):
            call = await sandbox.start(python(LEAVES), id=fresh("call"))
            expect(await collect(call) == before, "a call finds the workspace, and nothing else")
            await call.wait()
            left = await _cleared(sandbox)
            expect(left == [], "nothing is left of it", left)


@keeping.check("keeping")
async def kept_program_outlives_a_clearing(ground: Ground) -> None:
    async with _keeping(ground) as (sandbox, kept):
        for _ in range(3):
            await sandbox.start(code("def main(args): return 1"), id=(id := fresh("call")))
            await (await sandbox.process(id)).wait()
            expect(await _cleared(sandbox) == [], "nothing else is left")
        await _goes_on(sandbox, kept)
        await kept.kill("over")
        expect((await kept.wait()).outcome is Outcome.CANCELLED, "it can be ended")
        expect(await _cleared(sandbox) == [], "with all that it started")


@keeping.check("keeping")
async def no_process_of_a_call_looks_kept(ground: Ground) -> None:
    marker = fresh("hides")
    async with _keeping(ground) as (sandbox, kept):
        call = await sandbox.start(python(HIDES, marker), id="hides")
        await until(call, b"ready")
        await call.wait()
        expect(await _cleared(sandbox) == [], "nothing of a call is left")
        await eventually(lambda: not processes(marker), "every process of a call is ended", 30.0)
        if kept_ending := await _ended_already(kept):
            expect(kept_ending.outcome is Outcome.SIGNAL, "or all is ended with it", kept_ending)
        else:
            await _goes_on(sandbox, kept)


async def _cell(sandbox: Sandbox, source: str | None, id: str = "") -> Process:
    call = GuestCall("blob:cells-", code=source or "").request() | {"code": source}
    return await sandbox.start(Guest(cell_request(call, "interpreter")), id=id or fresh("cell"))


async def _value(sandbox: Sandbox, source: str) -> object:
    process = await _cell(sandbox, source)
    return _result(await collect(process, Stream.CHANNEL), await process.wait()).get("result")


@keeping.check("keeping")
async def interpreter_keeps_the_names_of_its_cells(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        begun = interpreter_request(GuestCall("blob:cells-", code="").request(), "interpreter")
        kept = await sandbox.start(Guest(begun, kept=True), id="interpreter")
        expect(await _value(sandbox, "import time\nx = 41\nx + 1") == 42, "its last expression is told")
        expect(await _cleared(sandbox) == [], "nothing else is left")
        expect(await _value(sandbox, "x") == 41, "and its names are there")
        late = await _cell(sandbox, "x = 43; print('begun')\nwhile True: time.sleep(0.01)")
        await until(late, b"begun")
        await late.kill("enough")
        expect((await late.wait()).outcome is Outcome.CANCELLED, "a cell can be ended")
        asked = await (await _cell(sandbox, None)).wait()
        expect(asked.code == 0, "the interpreter answers when the cell is over", asked)
        expect(await _value(sandbox, "x") == 43, "and has its names still")
        crash = await _cell(sandbox, "import os; os._exit(9)")
        expect((await crash.wait()).code == 1, "a cell says that it ended the interpreter")
        ending = await kept.wait()
        expect(ending.outcome is Outcome.EXIT and ending.code == 9, "which ended as the cell made it", ending)
        expect((await (await _cell(sandbox, None)).wait()).code == 1, "and answers no more")


async def _ended_already(process: Process) -> Ending | None:
    try:
        async with asyncio.timeout(0.5):
            return await process.wait()
    except TimeoutError:
        return None


@keeping.check("keeping")
async def nobody_writes_into_a_kept_program(ground: Ground) -> None:
    async with _keeping(ground) as (sandbox, kept):
        look = await sandbox.start(python(TOUCHES), id="look")
        told = await collect(look)
        expect(b"writable" not in told, "no program writes into the memory of another", told)
        expect(b"looked True" in told, "and it has looked", told)
        await _goes_on(sandbox, kept)


MEANWHILE = """
import ctypes, json, os, resource, sys
KINDS = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_DATA, resource.RLIMIT_STACK)
x86 = os.uname().machine == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
def call(x86_number, other, *arguments):
    if libc.syscall(x86_number if x86 else other, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
attempts = {
    "niceness": lambda: os.setpriority(os.PRIO_PROCESS, 1, 15),
    "niceness of a user": lambda: os.setpriority(os.PRIO_USER, 0, 15),
    "scheduler": lambda: call(144, 119, 1, 5, ctypes.byref(ctypes.c_int(0))),
    "parameters": lambda: call(142, 118, 1, ctypes.byref(ctypes.c_int(0))),
    "input and output": lambda: call(251, 30, 1, 1, 3 << 13),
    "input and output of a user": lambda: call(251, 30, 3, os.getuid(), 3 << 13),
    **{f"limit {kind}": lambda kind=kind: resource.prlimit(1, kind, (16, 16)) for kind in KINDS},
}
done = []
for name, attempt in attempts.items() if sys.argv[1:] else ():
    try:
        attempt()
        done.append(name)
    except OSError:
        pass
own = [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), [resource.getrlimit(kind) for kind in KINDS]]
os.setpriority(os.PRIO_PROCESS, os.getpid(), own[0] + 1)
print(json.dumps([done, own]))
"""


@keeping.check("seccomp", "pid_namespace")
async def no_program_slows_the_next_one(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        _, before = await look(sandbox, MEANWHILE)
        done, _ = await look(sandbox, MEANWHILE, "all")
        _, after = await look(sandbox, MEANWHILE)
    expect(not done, "no program changes the first process, which starts the next ones", done)
    expect(before == after, "and those have the priority and limits of the first", (before, after))


OBJECTS = """
import ctypes, json, os
x86 = os.uname().machine == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
CREATE = 0o1000 | 0o600
calls = {
    "shmget": (29, 194, 77, 4096, CREATE),
    "semget": (64, 190, 77, 1, CREATE),
    "msgget": (68, 186, 77, CREATE),
    "mq_open": (240, 180, b"left", os.O_CREAT | os.O_RDWR, 0o600, 0),
    "add_key": (248, 217, b"user", b"left", b"left", 4, -4),
}
made = [name for name, (one, other, *rest) in calls.items() if libc.syscall(one if x86 else other, *rest) >= 0]
left = sorted(os.listdir(HERE + "/dev/shm") + os.listdir(HERE + "/tmp"))
for place in ("/dev/shm", "/tmp"):
    for kind in ("left", ".left"):
        os.makedirs(HERE + place + "/" + kind)
        open(HERE + place + "/" + kind + "/file", "w").close()
        os.chmod(HERE + place + "/" + kind, 0)
    try:
        os.chmod(HERE + place, 0o500)
    except PermissionError:
        pass  # it is root's in an engine's container
print(json.dumps([made, left]))
"""


@keeping.check("seccomp")
async def nothing_in_memory_is_left(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for _ in range(2):
            made, left = await look(sandbox, OBJECTS)
            expect(not made, "no program makes an object that outlives it", made)
            expect(not left, "and none finds files of an earlier call in memory", left)
            expect(await _cleared(sandbox) == [], "a sandbox is cleared of them")
