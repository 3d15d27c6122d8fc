"""Many sandboxes, one after another and at once: the caller's process does not grow."""

from __future__ import annotations

import asyncio
import threading

from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, fresh, python, run
from skillyard.testing.sandbox_suite.observe import children, descriptors, processes

endurance = Section("endurance")


@endurance.check()
async def a_hundred_in_a_row_leave_nothing(ground: Ground) -> None:
    spec = await ground.spec()

    async def cycle() -> None:
        sandbox = await ground.backend.create(spec, fresh("key"))
        await ground.backend.destroy(sandbox.handle)

    for _ in range(5):
        await cycle()
    before = descriptors(), children(), threading.active_count()
    for _ in range(100):
        await cycle()
    after = descriptors(), children(), threading.active_count()
    grown = [
        name
        for name, was, now in zip(("descriptors", "children", "threads"), before, after, strict=True)
        if now > was + 4
    ]
    expect(not grown, "creating and destroying leaves nothing in the calling process", (before, after))


@endurance.check()
async def twenty_at_once(ground: Ground) -> None:
    marker = fresh("many")

    async def one(number: int) -> bytes:
        async with ground.sandbox() as sandbox:
            return (await run(sandbox, python("import sys; print(sys.argv[2])", marker, str(number)))).stdout

    printed = await asyncio.gather(*(one(number) for number in range(20)))
    expect(printed == [b"%d\n" % number for number in range(20)], "each gets its own output", printed)
    expect(not processes(marker), "and none is left", processes(marker))


@endurance.check()
async def create_that_is_given_up_leaves_nothing(ground: Ground) -> None:
    spec, key = await ground.spec(), fresh("key")
    for turns in range(8):
        creating = asyncio.create_task(ground.backend.create(spec, f"{key}-{turns}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        creating.cancel()
        done = await asyncio.gather(creating, return_exceptions=True)
        if not isinstance(done[0], BaseException):
            await ground.backend.destroy(done[0].handle)
    await _forgotten(ground, key)


async def _forgotten(ground: Ground, key: str) -> None:
    """Raises Failed unless no sandbox of these keys is held; a backend may need a moment to hear of it."""
    held = []
    for _ in range(100):
        held = [held for held in await ground.backend.survey() if held.key.startswith(key)]
        if not held:
            return
        await asyncio.sleep(0.05)
    expect(False, "a create whose caller went away leaves no sandbox", held)
