"""Sessions over the fake backend: one sandbox of an agent, cleared between calls, ended truthfully."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import (
    Busy,
    Forbidden,
    InvalidInput,
    QuotaExceeded,
    SandboxCutOff,
    SandboxFault,
    SessionNotFound,
)
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import Needs, SecretNeed, SkillFile, SkillKind, SkillSource
from skillyard.domain.work.record import Outcome
from skillyard.domain.work.session import SessionRecord, SessionState
from skillyard.engine.sessions.keeping import LEASE_S
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import a_skill, result
from tests.unit.engine.network import fake_gate

pytestmark = pytest.mark.anyio
DONE = result({"exit_code": 0})
SCOPES = frozenset({Scope.RUN_CODE, Scope.BLOBS})
ANN = Principal("ann", SCOPES, agent="crawler", agents=("reader",))
BOB = Principal("bob", SCOPES, agent="crawler", project="other")


@pytest.fixture(autouse=True)
def skills(rig: Rig) -> None:
    for name in ("acme.notes", "acme.other"):
        rig.skills.add(a_skill(name, kind=SkillKind.INSTRUCTION))


async def run_cmd(rig: Rig, session: str | None = "work", principal: Principal = ANN, /, **params: Any) -> Any:
    named = {} if session is None else {"session_id": session}
    return await rig.call(
        "skills.run_cmd", principal, **{"skill_name": "acme.notes", "command": "ls", **named, **params}
    )


async def listed(rig: Rig, principal: Principal = ANN, **params: Any) -> list[dict[str, Any]]:
    return (await rig.call("skills.sessions", principal, **params))["sessions"]  # type: ignore[no-any-return]


async def live(rig: Rig) -> list[SessionRecord]:
    return list(await rig.app.ports.sessions.live())


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


class Held:
    """A call that holds its session until it is told to end."""

    def __init__(self, rig: Rig) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        rig.backend.script = self._play

    async def _play(self, process: TwinProcess) -> None:
        self.begun.set()
        await self.may_end.wait()
        process.write(DONE)


@pytest.fixture(autouse=True)
def usual(rig: Rig) -> None:
    rig.backend.script = playing(DONE)


async def test_calls_of_one_alias_share_a_sandbox_that_is_cleared_between_them(rig: Rig) -> None:
    first, second = await run_cmd(rig), await run_cmd(rig)
    assert (first["status"], second["status"]) == ("succeeded", "succeeded")
    assert len(rig.backend.held) == 1
    assert rig.backend.clears == 2
    [(spec, request, _), (_, again, _)] = rig.backend.started
    assert (spec.single, spec.owner.value) == (False, "task")
    assert request["command"]["place"] == again["command"]["place"] == ".skill-acme.notes-sha256-of-ac"
    assert request["command"]["workdir"] == request["command"]["place"]
    [session] = await live(rig)
    assert (session.runs, session.call, session.lease, session.state) == (2, None, None, SessionState.READY)
    assert (await rig.record(first)).session_life == session.session_id
    assert second["session_id"] == "work"
    assert second["idle_at"] == rig.clock.now() + 1800
    assert second["expires_at"] == rig.clock.now() + 21600


async def test_a_call_without_a_session_has_a_sandbox_of_its_own(rig: Rig) -> None:
    ran = await run_cmd(rig, None)
    assert rig.backend.held == {}
    assert "session_id" not in ran
    assert await live(rig) == []


async def test_agents_and_projects_share_nothing(rig: Rig) -> None:
    await run_cmd(rig, "work", ANN)
    await run_cmd(rig, "work", BOB)
    await run_cmd(rig, "work", ANN, agent="reader")
    await run_cmd(rig, "other", ANN)
    assert len(rig.backend.held) == 4
    assert [row["session_id"] for row in await listed(rig, ANN)] == ["other", "work"]
    assert [row["agent"] for row in await listed(rig, ANN, agent="reader")] == ["reader"]
    with pytest.raises(SessionNotFound):
        await rig.call("skills.end_session", BOB, session_id="other")
    with pytest.raises(Forbidden):
        await listed(rig, BOB, agent="reader")


@pytest.mark.parametrize("alias", ["", "../x", "a/b", "a b", "x" * 65, "ä", ".."])
async def test_an_alias_is_a_plain_name(rig: Rig, alias: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await run_cmd(rig, alias)
    assert refused.value.field == "session_id"


async def test_two_first_calls_at_once_make_one_sandbox(rig: Rig) -> None:
    ran = await asyncio.gather(*(run_cmd(rig) for _ in range(5)))
    assert {each["status"] for each in ran} == {"succeeded"}
    assert (len(rig.backend.held), rig.backend.destroyed) == (1, [])
    assert [session.runs for session in await live(rig)] == [5]


async def test_a_busy_session_tells_when_to_come_again(rig: Rig) -> None:
    held = Held(rig)
    first = asyncio.create_task(run_cmd(rig))
    await held.begun.wait()
    with pytest.raises(Busy) as busy:
        await run_cmd(rig, wait_ms=0)
    assert busy.value.retry_after_ms > 0
    with pytest.raises(Busy):
        await run_cmd(rig, wait_ms=1)
    second = asyncio.create_task(run_cmd(rig, wait_ms=60_000))
    held.may_end.set()
    assert {each["status"] for each in await asyncio.gather(first, second)} == {"succeeded"}
    with pytest.raises(InvalidInput):
        await run_cmd(rig, wait_ms=600_001)


async def test_few_calls_wait_for_one_session(rig: Rig) -> None:
    rig.configure(sessions={"waiting": 1})
    held = Held(rig)
    waiting = [asyncio.create_task(run_cmd(rig))]
    await held.begun.wait()
    waiting += [asyncio.create_task(run_cmd(rig)) for _ in range(4)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    held.may_end.set()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(each, Busy) for each in ended) == 3


async def test_another_skill_gets_the_files_in_another_sandbox(rig: Rig) -> None:
    await run_cmd(rig)
    [old] = rig.backend.held.values()
    await old.write("/workspace/notes.txt", pieces(b"kept"))
    await run_cmd(rig, skill_name="acme.other")
    [new] = rig.backend.held.values()
    assert (new is not old, new.files.read("/workspace/notes.txt")) == (True, b"kept")
    assert rig.backend.destroyed == [old.handle]
    [session] = await live(rig)
    assert session.skills == ("acme.notes", "acme.other")


async def test_files_that_do_not_fit_leave_the_session_as_it_was(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await run_cmd(rig)
    [old] = rig.backend.held.values()

    async def full(*_: Any) -> None:
        raise QuotaExceeded("path", "the disk limit leaves no room")

    monkeypatch.setattr("skillyard.testing.twin_sandbox.TwinSandbox.put", full)
    ran = await run_cmd(rig, skill_name="acme.other")
    assert (ran["status"], "no room" in ran["error_message"]) == ("failed", True)
    assert list(rig.backend.held.values()) == [old]
    assert (await run_cmd(rig))["status"] == "succeeded"


async def test_inputs_are_written_where_nothing_can_be_mounted(rig: Rig) -> None:
    blob = await rig.call("create_blob", ANN, content="hello", kind="text/plain")
    await run_cmd(rig, inputs=[{"artifact_id": blob["blob_id"], "mount_path": "a.txt"}])
    [sandbox] = rig.backend.held.values()
    assert await sandbox.entries("/tmp") == []
    [(spec, request, _)] = rig.backend.started
    assert request["blob_root"] == "/tmp/blobs"
    assert not any(mount.target.startswith("/blobs") for mount in spec.mounts)


async def test_certificates_are_those_of_each_call_in_one_sandbox(rig: Rig) -> None:
    gate = rig.with_network(run_code="mounted")
    rig.skills.add(a_skill("acme.reaches", kind=SkillKind.INSTRUCTION, needs=Needs(network=("x.com",))))
    shown: list[bytes] = []
    sandboxes: set[str] = set()

    async def script(process: TwinProcess) -> None:
        [(handle, sandbox)] = rig.backend.held.items()
        sandboxes.add(handle)
        shown.append(b"".join([piece async for piece in sandbox.read("/tmp/trust/ca.pem")]))
        process.write(DONE)

    rig.backend.script = script
    for _ in range(2):
        ran = await run_cmd(rig, skill_name="acme.reaches")
        assert ran["status"] == "succeeded"
    assert shown == [Path(fake_gate.__file__).read_bytes()] * 2
    assert len(gate.sessions) == 2
    assert len(sandboxes) == 1
    for spec, request, _ in rig.backend.started:
        assert request["env"]["SSL_CERT_FILE"] == "/tmp/trust/ca.pem"
        assert fake_gate.TRUST not in spec.mounts


async def test_a_sandbox_that_cannot_be_cleared_ends_with_its_session(rig: Rig) -> None:
    rig.backend.not_cleared = ["the process 77"]
    await run_cmd(rig)
    assert rig.backend.held == {}
    [row] = await listed(rig, ended=True)
    assert (row["state"], row["ended_by"], "the process 77" in row["reason"]) == ("ended", "server", True)


async def test_a_session_whose_sandbox_is_gone_says_so_and_the_next_one_begins(rig: Rig) -> None:
    await run_cmd(rig)
    [held] = rig.backend.held
    await rig.backend.destroy(held)
    assert (await run_cmd(rig))["status"] == "succeeded"
    new, old = await listed(rig, ended=True)
    assert (old["state"], old["ended_by"], new["state"]) == ("ended", "lost", "ready")


async def test_idle_and_hard_ends(rig: Rig) -> None:
    await run_cmd(rig, "a")
    rig.clock.time += 1000
    await run_cmd(rig, "b")
    rig.clock.time += 900
    await rig.app.sessions.reap()
    assert {row["session_id"]: row["ended_by"] for row in await listed(rig, ended=True)} == {"a": "idle", "b": ""}
    for _ in range(25):
        rig.clock.time += 890
        await run_cmd(rig, "b")
    rows = [row for row in await listed(rig, ended=True) if row["session_id"] == "b"]
    assert [row["ended_by"] for row in rows] == ["", "hard"]
    assert len(rig.backend.held) == 1
    rig.clock.time += 8 * 86400
    await rig.app.sessions.reap()
    assert len(await listed(rig, ended=True)) == 1  # the last one has just ended; the others are forgotten


async def test_a_call_at_the_hard_end_has_a_grace(rig: Rig) -> None:
    held = Held(rig)
    first = asyncio.create_task(run_cmd(rig))
    await held.begun.wait()
    rig.clock.time += 21600
    await rig.app.sessions.reap()
    [session] = await live(rig)
    assert (session.state, first.done()) == (SessionState.DRAINING, False)
    rig.clock.time += 120
    await rig.app.sessions.reap()
    ran = await first
    assert (ran["status"], "sessions.hard_ttl_s" in ran["error_message"]) == ("canceled", True)
    assert await live(rig) == []
    assert rig.backend.held == {}


async def test_a_long_call_keeps_its_session_from_a_second_server(rig: Rig) -> None:
    """Its lease is prolonged while it works, also far beyond the first one's end."""
    held = Held(rig)
    first = asyncio.create_task(run_cmd(rig, timeout_sec=120))
    await held.begun.wait()
    one = rig.app
    for _ in range(10):
        rig.clock.time += LEASE_S / 2
        await one.sessions.renew()
    rig.configure()  # a second server over the same stores and backend
    await rig.app.sessions.reap()
    with pytest.raises(Busy):
        await run_cmd(rig, wait_ms=0)
    [session] = await live(rig)
    assert session.lease is not None
    assert (session.lease.until > rig.clock.time, session.state) == (True, SessionState.READY)
    assert (rig.backend.clears, first.done()) == (0, False)
    held.may_end.set()
    assert (await first)["status"] == "succeeded"
    assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"


async def test_a_call_while_the_keeper_ends_is_told_to_come_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell then whether the sandbox is there, so that the session neither ends nor is used."""
    await run_cmd(rig)
    [before] = await live(rig)

    async def cut_off(_: str) -> Any:
        raise SandboxCutOff("the keeper is just ending")

    with monkeypatch.context() as dying:
        dying.setattr(rig.backend, "attach", cut_off)
        with pytest.raises(Busy, match="session 'work' is busy; come again later") as busy:
            await run_cmd(rig)
        assert busy.value.retry_after_ms >= 250
        await rig.app.sessions.reap()
    [session] = await live(rig)
    assert (session.session_id, session.call, session.state) == (before.session_id, None, SessionState.READY)
    assert (await run_cmd(rig, wait_ms=0))["status"] == "succeeded"
    [session] = await live(rig)
    assert (session.session_id, session.runs, len(rig.backend.held)) == (before.session_id, 2, 1)


async def test_ending_a_session_cancels_its_call(rig: Rig) -> None:
    held = Held(rig)
    first = asyncio.create_task(run_cmd(rig))
    await held.begun.wait()
    told = await rig.call("skills.end_session", ANN, session_id="work", reason="enough")
    assert (told["state"], told["ended_by"], told["reason"]) == ("ended", "ann", "enough")
    assert (await first)["status"] == "canceled"
    assert rig.backend.held == {}
    with pytest.raises(SessionNotFound):
        await rig.call("skills.end_session", ANN, session_id="work")


async def test_a_principal_has_few_sessions(rig: Rig) -> None:
    rig.configure(sessions={"most_each": 2})
    for alias in ("a", "b"):
        await run_cmd(rig, alias)
    with pytest.raises(QuotaExceeded):
        await run_cmd(rig, "c")
    assert (await run_cmd(rig, "a"))["status"] == "succeeded"
    assert (await run_cmd(rig, "c", BOB))["status"] == "succeeded"


async def test_the_files_of_all_sessions_have_a_bound(rig: Rig) -> None:
    """They are memory for as long as a session lives, which no place of a run holds."""
    rig.configure(sessions={"disk_mb": 100})
    small, large = {"limits": {"disk_mb": 30}}, {"limits": {"disk_mb": 80}}
    for alias in ("a", "b"):
        assert (await run_cmd(rig, alias, **small))["status"] == "succeeded"
    for alias, principal, asked in (("c", ANN, small), ("c", BOB, large), ("a", ANN, large)):
        refused = await run_cmd(rig, alias, principal, **asked)
        assert (refused["status"], "sessions.disk_mb" in refused["error_message"]) == ("failed", True)
    assert (await run_cmd(rig, "c", BOB, **small))["status"] == "succeeded"
    assert (await run_cmd(rig, "a", **small))["status"] == "succeeded"
    await rig.call("skills.end_session", ANN, session_id="b")
    assert (await run_cmd(rig, "c", **small))["status"] == "succeeded"


async def test_the_files_of_a_session_are_counted_once(rig: Rig) -> None:
    """They are among those of all sessions, and not in the memory for runs besides."""
    held = Held(rig)
    limits = {"memory_mb": 100, "disk_mb": 30}
    calls = [asyncio.create_task(run_cmd(rig, limits=limits))]
    await held.begun.wait()
    assert rig.app.admission.reserved_mb == 100
    held.begun.clear()
    calls.append(asyncio.create_task(run_cmd(rig, None, limits=limits)))
    await held.begun.wait()
    assert rig.app.admission.reserved_mb == 230
    held.may_end.set()
    assert {each["status"] for each in await asyncio.gather(*calls)} == {"succeeded"}
    assert rig.app.admission.reserved_mb == 0


@pytest.mark.parametrize("mode", ["none", "off", "project_agent", "session"])
async def test_reuse_mode_rules_calls_without_a_session(rig: Rig, mode: str) -> None:
    rig.configure(sessions={"reuse_mode": mode})
    if mode == "session":
        with pytest.raises(InvalidInput):
            await run_cmd(rig, None)
        return
    await run_cmd(rig, None)
    await run_cmd(rig, None)
    assert [session.runs for session in await live(rig)] == ([2] if mode == "project_agent" else [])


async def test_an_end_that_failed_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await run_cmd(rig)
    rig.clock.time += 1800
    real, fails = rig.backend.survey, [True]

    async def broken() -> Any:
        if fails:
            fails.pop()
            raise SandboxFault("it does not answer")
        return await real()

    monkeypatch.setattr(rig.backend, "survey", broken)
    await rig.app.sessions.reap()
    [session] = await live(rig)
    assert (session.state, session.ended_by) == (SessionState.DRAINING, "idle")
    await rig.app.sessions.reap()
    assert (await live(rig), rig.backend.held) == ([], {})


async def test_a_server_that_died_in_a_call_leaves_a_session_that_goes_on(rig: Rig) -> None:
    held = Held(rig)
    first = asyncio.create_task(run_cmd(rig))
    await held.begun.wait()
    [before] = await live(rig)
    [sandbox] = rig.backend.held.values()
    records = rig.app.ports.records
    rig.configure()  # the next server; the first one never comes back
    rig.backend.script = playing(DONE)
    await rig.app.reaper.recover()
    [after] = await live(rig)
    assert (after.session_id, after.call, after.state) == (before.session_id, None, SessionState.READY)
    assert list(rig.backend.held.values()) == [sandbox]
    assert sandbox.processes[before.call or ""].killed is not None
    record = await records.get(before.call or "")
    assert record is not None
    assert record.outcome is Outcome.LOST
    assert (await run_cmd(rig))["status"] == "succeeded"
    held.may_end.set()
    await asyncio.gather(first, return_exceptions=True)


async def test_recovery_ends_sessions_without_a_sandbox_and_keeps_the_others(rig: Rig) -> None:
    await run_cmd(rig, "a")
    await run_cmd(rig, "b")
    await rig.backend.destroy(next(iter(rig.backend.held)))
    rig.configure()
    await rig.app.reaper.recover()
    assert {row["session_id"]: row["ended_by"] for row in await listed(rig, ended=True)} == {"a": "lost", "b": ""}
    assert len(rig.backend.held) == 1


async def test_activate_makes_a_session_ready_and_load_uses_it(rig: Rig, tmp_path: Path) -> None:
    principal = Principal("ann", SCOPES | {Scope.EXECUTE, Scope.DISCOVER}, agent="crawler")
    rig.skills.add(a_skill("acme.notes", tmp_path, kind=SkillKind.INSTRUCTION, files=(SkillFile("SKILL.md", 2, "x"),)))
    (tmp_path / "SKILL.md").write_text("# ")
    told = await rig.call("skills.load", principal, skill_name="acme.notes", path="SKILL.md", session_id="work")
    assert (told["session_id"], told["idle_at"], told["session_root"]) == ("work", None, "/workspace")
    assert await live(rig) == []
    made = await rig.call("skills.activate", principal, skill_name="acme.notes", session_id="work")
    assert (made["session_id"], made["expires_at"]) == ("work", rig.clock.now() + 21600)
    [session] = await live(rig)
    assert (session.state, session.skills) == (SessionState.READY, ("acme.notes",))
    rig.clock.time += 1000
    again = await rig.call("skills.load", principal, skill_name="acme.notes", path="SKILL.md", session_id="work")
    assert again["idle_at"] == rig.clock.now() + 1800


async def test_a_skill_without_approval_leaves_no_rights_to_later_calls(rig: Rig) -> None:
    needs = Needs(secrets=(SecretNeed("TOKEN"),))
    rig.skills.add(a_skill("acme.rights", kind=SkillKind.INSTRUCTION, needs=needs))
    rig.skills.add(a_skill("acme.stranger", kind=SkillKind.INSTRUCTION, source=SkillSource.PUBLISHED))
    rig.configure(policy={"run_code_secrets": "mounted"})
    rig.secrets.values["TOKEN"] = "tok-0123456789"
    assert (await run_cmd(rig, skill_name="acme.rights"))["status"] == "succeeded"
    assert (await run_cmd(rig, skill_name="acme.stranger"))["status"] == "succeeded"
    with pytest.raises(Forbidden) as refused:
        await run_cmd(rig, skill_name="acme.rights")
    assert "acme.stranger" in str(refused.value)
    assert [session.call for session in await live(rig)] == [None]
    rig.backend.script = playing(DONE, log=b"found tok-0123456789\n")
    assert (await run_cmd(rig))["stdout"] == "found [redacted]\n"
    assert (await run_cmd(rig, "other"))["stdout"] == "found tok-0123456789\n"
    rig.configure()
    await rig.app.reaper.recover()
    await rig.app.reaper.sweep()
    assert (await run_cmd(rig))["stdout"] == "found [redacted]\n"
    assert (await run_cmd(rig))["status"] == "succeeded"
    assert (await run_cmd(rig, "fresh", skill_name="acme.rights"))["status"] == "succeeded"


async def test_an_ended_session_leaves_no_secret(rig: Rig) -> None:
    rig.skills.add(a_skill("acme.rights", kind=SkillKind.INSTRUCTION, needs=Needs(secrets=(SecretNeed("TOKEN"),))))
    rig.configure(policy={"run_code_secrets": "mounted"})
    rig.secrets.values["TOKEN"] = "tok-0123456789"
    assert (await run_cmd(rig, skill_name="acme.rights"))["status"] == "succeeded"
    assert list(await rig.secrets.keeping()) == [session.session_id for session in await live(rig)]
    await rig.call("skills.end_session", ANN, session_id="work")
    assert not await rig.secrets.keeping()


async def test_a_session_gets_a_new_sandbox_now_and_then(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillyard.engine.sessions.loan.RENEWED_AFTER", 3)
    for number in range(4):
        assert (await run_cmd(rig, outputs=[]))["status"] == "succeeded"
        assert len(rig.backend.destroyed) == (1 if number >= 2 else 0)
    assert len(rig.backend.held) == 1


async def test_a_repeated_key_gets_the_first_command_of_a_session(rig: Rig) -> None:
    first = await run_cmd(rig, idempotency_key="k")
    again = await run_cmd(rig, idempotency_key="k")
    assert (again["run_id"], again["session_id"]) == (first["run_id"], "work")
