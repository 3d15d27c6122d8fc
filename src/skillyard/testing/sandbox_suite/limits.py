"""Limits: what a program may use, how it ends when it takes more, and that the host does not notice."""

from __future__ import annotations

import asyncio
import json
import time

from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Ending, Outcome
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, fresh, look, python, run, start
from skillyard.testing.sandbox_suite.observe import expect_gone

limits = Section("limits")

MIB = 1 << 20

ALONE = """
held = []
while True: held.append(b'x' * (4 << 20))
"""
TOGETHER = """
import os, sys, time
for number in range(8):
    if os.fork() == 0:
        held = []
        for piece in range(10):
            held.append(b'x' * (4 << 20))
            time.sleep(0.02)
        time.sleep(600)
while True:
    pid, status = os.wait()
    if status: sys.exit(3)
"""
"""Eight children of 40 MiB: none is large, all together are. The disk limit is kept small beside it, for a kernel
limit may cover both (design §5)."""

FORK_UNTIL_REFUSED = """
import json, os, signal, time
count = 0
while count < 2000:
    try:
        if os.fork() == 0: time.sleep(600)
    except OSError as refused:
        print(json.dumps([count, refused.errno]), flush=True)
        break
    count += 1
"""
THREAD_UNTIL_REFUSED = """
import json, threading
release, count = threading.Event(), 0
try:
    while count < 2000:
        threading.Thread(target=release.wait, daemon=True).start()
        count += 1
except RuntimeError: pass
print(json.dumps(count), flush=True)
release.set()
"""
HUNDRED_THREADS = """
import subprocess, sys
source = 'import threading\\nrelease = threading.Event()\\n'
source += 'threads = [threading.Thread(target=release.wait) for _ in range(100)]\\n'
source += 'try:\\n    for one in threads: one.start()\\n    print(threading.active_count())\\nfinally: release.set()'
done = subprocess.run([sys.executable, '-c', source], capture_output=True, text=True)
print(done.stdout + done.stderr[-300:])
"""
BOMB = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""
FILL = """
import errno, json, os, sys
written = 0
for place in sys.argv[1:]:
    with open(HERE + place + '/fill', 'wb', buffering=0) as file:
        try:
            while written < 200 << 20: written += file.write(b'x' * 65536)
        except OSError as full:
            failed = full.errno
print(json.dumps([written, errno.errorcode[failed]]))
"""
MANY_FILES = """
import errno, json, os
count = 0
try:
    while count < 400_000:
        os.close(os.open(f'{HERE}/workspace/{count}', os.O_CREAT | os.O_WRONLY))
        count += 1
except OSError as full:
    print(json.dumps([count, errno.errorcode[full.errno]]))
else:
    print(json.dumps([count, 'none']))
"""
BURN = """
import json, os, time
began = time.monotonic()
workers = []
for number in range(4):
    pid = os.fork()
    if pid == 0:
        while time.monotonic() < began + 1.5: pass
        os._exit(0)
    workers.append(pid)
for pid in workers: os.waitpid(pid, 0)
used = os.times()
print(json.dumps([used.children_user + used.children_system, time.monotonic() - began]))
"""
UNSTOPPABLE = """
import signal
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP): signal.signal(number, signal.SIG_IGN)
while True: pass
"""


@limits.check("timeout")
async def endless_loop_that_ignores_signals_ends(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(UNSTOPPABLE), timeout_ms=500)
        async with asyncio.timeout(10):
            ending = await process.wait()
    expect(ending.outcome is Outcome.TIMEOUT, "no signal is needed that a program can ignore", ending)


@limits.check("memory")
async def memory_hog_ends_alone(ground: Ground) -> None:
    result = await ground.run(python(ALONE), Limits(timeout_ms=20_000, memory_mb=64, disk_mb=8))
    refused = result.ending.outcome is Outcome.EXIT and b"MemoryError" in result.stderr
    told = result.ending.outcome is Outcome.MEMORY or refused
    expect(told, "a memory hog ends as memory, or is refused by MemoryError", result)


@limits.check("memory")
async def memory_hog_of_many_ends_as_memory(ground: Ground) -> None:
    result = await ground.run(python(TOGETHER), Limits(timeout_ms=20_000, memory_mb=128, disk_mb=8))
    _expect_memory(result.ending, "processes that are too large together")


@limits.check("memory")
async def memory_within_the_limit_is_given(ground: Ground) -> None:
    source = "held = b'x' * (90 << 20); print(len(held) >> 20)"
    result = await ground.run(python(source), Limits(timeout_ms=20_000, memory_mb=160))
    expect(result.stdout == b"90\n", "what is within the limit is given", result)


@limits.check("pids")
async def processes_are_counted(ground: Ground) -> None:
    if await ground.supervises("pids"):
        await _ended_as_processes(ground, FORK_UNTIL_REFUSED + "\ntime.sleep(30)")
        return
    async with ground.sandbox(Limits(timeout_ms=20_000, pids=32)) as sandbox:
        marker = fresh("forks")
        count, errno = await look(sandbox, FORK_UNTIL_REFUSED, marker)
        expect(16 <= count <= 32 and errno == 11, "forks are refused (EAGAIN) at the limit", (count, errno))
        await ground.backend.destroy(sandbox.handle)
        expect_gone(marker, "after destroy")


@limits.check("pids")
async def threads_are_counted(ground: Ground) -> None:
    if await ground.supervises("pids"):
        await _ended_as_processes(ground, THREAD_UNTIL_REFUSED.replace("release.set()", "release.wait()"))
        return
    count = await ground.look(THREAD_UNTIL_REFUSED, limits=Limits(timeout_ms=20_000, pids=32))
    expect(16 <= count <= 32, "threads are refused at the limit", count)


@limits.check("memory")
async def a_hundred_threads_start_in_a_child(ground: Ground) -> None:
    """Starts a hundred threads in a child, at the default limits and with stacks as usual."""
    result = await ground.run(python(HUNDRED_THREADS), Limits(timeout_ms=20_000))
    expect(result.stdout.split() == [b"101"], "a hundred threads start in a child", result)


@limits.check("pids")
async def limits_of_two_sandboxes_do_not_add_up(ground: Ground) -> None:
    few = Limits(timeout_ms=20_000, pids=32)
    if await ground.supervises("pids"):
        many = "import os, time\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(0.5); os._exit(0)\nos.wait()"
        async with ground.sandbox(few) as first, ground.sandbox(few) as second:
            both = await asyncio.gather(run(first, python(many)), run(second, python(many)))
        expect(all(one.ending.code == 0 for one in both), "each sandbox has its processes for itself", both)
        return
    async with ground.sandbox(few) as first, ground.sandbox(few) as second:
        counts = await asyncio.gather(look(first, FORK_UNTIL_REFUSED), look(second, FORK_UNTIL_REFUSED))
    expect(all(16 <= count <= 32 for count, _ in counts), "each sandbox has its processes for itself", counts)


@limits.check("pids", "timeout")
async def fork_bomb_is_survived(ground: Ground) -> None:
    marker = fresh("bomb")
    async with ground.sandbox(Limits(pids=48)) as sandbox:
        process = await start(sandbox, python(BOMB, marker), timeout_ms=1_000)
        async with asyncio.timeout(15):
            ending = await process.wait()
        expect_gone(marker, "when a fork bomb has ended")
        expect(ending.outcome in (Outcome.TIMEOUT, Outcome.PROCESSES), "it ends by a limit", ending)
    after = await ground.run(python("print('alive')"))
    expect(after.stdout == b"alive\n", "and the next sandbox works", after)


@limits.check("disk")
async def disk_is_full_at_the_limit(ground: Ground) -> None:
    if await ground.supervises("disk"):
        await _ended_as_disk(ground, "/workspace")
        await _ended_as_disk(ground, "/dev/shm")  # noqa: S108 - a path inside
        return
    for place in ("/workspace", "/tmp", "/dev/shm"):  # noqa: S108 - paths inside
        async with ground.sandbox(Limits(timeout_ms=20_000, disk_mb=8, memory_mb=64)) as sandbox:
            written, errno = await look(sandbox, FILL, place)
        expect(errno in ("ENOSPC", "EDQUOT"), f"filling {place} fails as a full disk, nothing else", errno)
        expect(written <= 9 * MIB, f"{place} holds no more than the limit", written)
        expect(place != "/workspace" or written >= 6 * MIB, f"{place} holds as much as the limit says", written)


@limits.check("disk")
async def disk_is_one_for_all_places(ground: Ground) -> None:
    if await ground.supervises("disk"):
        await _ended_as_disk(ground, "/workspace", "/tmp", "/dev/shm")  # noqa: S108 - paths inside
        return
    async with ground.sandbox(Limits(timeout_ms=20_000, disk_mb=8, memory_mb=64)) as sandbox:
        written, _ = await look(sandbox, FILL, "/workspace", "/tmp", "/dev/shm")  # noqa: S108 - paths inside
    expect(written <= 9 * MIB, "the limit covers /workspace, /tmp and /dev/shm together", written)


@limits.check("disk")
async def full_disk_is_no_memory_kill(ground: Ground) -> None:
    fill = "f = open(HERE + '/workspace/fill', 'wb')\nwhile True: f.write(b'x' * 65536)"
    result = await ground.run(python(fill), Limits(timeout_ms=20_000, disk_mb=64, memory_mb=64))
    full = any(text in result.stderr for text in (b"No space left", b"File too large"))
    told = result.ending.outcome is Outcome.DISK or full
    expect(told and "memory" not in result.ending.hits, "filling the disk ends as a full disk", result)


@limits.check("disk")
async def empty_files_count_too(ground: Ground) -> None:
    done = await ground.run(python(MANY_FILES), Limits(timeout_ms=50_000, disk_mb=8, memory_mb=64))
    if done.ending.outcome is Outcome.EXIT:
        count, errno = json.loads(done.stdout)
        expect(errno in ("ENOSPC", "EDQUOT"), "files without bytes end at a limit too", (count, errno))
    else:
        told = done.ending.outcome in (Outcome.DISK, Outcome.MEMORY)
        expect(told, "or the program that makes them does, by what they take of its memory", done.ending)


@limits.check("cpus")
async def processors_are_limited(ground: Ground) -> None:
    done = await ground.run(python(BURN), Limits(timeout_ms=20_000, cpus=1.0))
    inside_s, wall_s = json.loads(done.stdout)
    used_ms = done.ending.usage.cpu_ms  # a kernel of its own may count time that it was not given
    used = min(inside_s, inside_s if used_ms is None else used_ms / 1000) / wall_s
    expect(used < 1.4, "four busy processes get the time of one processor", used)


@limits.check()
async def larger_limits_are_given(ground: Ground) -> None:
    asked = Limits(timeout_ms=20_000, memory_mb=1024, cpus=2.0, pids=512, disk_mb=600)
    result = await ground.run(python("print('ran')"), asked)
    expect(result.stdout == b"ran\n", "limits are the caller's to choose", result)


@limits.check("memory", "timeout")
async def one_sandbox_at_its_limits_leaves_others_alone(ground: Ground) -> None:
    async with ground.sandbox(Limits(timeout_ms=20_000, memory_mb=64, disk_mb=8)) as hog, ground.sandbox() as other:
        process = await start(hog, python(TOGETHER))
        began = time.monotonic()
        result = await run(other, python("print('fine')"))
        expect(result.stdout == b"fine\n" and time.monotonic() - began < 10, "neighbours go on", result)
        await process.wait()


async def _ended_as_processes(ground: Ground, source: str) -> None:
    """A limit that is watched: the program that passes it is ended."""
    marker = fresh("processes")
    async with ground.sandbox(Limits(timeout_ms=20_000, pids=32)) as sandbox:
        ending = (await run(sandbox, python(source, marker))).ending
        expect(ending.outcome is Outcome.PROCESSES, "too many end as processes", ending)
        expect_gone(marker, "when it was told")


async def _ended_as_disk(ground: Ground, *places: str) -> None:
    """A limit that is watched: the program that passes it is ended. Each file is within it."""
    source = """
import sys, time
number = 0
while True:
    for place in sys.argv[1:]:
        with open(f'{HERE}{place}/fill-{number}', 'wb') as file: file.write(b'x' * (1 << 20))
        number += 1
        time.sleep(0.002)
"""
    async with ground.sandbox(Limits(timeout_ms=20_000, disk_mb=8, memory_mb=64)) as sandbox:
        ending = (await run(sandbox, python(source, *places))).ending
    expect(ending.outcome is Outcome.DISK, f"filling {', '.join(places)} ends as disk", ending)


def _expect_memory(ending: Ending, what: str) -> None:
    """MEMORY, or a program that saw the kill itself and exited: then ``hits`` names the limit."""
    told = ending.outcome is Outcome.MEMORY or (ending.outcome is Outcome.EXIT and "memory" in ending.hits)
    expect(told, f"{what} end as memory", ending)
