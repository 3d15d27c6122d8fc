"""Cells of a session over the twin: which interpreter they get, what is said of it, and what is refused beside it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.errors import Forbidden, ProtectionMissing
from skillyard.domain.sandbox.guarantees import Level, Protection
from skillyard.domain.skill.skill import Needs, SecretNeed, SkillKind
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.sessions import loan
from skillyard.engine.sessions.keeping import Use
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill, result
from tests.unit.engine.sessions.test_sessions import ANN, live, run_cmd

pytestmark = pytest.mark.anyio
KEPT = {"state": "kept", "reason": "", "lost": ""}
STARTED = {**KEPT, "state": "started"}


class Cells:
    """Plays interpreters and their cells: ``code`` of a cell says how it goes."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.begun: list[str] = []
        """The names of the interpreters."""
        self.at_work = asyncio.Event()

    async def play(self, process: TwinProcess) -> int | Ending | None:
        request = process.request
        if request["op"] == "interpreter":
            assert (request["env"], request["blobs"], request["code"]) == ({}, {}, None)
            self.begun.append(process.id)
            await asyncio.Event().wait()
        if request["op"] != "cell":
            process.write(result({"exit_code": 0}))
            return 0
        kept = self.kept(request["interpreter"])
        if kept.ended.done():
            return 1
        match request["code"]:
            case "crash":
                kept.end(Ending(Outcome.SIGNAL, signal=11))
                process.write(
                    b"X" + _head(text := json.dumps({"type": "InterpreterLost", "message": ""}).encode()) + text
                )
                return 1
            case "hang" | "hang on":
                self.at_work.set()
                if request["code"] == "hang on":
                    kept.deaf_to_cells = True  # type: ignore[attr-defined]
                await asyncio.Event().wait()
            case None:
                return 1 if hasattr(kept, "deaf_to_cells") else 0
        process.write(result({"result": request["code"]}))
        return 0

    def kept(self, name: str) -> TwinProcess:
        [found] = [box.processes[name] for box in self.rig.backend.held.values() if name in box.processes]
        return found


def _head(payload: bytes) -> bytes:
    return len(payload).to_bytes(4)


@pytest.fixture
def cells(rig: Rig) -> Cells:
    for name in ("acme.notes", "acme.other"):
        rig.skills.add(a_skill(name, kind=SkillKind.INSTRUCTION))
    keep(rig, {"keeping": Protection(Level.SUPERVISED, by="a fake")})
    cells = Cells(rig)
    rig.backend.script = cells.play
    return cells


def keep(rig: Rig, abilities: dict[str, Protection]) -> None:
    rig.backend.abilities = abilities
    rig.extra["probe"] = replace(rig.extra["probe"], abilities=abilities)
    rig.configure()


async def cell(rig: Rig, code: str = "1", session: str = "work", **params: Any) -> Any:
    asked = {"language": "python", "code": code, "session_id": session, **params}
    async with asyncio.timeout(30):
        return await rig.call("run_code", ANN, **asked)


async def test_cells_share_an_interpreter_that_outlives_calls_and_servers(rig: Rig, cells: Cells) -> None:
    first = await cell(rig)
    assert (first["interpreter"], first["output"], first["session_id"]) == (STARTED, {"result": "1"}, "work")
    assert first["expires_at"] > rig.clock.now()
    assert (await cell(rig, "2"))["interpreter"] == KEPT
    rig.configure()  # the next server; the first one never comes back
    await rig.app.reaper.recover()
    assert (await cell(rig, "3"))["interpreter"] == KEPT
    assert len(cells.begun) == 1
    assert (await rig.record(first)).interpreter == STARTED
    [session] = await live(rig)
    assert (session.interpreter, session.kept) == (cells.begun[0], {})
    rig.clock.time += 1801  # it is no service: a session without calls is idle
    await rig.app.sessions.reap()
    assert (await live(rig), rig.backend.held) == ([], {})


async def test_a_crash_is_told_by_the_cell_and_by_the_next_one(rig: Rig, cells: Cells) -> None:
    await cell(rig)
    crashed = await cell(rig, "crash")
    assert (crashed["error"]["type"], crashed["interpreter"]["lost"]) == ("InterpreterLost", "it was ended by SIGSEGV")
    again = await cell(rig)
    assert again["interpreter"] == {"state": "restarted", "reason": "it was ended by SIGSEGV", "lost": ""}
    assert (await cell(rig))["interpreter"] == KEPT
    assert len(cells.begun) == 2


async def test_a_restart_ends_the_old_one(rig: Rig, cells: Cells) -> None:
    await cell(rig)
    assert (await cell(rig, restart=True))["interpreter"]["state"] == "restarted"
    first, second = cells.begun
    assert (cells.kept(first).ended.done(), cells.kept(second).ended.done()) == (True, False)
    fresh = await cell(rig, session="fresh", restart=True)
    assert fresh["interpreter"] == STARTED


@pytest.mark.parametrize("code", ["hang", "hang on"])
async def test_a_cancelled_cell_is_confirmed_to_be_over(rig: Rig, cells: Cells, code: str) -> None:
    await cell(rig)
    call = asyncio.create_task(cell(rig, code))
    await cells.at_work.wait()
    [session] = await live(rig)
    await rig.app.runs.cancel(str(session.call), "enough")
    ended, kept = await call, cells.kept(cells.begun[0])
    assert ended["outcome"] == "cancelled"
    assert (bool(ended["interpreter"]["lost"]), kept.ended.done()) == (
        (False, False) if code == "hang" else (True, True)
    )
    assert (await cell(rig))["interpreter"]["state"] == ("kept" if code == "hang" else "restarted")


async def test_a_cell_whose_server_died_is_settled_by_the_next(rig: Rig, cells: Cells) -> None:
    await cell(rig)
    call = asyncio.create_task(cell(rig, "hang on"))
    await cells.at_work.wait()
    rig.configure()
    await rig.app.reaper.recover()
    assert cells.kept(cells.begun[0]).ended.done(), "it did not answer"
    call.cancel()
    await asyncio.wait([call])
    assert (await cell(rig))["interpreter"]["state"] == "restarted"


async def test_a_new_sandbox_loses_the_names_and_says_so(
    rig: Rig, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cell(rig)
    moved = await cell(rig, mount_skills=["acme.notes"])
    assert moved["interpreter"] == {
        "state": "restarted", "reason": "its sandbox was replaced by another one", "lost": "",
    }  # fmt: skip
    assert (await run_cmd(rig))["status"] == "succeeded"
    monkeypatch.setattr(loan, "RENEWED_AFTER", 2)
    for _ in range(4):
        assert (await cell(rig, mount_skills=["acme.notes"]))["interpreter"] == KEPT


async def test_secrets_stay_out_of_an_interpreter_and_of_what_works_beside_it(rig: Rig, cells: Cells) -> None:
    needs = Needs(secrets=(SecretNeed("TOKEN"),))
    rig.skills.add(a_skill("acme.rights", kind=SkillKind.INSTRUCTION, needs=needs))
    rig.configure(policy={"run_code_secrets": "mounted"})
    rig.secrets.values["TOKEN"] = "tok-0123456789"
    refused = await cell(rig, mount_skills=["acme.rights"])
    assert (refused["error"]["type"], "TOKEN" in refused["error"]["message"]) == ("PolicyRefused", True)
    assert (cells.begun, rig.backend.started) == ([], [])
    await cell(rig)
    with pytest.raises(Forbidden, match="interpreter"):
        await run_cmd(rig, skill_name="acme.rights")
    assert (await run_cmd(rig, "other", skill_name="acme.rights"))["status"] == "succeeded"


async def test_rights_go_to_no_interpreter_with_code_of_another_skill(rig: Rig, cells: Cells) -> None:
    await cell(rig, mount_skills=["acme.notes"])
    [session] = await live(rig)
    keeping = rig.app.sessions._keeping
    other = Use(session.key, "ann", "run_other", 0, ("acme.other",), rights=True)
    for use in (other, replace(other, cell=True), replace(other, skills=("acme.notes",), secrets=True)):
        with pytest.raises(Forbidden, match="interpreter"):
            await keeping.begin(use)
    for use in (replace(other, skills=("acme.notes",)), replace(other, cell=True, restart=True)):
        await keeping.release(await keeping.begin(use))


@pytest.mark.parametrize("abilities", [{}, {"keeping": Protection(Level.MISSING, why="nobody can tell")}])
async def test_an_isolation_that_cannot_keep_says_so(rig: Rig, cells: Cells, abilities: dict[str, Any]) -> None:
    keep(rig, abilities)
    with pytest.raises(ProtectionMissing, match="keeping"):
        await cell(rig)


async def test_the_memory_of_an_idle_interpreter_is_counted(rig: Rig, cells: Cells) -> None:
    rig.configure(sessions={"disk_mb": 1200})
    assert (await run_cmd(rig))["status"] == "succeeded"
    [session] = await live(rig)
    ran = await cell(rig, mount_skills=["acme.notes"])
    assert ran["interpreter"] == STARTED
    [after] = await live(rig)
    assert (after.disk_mb - session.disk_mb, after.sandboxes) == (ran["limits"]["memory_mb"], session.sandboxes)
    refused = await cell(rig, session="another")
    assert "sessions.disk_mb" in refused["error"]["message"]
