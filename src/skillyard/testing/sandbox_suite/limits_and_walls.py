"""Limits, and walls that the host must look at.

A program that takes more than its limit ends, and the host does not notice it. The library of attacks tries the other
walls.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Ending, Outcome
from skillyard.ports.sandbox import Sandbox
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import (
    Ground,
    code,
    fresh,
    look,
    processes,
    python,
    run,
    start,
    until,
    user_ids,
)
from skillyard.testing.sandbox_suite.guest import last

limits = Section("limits")
walls = Section("walls")

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


STATUS = """
import ctypes, os
def main(args):
    told = dict(line.split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)
    told['NoNewPrivs'] = ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)
    names = ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')
    shared = [name for name, link in args['host'].items()
              if os.path.exists('/proc/self/ns/' + name) and os.readlink('/proc/self/ns/' + name) == link]
    return {**{name: told.get(name) for name in names}, 'shared': shared}
"""
WAIT = "print('here', flush=True); input()"


@walls.check()
async def a_command_stands_behind_the_walls_of_a_guest(ground: Ground) -> None:
    """Attacks are guests: a command of the same sandbox must be no more than they are."""
    spaces = ("user", "mnt", "pid", "net", "ipc", "uts")
    args = {"host": {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in spaces}}
    async with ground.sandbox() as sandbox:
        guest = last((await run(sandbox, code(STATUS, args))).channel, "R")
        command = await look(sandbox, STATUS + f"import json; print(json.dumps(main({args!r})))")
    expect(command == guest, "identity, capabilities, filter, and namespaces of the host", (command, guest))


@walls.check("non_root")
async def user_is_not_root_outside(ground: Ground) -> None:
    marker = fresh("who")
    async with ground.sandbox() as sandbox:
        await until(await start(sandbox, python(WAIT, marker, stdin=True)), b"here")
        users = set().union(*(user_ids(pid) for pid in await _outside(ground, sandbox, marker)))
    expect(users and 0 not in users, "foreign code is not root on the host", users)


@walls.check("own_uid")
async def two_sandboxes_are_two_users(ground: Ground) -> None:
    marker = [fresh("one"), fresh("two")]
    async with ground.sandbox() as one, ground.sandbox() as two:
        for sandbox, name in zip((one, two), marker, strict=True):
            await until(await start(sandbox, python(WAIT, name, stdin=True)), b"here")
        pids = [await _outside(ground, box, name) for box, name in zip((one, two), marker, strict=True)]
        users = [set().union(*(user_ids(pid) for pid in each)) for each in pids]
    expect(users[0].isdisjoint(users[1]), "each sandbox has a user of its own on the host", users)


@walls.check("user_namespace")
async def user_namespace_is_its_own(ground: Ground) -> None:
    space = await ground.look("import json, os; print(json.dumps(os.readlink('/proc/self/ns/user')))")
    expect(space != str(Path("/proc/self/ns/user").readlink()), "the user namespace is another one", space)


@walls.check()
async def descriptors_of_the_host_are_not_inherited(ground: Ground) -> None:
    source = """
import os
def main(args):
    paths = [f'/proc/self/fd/{number}' for number in os.listdir('/proc/self/fd') if int(number) > 2]
    return {'links': [os.readlink(path) for path in paths if os.path.lexists(path)]}
"""
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        handed = str(Path(f"/proc/self/fd/{reading}").readlink())
        async with ground.sandbox() as sandbox:
            command = (await look(sandbox, source + "import json; print(json.dumps(main({})))"))["links"]
            guest = last((await run(sandbox, code(source))).channel, "R")["links"]
    finally:
        os.close(reading)
        os.close(writing)
    expect(command == [], "a command has its three descriptors and no more", command)
    expect(handed not in guest and len(guest) <= 2, "a guest has its channel, and a pipe for its last words", guest)


async def _outside(ground: Ground, sandbox: Sandbox, marker: str) -> list[int]:
    """Returns the processes of the host that run foreign code.

    They are those with the marker that began last, unless the backend's programs are not processes of the host.
    """
    if ground.witness is not None:
        return await ground.witness(sandbox.handle)
    return sorted(processes(marker))[-1:]
