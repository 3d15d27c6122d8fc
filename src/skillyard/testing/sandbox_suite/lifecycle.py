"""Making, finding and destroying sandboxes: one, many at once, and a hundred in a row."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

from skillyard.domain.errors import InvalidInput, ProtectionMissing, SandboxFault, SandboxGone
from skillyard.domain.sandbox.guarantees import ADVISORY, Level
from skillyard.domain.sandbox.spec import Owner, SandboxSpec
from skillyard.ports.sandbox import Standing
from skillyard.testing.sandbox_suite.check import DEADLINE_S, NotApplicable, Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, children, descriptors, fresh, processes, python, run, start

lifecycle = Section("lifecycle")


@lifecycle.check()
async def create_is_idempotent_on_its_key(ground: Ground) -> None:
    spec, key = await ground.spec(), fresh("key")
    first = await ground.backend.create(spec, key)
    try:
        again = await ground.backend.create(spec, key)
        expect(again.handle == first.handle, "a second create with a key gives the first sandbox")
        expect(len([held for held in await ground.backend.survey() if held.key == key]) == 1, "it is held once")
    finally:
        await ground.backend.destroy(first.handle)


@lifecycle.check()
async def doctor_finds_those_of_every_server(ground: Ground) -> None:
    """Other servers may make and end theirs meanwhile, so that no difference is told."""
    if not isinstance(ground.backend, Standing) or ground.reopen is None:
        raise NotApplicable("its sandboxes are counted by their own server alone")
    stranger = await ground.reopen()
    try:
        async with ground.sandbox():
            expect(isinstance(stranger, Standing) and await stranger.standing() > 0, "another server counts it")
    finally:
        await stranger.close()


@lifecycle.check()
async def create_at_once_with_one_key_makes_one(ground: Ground) -> None:
    spec, key = await ground.spec(), fresh("key")
    made = await asyncio.gather(*(ground.backend.create(spec, key) for _ in range(4)))
    handles = {sandbox.handle for sandbox in made}
    for handle in handles:
        await ground.backend.destroy(handle)
    expect(len(handles) == 1, "creates that race with one key give one sandbox", handles)


@lifecycle.check()
async def names_that_it_does_not_have_are_refused(ground: Ground) -> None:
    spec, name = await ground.spec(), fresh("nobody")
    named = (replace(spec, image=name), replace(spec, resource_class=name), replace(spec, snapshot=name))
    for asked in named:
        key = fresh("key")
        try:
            sandbox = await ground.backend.create(asked, key)
        except (InvalidInput, SandboxFault) as refused:
            expect(key not in [held.key for held in await ground.backend.survey()], "nothing is left", refused)
            continue
        await ground.backend.destroy(sandbox.handle)
        expect(False, "create refuses an image, a resource class and a snapshot that it does not have", asked)


@lifecycle.check()
async def key_is_free_again_after_destroy(ground: Ground) -> None:
    spec, key = await ground.spec(), fresh("key")
    first = await ground.backend.create(spec, key)
    await ground.backend.destroy(first.handle)
    second = await ground.backend.create(spec, key)
    try:
        expect(second.handle != first.handle, "a destroyed sandbox is never given again")
        expect((await run(second, python("print(1)"))).stdout == b"1\n", "and the new one works")
    finally:
        await ground.backend.destroy(second.handle)


@lifecycle.check()
async def destroy_at_once_is_one_destroy(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await start(sandbox, python("import time; time.sleep(600)"))
        await asyncio.gather(*(ground.backend.destroy(sandbox.handle) for _ in range(4)))
        expect(sandbox.handle not in {held.handle for held in await ground.backend.survey()}, "it is gone")


@lifecycle.check()
async def prepare_changes_nothing_that_is_seen(ground: Ground) -> None:
    spec = await ground.spec()
    before = {held.handle for held in await ground.backend.survey()}
    await ground.backend.prepare(spec)
    await ground.backend.prepare(spec)
    expect({held.handle for held in await ground.backend.survey()} == before, "what waits ready is not lent")
    result = await ground.run(python("print(1)"))
    expect(result.stdout == b"1\n", "and what is lent works", result)


@lifecycle.check()
async def destroy_is_idempotent(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await run(sandbox, python("pass"))
        await ground.backend.destroy(sandbox.handle)
        usage = await ground.backend.destroy(sandbox.handle)
    expect(usage.cpu_ms is None and usage.wall_ms is None, "a handle that is gone gives an empty usage", usage)


@lifecycle.check()
async def survey_lists_what_is_lent(ground: Ground) -> None:
    key = fresh("key")
    sandbox = await ground.backend.create(await ground.spec(), key)
    try:
        [held] = [held for held in await ground.backend.survey() if held.handle == sandbox.handle]
        expect(held.key == key, "the survey tells the key", held)
        expect(held.owner is Owner.RUN, "the survey tells the owner", held)
        expect(0 <= held.age_s < 30, "the survey tells the age in seconds", held)
    finally:
        await ground.backend.destroy(sandbox.handle)
    left = [held for held in await ground.backend.survey() if held.handle == sandbox.handle]
    expect(not left, "a destroyed sandbox is in no survey", left)


@lifecycle.check()
async def attach_gives_a_working_sandbox(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await run(sandbox, python("open('left', 'w').write('here')"))
        attached = await ground.backend.attach(sandbox.handle)
        result = await run(attached, python("print(open('left').read())"))
        expect(result.stdout == b"here\n", "an attached sandbox is the same one", result)
        expect(attached.handle == sandbox.handle, "and it has the same handle")


@lifecycle.check()
async def attach_of_what_is_gone_says_so(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        gone = sandbox.handle
    for handle in (gone, "no-such-handle", ""):
        try:
            await ground.backend.attach(handle)
        except SandboxGone:
            continue
        expect(False, "attach raises SandboxGone for an unknown handle", handle)


@lifecycle.check()
async def what_is_missing_is_refused(ground: Ground) -> None:
    probe = await ground.backend.probe()
    offered = probe.protections
    weak = {n for n, p in offered.items() if p.level is Level.MISSING} - ADVISORY
    supervised = {n for n, p in offered.items() if p.level is Level.SUPERVISED}
    allowed = (await ground.spec()).allow_degraded
    for name in weak:
        await _refused(ground, SandboxSpec(allow_degraded=allowed - {name}), name)
    for name in supervised:
        await _refused(ground, SandboxSpec(allow_degraded=allowed, kernel_only=frozenset({name})), name)


async def _refused(ground: Ground, spec: SandboxSpec, name: str) -> None:
    try:
        sandbox = await ground.backend.create(spec, fresh("key"))
    except ProtectionMissing as refusal:
        expect(name in refusal.message, "the refusal names what is missing", refusal.message)
        return
    await ground.backend.destroy(sandbox.handle)
    expect(False, "create refuses a spec that demands what the probe does not offer", name)


@lifecycle.check()
async def enforced_is_what_the_probe_offers(ground: Ground) -> None:
    probe = await ground.backend.probe()
    async with ground.sandbox() as sandbox:
        for name, level in probe.enforced().items():
            expect(sandbox.enforced.get(name) == level, f"{name} is in force as offered", sandbox.enforced)


endurance = Section("endurance")
_ENOUGH = 12
"""So many show a thing that each leaves, where a hundred take too long. It is above what may vary."""


@endurance.check()
async def a_hundred_in_a_row_leave_nothing(ground: Ground) -> None:
    spec = await ground.spec()

    async def cycle() -> None:
        sandbox = await ground.backend.create(spec, fresh("key"))
        await ground.backend.destroy(sandbox.handle)

    for _ in range(5):
        await cycle()
    before = descriptors(), children(), threading.active_count()
    until = time.monotonic() + ground.patience * DEADLINE_S / 3
    for number in range(100):
        if number >= _ENOUGH and time.monotonic() > until:
            break
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
    """Raises Failed unless no sandbox of these keys is held.

    A backend may need a moment to hear of it.
    """
    held = []
    for _ in range(100):
        held = [held for held in await ground.backend.survey() if held.key.startswith(key)]
        if not held:
            return
        await asyncio.sleep(0.05)
    expect(False, "a create whose caller went away leaves no sandbox", held)
