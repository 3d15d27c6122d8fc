"""Services that are kept in a session: they go on between calls, hold nothing up, and carry no rights along."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.errors import Forbidden, InvalidInput, ProtectionMissing, SandboxFault
from skillyard.domain.sandbox.guarantees import Level, Nature, Probe, Protection
from skillyard.domain.skill.skill import SkillKind
from skillyard.domain.work.record import Outcome, RunRecord
from skillyard.domain.work.service import Service
from skillyard.domain.work.session import SessionKey, SessionRecord
from skillyard.engine import driver, presence
from skillyard.engine.sessions import loan
from skillyard.engine.sessions.keeping import Use
from skillyard.testing.twin_sandbox import TwinBackend, TwinProcess
from tests.unit.engine.commands.stepping import Stepping
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill, result
from tests.unit.engine.runs.resuming import killed, next_server
from tests.unit.engine.sessions.test_sessions import ANN, listed, live, run_cmd

pytestmark = pytest.mark.anyio
COMMAND = {"skill_name": "acme.notes", "command": "work"}
DONE = result({"exit_code": 0})
KEEPING = {"keeping": Protection(Level.SUPERVISED, by="a fake")}


@pytest.fixture(autouse=True)
def prepared(rig: Rig) -> None:
    for name in ("acme.notes", "acme.other"):
        rig.skills.add(a_skill(name, kind=SkillKind.INSTRUCTION))
    rig.backend.script = play
    keep(rig, KEEPING)


def keep(rig: Rig, abilities: dict[str, Protection]) -> None:
    rig.backend.abilities = abilities
    rig.extra["probe"] = replace(rig.extra["probe"], abilities=abilities)
    rig.configure()


async def play(process: TwinProcess) -> None:
    if "service" in process.request["command"]:
        await asyncio.Event().wait()
    process.write(DONE)


async def serve(rig: Rig, session: str = "work", skill: str = "acme.notes", **more: Any) -> RunRecord:
    """Starts a service in a session; returns its record once the session is free again."""
    record = await begin(rig, session, skill, **more)
    while not (held := await kept(rig)) or held.call is not None:
        await asyncio.sleep(0)
    return record


async def begin(rig: Rig, session: str = "work", skill: str = "acme.notes", **more: Any) -> RunRecord:
    params = {"skill_name": skill, "command": "serve", "session_id": session}
    usual = {"language": "bash", "workdir": "skill", "inputs": [], "outputs": [], "env": {}}
    request = await rig.app.services._commands.request(ANN, {**usual, **params, **more}, task=True)
    assert request.command is not None
    request = replace(request, command=replace(request.command, service=Service()))
    return await rig.app.runs.record(ANN, request)


async def kept(rig: Rig) -> SessionRecord | None:
    return next((session for session in await live(rig) if session.kept), None)


async def end(rig: Rig, record: RunRecord) -> RunRecord:
    active = rig.app.active[record.run_id]
    ending = active.ending()
    await active.cancel("enough")
    await ending
    ended = await rig.app.ports.records.get(record.run_id)
    assert ended is not None
    return ended


async def test_a_service_holds_up_no_call_and_goes_on_after_it(rig: Rig) -> None:
    async with asyncio.timeout(30):
        record = await serve(rig)
        assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
        assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
        [sandbox] = rig.backend.held.values()
        assert not sandbox.processes[record.run_id].ended.done()
        assert rig.backend.clears == 3
        [session] = await live(rig)
        assert session.kept == {record.run_id: ("acme.notes",)}
        assert (await end(rig, record)).outcome is Outcome.CANCELLED
        assert sandbox.processes[record.run_id].ended.done()
        [session] = await live(rig)
        assert (session.kept, rig.backend.held) == ({}, {sandbox.handle: sandbox})


async def test_the_next_server_counts_the_memory_of_programs_as_the_one_before(rig: Rig) -> None:
    """The files of a session are counted by it, those of a sandbox of its own with its program."""
    async with asyncio.timeout(30):
        await serve(rig, "work", limits={"memory_mb": 100, "disk_mb": 30})
        rig.backend.script = Stepping()
        tasks = []
        for alias in ("other", None):
            asked = {} if alias is None else {"session_id": alias}
            limits = {"memory_mb": 200, "disk_mb": 50}
            tasks.append(await rig.call("skills.run_cmd_async", ANN, **COMMAND, limits=limits, **asked))
        while sum(active.process is not None for active in rig.app.active.values()) < 3:
            await asyncio.sleep(0)
        admission = rig.app.admission
        assert (admission.running, admission.reserved_mb) == (3, 100 + 200 + 250)
        disk_mb = [session.disk_mb for session in await live(rig)]
        for _ in range(2):
            await killed(rig)
            await next_server(rig)
            admission = rig.app.admission
            assert (admission.running, admission.reserved_mb) == (3, 550)
            assert [session.disk_mb for session in await live(rig)] == disk_mb
        while sum(active.process is not None for active in rig.app.active.values()) < 3:
            await asyncio.sleep(0)
        for record in await rig.app.ports.records.unfinished():
            await end(rig, record)
        while admission.running:
            await asyncio.sleep(0)
        assert admission.reserved_mb == 0


async def test_a_session_with_a_service_is_not_idle_and_ends_it(rig: Rig) -> None:
    async with asyncio.timeout(30):
        record = await serve(rig)
        rig.clock.time += 1801
        await rig.app.sessions.reap()
        assert len(await live(rig)) == 1
        ending = rig.app.active[record.run_id].ending()
        await rig.call("skills.end_session", ANN, session_id="work")
        await ending
        ended = await rig.app.ports.records.get(record.run_id)
        assert ended is not None
        assert (ended.outcome, rig.backend.held) == (Outcome.CANCELLED, {})


async def test_the_next_server_goes_on_with_a_service_beside_its_session(rig: Rig) -> None:
    async with asyncio.timeout(30):
        record = await serve(rig)
        rig.configure()  # the next server; the first one never comes back
        await rig.app.reaper.recover()
        assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
        [sandbox] = rig.backend.held.values()
        assert not sandbox.processes[record.run_id].ended.done()
        assert (await end(rig, record)).outcome is Outcome.CANCELLED
        [session] = await live(rig)
        assert (session.kept, session.call) == ({}, None)


async def test_a_program_that_nobody_could_end_in_time_stays_known_and_is_ended_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (driver, loan):
        monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    rights = Use(SessionKey("", "", ""), "ann", "run_other", 0, ("acme.other",), rights=True)
    async with asyncio.timeout(30):
        record = await serve(rig, timeout_sec=0.2)
        [session] = await live(rig)
        [sandbox] = rig.backend.held.values()
        sandbox.processes[record.run_id].deaf = True
        await asyncio.wait([rig.app.active[record.run_id].ending()])
        assert not sandbox.processes[record.run_id].ended.done()
        keeping = rig.app.sessions._keeping
        monkeypatch.setattr("skillyard.engine.sessions.keeping.SOON_S", 0.01)
        with pytest.raises(Forbidden):
            await keeping.begin(replace(rights, key=session.key))
        assert set((await live(rig))[0].kept) == {record.run_id}
        sandbox.processes[record.run_id].deaf = False
        await rig.app.sessions.reap()
        assert sandbox.processes[record.run_id].ended.done()
        assert (await keeping.begin(replace(rights, key=session.key))).kept == {}


async def test_a_call_that_needs_another_sandbox_leaves_a_service_alone(rig: Rig) -> None:
    async with asyncio.timeout(30):
        record = await serve(rig)
        refused = await run_cmd(rig, skill_name="acme.other", wait_ms=0)
        assert (refused["status"], record.run_id in refused["error_message"]) == ("failed", True)
        assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
        await end(rig, record)
        assert (await run_cmd(rig, skill_name="acme.other", wait_ms=0))["status"] == "succeeded"


async def test_a_service_gets_no_rights_and_none_of_another_skill(rig: Rig) -> None:
    async with asyncio.timeout(30):
        record = await serve(rig)
        [session] = await live(rig)
        keeping = rig.app.sessions._keeping
        for use in (
            Use(session.key, "ann", "run_other", 0, ("acme.other",), rights=True),
            Use(session.key, "ann", "run_kept", 0, ("acme.notes",), rights=True, keeps=True),
            Use(session.key, "ann", "run_told", 0, ("acme.notes",), rights=True, secrets=True),
        ):
            with pytest.raises(Forbidden):
                await keeping.begin(use)
        refused = Use(replace(session.key, alias="new"), "ann", "run_kept", 0, ("acme.notes",), rights=True, keeps=True)
        with pytest.raises(Forbidden):
            await keeping.begin(refused)
        assert [one.session_id for one in await live(rig)] == [session.session_id]
        begun = await keeping.begin(Use(session.key, "ann", "run_same", 0, ("acme.notes",), rights=True))
        assert begun.call == "run_same"
        await keeping.release(begun)
        await end(rig, record)
        assert (await keeping.begin(Use(session.key, "ann", "run_other", 0, ("acme.other",), rights=True))).kept == {}


@pytest.mark.parametrize("abilities", [{}, {"keeping": Protection(Level.MISSING, why="nobody can tell")}])
async def test_an_isolation_that_cannot_keep_says_so(rig: Rig, abilities: dict[str, Any]) -> None:
    keep(rig, abilities)
    async with asyncio.timeout(30):
        with pytest.raises(ProtectionMissing, match="keeping"):
            await begin(rig)


async def test_a_port_that_the_isolation_uses_itself_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.backend, "nature", Nature(ports=frozenset({8080})))
    keep(rig, {"forwarding": Protection(Level.SUPERVISED, by="a fake")})
    asked: dict[str, Any] = {"skill_name": "acme.notes", "command": "service"}
    with pytest.raises(InvalidInput, match="expose_ports: must name ports that 'twin' does not use"):
        await rig.call("skills.run_service", ANN, expose_ports=[8000, 8080], **asked)
    assert rig.backend.held == {}


async def test_a_service_is_started_in_the_session_that_it_names(rig: Rig) -> None:
    keep(rig, {**KEEPING, "forwarding": Protection(Level.SUPERVISED, by="a fake")})
    rig.configure(sessions={"reuse_mode": "project_agent"})
    asked: dict[str, Any] = {"skill_name": "acme.notes", "command": "service", "expose_ports": [8000]}
    async with asyncio.timeout(30):
        assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
        told = await rig.call("skills.run_service", ANN, session_id="work", **asked)
        assert told["session_id"] == "work"
        while not (held := await kept(rig)) or held.call is not None:
            await asyncio.sleep(0)
        assert set(held.kept) == {told["task_id"]}
        [sandbox] = rig.backend.held.values()
        assert sandbox.spec.forwarding
        # A call that opens no port stays in the sandbox of the service, whose ports can be reached.
        assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
        assert list(rig.backend.held.values()) == [sandbox]
        status = await rig.call("skills.task_status", ANN, task_id=told["task_id"])
        assert (status["session_id"], status["mode"]) == ("work", "service")
        own = await rig.call("skills.run_service", ANN, **asked)
        assert own["session_id"] is None
        for task in (told, own):
            active = rig.app.active[task["task_id"]]
            while active.process is None:
                await asyncio.sleep(0)
            await active.cancel("enough")
            await asyncio.wait([active.ending()])


async def test_a_first_call_that_ends_without_a_sandbox_takes_no_session(rig: Rig) -> None:
    rig.configure(sessions={"most_each": 1})
    rig.backend.faults = [SandboxFault("no room")] * 5
    assert (await run_cmd(rig, "a"))["status"] == "failed"
    [left] = await listed(rig, ended=True)
    assert (left["state"], left["ended_by"], "before it had a sandbox" in left["reason"]) == ("ended", "server", True)
    rig.backend.faults = []
    assert (await run_cmd(rig, "b"))["status"] == "succeeded"


async def test_a_session_of_another_revision_gets_a_new_sandbox_at_its_next_call(rig: Rig) -> None:
    for facts, sandboxes in (({"image": "1"}, 1), ({"image": "1"}, 1), ({"image": "2"}, 2)):
        rig.app.backends.admit(rig.backend, replace(rig.extra["probe"], facts=facts))
        assert (await run_cmd(rig))["status"] == "succeeded"
        (session,), (told,) = await live(rig), await listed(rig)
        assert rig.app.backends.default is not None
        assert (session.sandboxes, told["revision"]) == (sandboxes, rig.app.backends.default.revision)
    assert len(rig.backend.held) == 1


async def test_another_setting_of_the_backend_is_another_revision(rig: Rig) -> None:
    """Also one that its probe does not tell of. Rotating a key is none."""
    rig.backend.name = "e2b"
    rig.extra["probe"] = replace(rig.extra["probe"], backend="e2b")
    rig.configure(policy={"isolation": "e2b"})
    made = []
    changes: list[dict[str, Any]] = [
        {},
        {"e2b": {"template": "a"}},
        {"native": {"ready": 7}},
        {"e2b": {"max_ttl_s": 300}},
    ]
    for change in changes:
        rig.configure(**change)
        assert (await run_cmd(rig))["status"] == "succeeded"
        (session,), (told,) = await live(rig), await listed(rig)
        made.append((session.sandboxes, told["revision"]))
    assert [sandboxes for sandboxes, _ in made] == [1, 2, 2, 3]
    assert len({revision for _, revision in made}) == 3


async def test_an_image_that_is_replaced_meanwhile_is_another_revision(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backend is asked every few seconds, and probed again."""
    monkeypatch.setattr(presence, "LOOK_S", 0.001)
    images = ["1", "1", "2"]
    rig.backend = backend = Replaced(play)
    rig.extra["probe"] = await rig.backend.probe()
    rig.configure()
    made = []
    for image in images:
        backend.image = image
        watching = asyncio.create_task(rig.app.presence.watch())
        async with asyncio.timeout(30):
            while backend.told != image or rig.app.backends.default is None:
                await asyncio.sleep(0)
        assert (await run_cmd(rig))["status"] == "succeeded"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        (session,), (told,) = await live(rig), await listed(rig)
        made.append((session.sandboxes, told["revision"]))
    assert [sandboxes for sandboxes, _ in made] == [1, 1, 2]
    assert len({revision for _, revision in made}) == 2


class Replaced(TwinBackend):
    """A backend whose image is replaced; ``told`` is the one that its last probe told of."""

    image = told = "1"

    async def changed(self) -> bool:
        return self.image != self.told

    async def probe(self) -> Probe:
        self.told = self.image
        return replace(await super().probe(), facts={"image": self.image})


async def test_a_run_for_one_life_of_a_session_begins_in_no_other(rig: Rig) -> None:
    await run_cmd(rig)
    (session,) = await live(rig)
    await rig.call("skills.end_session", ANN, session_id="work")
    asked = {"skill_name": "acme.notes", "command": "ls", "session_id": "work"}
    usual = {"language": "bash", "workdir": "skill", "inputs": [], "outputs": [], "env": {}}
    request = await rig.app.services._commands.request(ANN, {**usual, **asked}, task=True)
    before = len(rig.backend.started)
    record = await rig.app.runs.record(ANN, replace(request, life=session.session_id), accepted=True)
    while (ended := await rig.app.ports.records.get(record.run_id)) is not None and ended.status.live:
        await asyncio.sleep(0)
    assert ended is not None
    assert (ended.status.value, ended.session_life) == ("failed", None)
    assert (len(rig.backend.started), await live(rig)) == (before, [])
