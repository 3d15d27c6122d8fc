"""Idle sessions leave a sandbox of another configuration at once, with their files; busy ones when they are idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.skill.skill import SkillKind
from skillyard.domain.work.session import SessionRecord
from skillyard.engine.reaper import STRAY_AFTER_S
from skillyard.engine.sessions import moving
from skillyard.testing.twin_sandbox import TwinSandbox
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill
from tests.unit.engine.sessions.test_kept import KEEPING, end, keep, play, serve
from tests.unit.engine.sessions.test_sessions import ANN, Held, listed, live, pieces, run_cmd

pytestmark = pytest.mark.anyio
FILE = "/workspace/notes.txt"


@pytest.fixture(autouse=True)
async def prepared(rig: Rig) -> None:
    await rig.app.sessions.mover.close()  # each test says when it works
    for name in ("acme.notes", "acme.other"):
        rig.skills.add(a_skill(name, kind=SkillKind.INSTRUCTION))
    rig.backend.script = play


async def begun(rig: Rig, session: str = "work") -> TwinSandbox:
    """Returns the sandbox of a new session, which has a file."""
    known = set(rig.backend.held)
    assert (await run_cmd(rig, session))["status"] == "succeeded"
    [handle] = rig.backend.held.keys() - known
    sandbox = rig.backend.held[handle]
    await sandbox.write(FILE, pieces(b"kept"))
    return sandbox


def change(rig: Rig, image: str = "2") -> str:
    """Has the backend made of another image from now on; returns its revision."""
    return rig.app.backends.admit(rig.backend, replace(rig.extra["probe"], facts={"image": image})).revision


async def only(rig: Rig) -> tuple[SessionRecord, TwinSandbox]:
    (session,), (sandbox,) = await live(rig), rig.backend.held.values()
    assert session.sandbox == sandbox.handle
    return session, sandbox


async def text(sandbox: TwinSandbox) -> bytes:
    return b"".join([piece async for piece in sandbox.read(FILE)])


@asynccontextmanager
async def moving_on(rig: Rig) -> AsyncIterator[None]:
    mover = rig.app.sessions.mover
    mover.begin()
    async with asyncio.timeout(30):
        yield
    await mover.close()


async def moved(rig: Rig, old: TwinSandbox) -> None:
    while old.handle in rig.backend.held or rig.app.sessions._keeping.turns.taken((await live(rig))[0].key):
        await asyncio.sleep(0)


async def test_an_idle_session_gives_its_sandbox_up_at_once_and_keeps_its_files(rig: Rig) -> None:
    old = await begun(rig)
    [before] = await live(rig)
    rig.clock.time += 7
    async with moving_on(rig):
        await rig.app.sessions.mover.look()
        assert (await only(rig))[1] is old, "its revision is the same"
        revision = change(rig)
        await moved(rig, old)
    after, new = await only(rig)
    [told] = await listed(rig)
    assert (told["revision"], told["state"], told["runs"], await text(new)) == (revision, "ready", 1, b"kept")
    assert (after.used_at, after.hard_until, after.call) == (before.used_at, before.hard_until, None)
    assert rig.backend.destroyed == [old.handle]
    assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
    assert await text((await only(rig))[1]) == b"kept"
    assert sorted(rig.backend.destroyed) == sorted({old.handle, new.handle})


async def test_a_busy_session_is_moved_when_it_is_idle(rig: Rig) -> None:
    old = await begun(rig)
    held = Held(rig)
    async with moving_on(rig):
        call = asyncio.create_task(run_cmd(rig))
        await held.begun.wait()
        change(rig)
        await rig.app.sessions.mover.look()
        assert (await only(rig))[1] is old
        held.may_end.set()
        assert (await call)["status"] == "succeeded"
        await moved(rig, old)
    assert await text((await only(rig))[1]) == b"kept"
    assert rig.backend.destroyed == [old.handle]


async def test_a_session_with_a_service_is_moved_behind_it(rig: Rig) -> None:
    keep(rig, KEEPING)
    async with asyncio.timeout(30):
        record = await serve(rig)
        _, old = await only(rig)
        change(rig)
        await rig.app.sessions.mover.look()
        assert (await only(rig))[1] is old
        assert not old.processes[record.run_id].ended.done()
        await end(rig, record)
        async with moving_on(rig):
            await rig.app.sessions.reap()
            await moved(rig, old)
        assert rig.backend.destroyed == [old.handle]


async def halfway(rig: Rig) -> tuple[asyncio.Task[None], asyncio.Event]:
    """Begins a move; returns when it has both sandboxes, with what lets it go on."""
    change(rig)
    rig.backend.gate = gate = asyncio.Event()
    moving = asyncio.create_task(rig.app.sessions.mover.look())
    while len(rig.backend.held) < 2:
        await asyncio.sleep(0)
    return moving, gate


async def test_a_call_that_comes_meanwhile_waits_for_the_move(rig: Rig) -> None:
    """However short its patience is: no other call has the session."""
    old = await begun(rig)
    async with asyncio.timeout(30):
        moving, gate = await halfway(rig)
        call = asyncio.create_task(run_cmd(rig, wait_ms=0))
        await rig.app.sessions.reap()
        gate.set()
        await moving
        assert (await call)["status"] == "succeeded"
        assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
    _, new = await only(rig)
    assert (await text(new), old.gone) == (b"kept", True)
    assert len(rig.backend.destroyed) == len(set(rig.backend.destroyed)) == 2


async def test_a_session_that_is_ended_meanwhile_leaves_nothing(rig: Rig) -> None:
    await begun(rig)
    async with asyncio.timeout(30):
        moving, gate = await halfway(rig)
        ending = asyncio.create_task(rig.call("skills.end_session", ANN, session_id="work"))
        gate.set()
        await moving
        assert (await ending)["ended_by"] == "ann"
    assert (rig.backend.held, await live(rig)) == ({}, [])


async def test_a_server_that_ends_meanwhile_leaves_the_session_as_it_was(rig: Rig) -> None:
    old = await begun(rig)
    change(rig)
    rig.backend.gate = asyncio.Event()
    async with asyncio.timeout(30):
        mover = rig.app.sessions.mover
        mover.begin()
        while len(rig.backend.held) < 2:
            await asyncio.sleep(0)
        await mover.close()
        rig.backend.gate = None
        await rig.app.reaper.recover()  # as the next server does
    assert (await only(rig))[1] is old
    assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
    assert await text((await only(rig))[1]) == b"kept"


async def test_sessions_wait_for_a_backend_that_cannot_be_used(rig: Rig) -> None:
    old = await begun(rig)
    probe = replace(rig.extra["probe"], facts={"image": "2"})
    async with moving_on(rig):
        rig.app.backends.admit(rig.backend, replace(probe, ready=False))
        await rig.app.sessions.mover.look()
        assert (await only(rig))[1] is old
        rig.app.backends.admit(rig.backend, probe)
        await moved(rig, old)
    assert await text((await only(rig))[1]) == b"kept"


async def test_a_move_that_fails_is_tried_again_and_costs_no_files(rig: Rig) -> None:
    """The sweep takes the sandbox of a session for no stray, however many attempts at another one failed."""
    old = await begun(rig)
    change(rig)
    for _ in range(3):
        rig.backend.faults = [SandboxFault("no room")]
        await rig.app.sessions.mover.look()
    old.began -= 2 * STRAY_AFTER_S
    await rig.app.reaper.sweep()
    assert (await only(rig))[1] is old
    await rig.app.sessions.mover.look()
    assert await text((await only(rig))[1]) == b"kept"


async def test_calls_that_get_no_new_sandbox_cost_no_files(rig: Rig) -> None:
    old = await begun(rig)
    for _ in range(3):
        rig.backend.faults = [SandboxFault("no room")] * 5
        assert (await run_cmd(rig, skill_name="acme.other"))["status"] == "failed"
    rig.backend.faults = []
    old.began -= 2 * STRAY_AFTER_S
    await rig.app.reaper.sweep()
    assert (await only(rig))[1] is old


async def test_a_session_that_takes_too_long_is_left_to_its_next_call(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "MOVE_S", 0.01)
    old = await begun(rig)
    change(rig)
    rig.backend.gate = asyncio.Event()
    async with asyncio.timeout(30):
        await rig.app.sessions.mover.look()
        rig.backend.gate = None
        made = len(rig.backend.held)
        await rig.app.sessions.mover.look()
        assert (len(rig.backend.held), old.gone) == (made, False), "this one is not tried again"
        assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
    [session] = await live(rig)
    assert session.sandbox is not None
    assert await text(rig.backend.held[session.sandbox]) == b"kept"


async def test_an_interpreter_is_lost_as_at_a_call(rig: Rig) -> None:
    keep(rig, KEEPING)
    old = await begun(rig)
    [session] = await live(rig)
    await rig.app.ports.sessions.change(replace(session, interpreter="python-run_1", disk_mb=1024))
    change(rig)
    await rig.app.sessions.mover.look()
    session, new = await only(rig)
    assert (session.interpreter, session.disk_mb) == ("python-run_1", 1024)
    assert (new.spec.limits.disk_mb, old.gone) == (512, True)


async def test_walls_that_policy_demands_stand_before_files_come(rig: Rig) -> None:
    old = await begun(rig)
    change(rig)
    rig.backend.in_force = {"seccomp": Level.MISSING.value}
    await rig.app.sessions.mover.look()
    assert (await only(rig))[1] is old


async def test_the_reaper_ends_no_session_that_was_just_moved(rig: Rig) -> None:
    """It looks at many, one after the other: what it read of one may be old when it comes to it."""
    old = await begun(rig)
    backend = rig.backend
    real = backend.attach

    async def attach(handle: str) -> TwinSandbox:
        if handle == old.handle and not old.gone:
            backend.attach = real  # type: ignore[method-assign]
            change(rig)
            await rig.app.sessions.mover.look()
        return await real(handle)

    backend.attach = attach  # type: ignore[method-assign]
    await rig.app.sessions.reap()
    session, new = await only(rig)
    assert (session.state, await text(new), old.gone) == ("ready", b"kept", True)


async def test_each_principal_keeps_its_own_group(rig: Rig) -> None:
    rig.configure(policy={"separate_principals": True})
    await begun(rig)
    change(rig)
    await rig.app.sessions.mover.look()
    assert (await only(rig))[1].spec.group == "ann"
