"""Limits: the most that a program may use, and its end when it takes more.

The host does not notice it.
"""

from __future__ import annotations

import asyncio
import time

from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Ending, Outcome
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, look, python, run, start

limits = Section("limits")

MIB = 1 << 20

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


@limits.check("memory")
async def memory_hog_of_many_ends_as_memory(ground: Ground) -> None:
    result = await ground.run(python(TOGETHER), Limits(timeout_ms=20_000, memory_mb=128, disk_mb=8))
    _expect_memory(result.ending, "processes that are too large together")


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


@limits.check("disk")
async def full_disk_is_no_memory_kill(ground: Ground) -> None:
    fill = "f = open(HERE + '/workspace/fill', 'wb')\nwhile True: f.write(b'x' * 65536)"
    result = await ground.run(python(fill), Limits(timeout_ms=20_000, disk_mb=64, memory_mb=64))
    full = any(text in result.stderr for text in (b"No space left", b"File too large"))
    told = result.ending.outcome is Outcome.DISK or full
    expect(told and "memory" not in result.ending.hits, "filling the disk ends as a full disk", result)


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


def _expect_memory(ending: Ending, what: str) -> None:
    """MEMORY, or a program that saw the kill itself and exited: then ``hits`` names the limit."""
    told = ending.outcome is Outcome.MEMORY or (ending.outcome is Outcome.EXIT and "memory" in ending.hits)
    expect(told, f"{what} end as memory", ending)
