"""Work that outlives the server that started it, where a backend offers that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skillyard.domain.errors import SandboxGone
from skillyard.domain.sandbox.spec import Owner
from skillyard.domain.work.record import Outcome
from skillyard.ports.sandbox import Backend
from skillyard.testing.sandbox_suite.check import SURVIVAL, Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, collect, eventually, fresh, python, until
from skillyard.testing.sandbox_suite.observe import expect_gone, processes

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


@asynccontextmanager
async def _server(ground: Ground) -> AsyncIterator[Backend]:
    """A server's life: its backend is closed at the end."""
    assert ground.reopen is not None
    backend = await ground.reopen()
    try:
        yield backend
    finally:
        await backend.close()
