"""Stops the processes of a sandbox, and lets them go on.

A program of ours in the sandbox does both: it stops each other process, and lets those go on when its input ends. The
memory stays where it is. Nothing that stands still can start a process, or end that program. Until it is told to keep
them, it does so for seconds only: then a server that is killed before it wrote the pause down leaves none standing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.domain.sandbox.guarantees import OWN_KERNEL, Level
from skillyard.domain.sandbox.spec import Argv, Stream
from skillyard.domain.work.record import RunRecord
from skillyard.engine.services.programs import Programs
from skillyard.ports.sandbox import Sandbox

BOUND_S = 30.0
"""Time in which all processes must stand still."""
_DONE = b"paused\n"
_LONGEST_MS = 25 * 3600 * 1000
"""More than a sandbox lives."""
_CODE = """
import os, select, signal, time

def stat(pid):
    with open(f"/proc/{pid}/stat") as file:
        state, parent = file.read().rpartition(")")[2].split()[:2]
    return state, int(parent)

spared, at = {1, os.getpid()}, os.getppid()
while at > 1:
    spared.add(at)
    at = stat(at)[1]
def look():
    moving, still = set(), set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in spared:
            try:
                (still if stat(int(name))[0] in "TtZX" else moving).add(int(name))
            except OSError:
                moving.add(int(name))  # it ended just now: it may have left another in its place
    return moving, still

moving, before = look()
still, until = before, time.monotonic() + 20
while time.monotonic() < until:
    for pid in [-1] if len(spared) == 2 else moving:
        try:
            os.kill(pid, signal.SIGSTOP)
        except OSError:
            continue
    moving, still = look()
    if not moving:
        break
    time.sleep(0.001)
if not moving:
    os.write(1, b"paused\\n")
    if select.select([0], [], [], 20)[0]:
        while os.read(0, 16):
            pass
for pid in still - before:
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError:
        continue
"""
"""Stops all but the first process, itself, and the processes that started it. Those that stood still before stay so.

Where only the first process is above it, one signal reaches all others at once, and no fork gets away (signal(7)).
"""


def may_pause(record: RunRecord) -> bool:
    """Returns whether a sandbox sees its own processes alone: no others may be stopped.

    A kernel of its own does not let every process go on that was stopped.
    """
    return record.enforced.get("pid_namespace") == Level.KERNEL and OWN_KERNEL not in record.enforced


async def stop(programs: Programs) -> str:
    """Returns the id of the program that holds all others still.

    Raises SandboxFault where they cannot be stopped, SandboxGone, QuotaExceeded.
    """
    program = Argv(("python3", "-I", "-S", "-c", _CODE), cwd="/", stdin=True)
    started = await programs.start(program, None, timeout_ms=_LONGEST_MS)
    held = False
    try:
        async with asyncio.timeout(BOUND_S):
            said = b""
            async for data in started.process.output(Stream.STDOUT):
                said += data
                if held := _DONE in said:
                    return started.id
    except TimeoutError:
        pass
    finally:
        started.__exit__()
        if not held:
            await go_on(programs.sandbox, started.id)
    raise SandboxFault("the processes of the sandbox could not be stopped; try again")


async def keep(sandbox: Sandbox, id: str) -> None:
    """Has the processes stand still until they are let go on. Raises SandboxGone where they went on, SandboxFault."""
    await (await sandbox.process(id)).send(b".")


async def go_on(sandbox: Sandbox, id: str) -> None:
    """Lets the processes go on that the program ``id`` holds still. Raises SandboxGone, SandboxFault."""
    await asyncio.shield(_go_on(sandbox, id))


async def _go_on(sandbox: Sandbox, id: str) -> None:
    process = await sandbox.process(id)
    with suppress(SandboxGone):
        await process.close_stdin()
    await process.wait()
