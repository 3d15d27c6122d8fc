"""The clearing of a session's sandbox, where it did so by itself, and its end."""

from __future__ import annotations

import pytest

from skillyard.domain.errors import SandboxFault
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.sandbox.spec import Guest, Held, Start
from skillyard.domain.skill.skill import SkillKind
from skillyard.domain.work.record import Ending, Outcome, Usage
from skillyard.domain.work.session import SessionState
from skillyard.testing.twin_sandbox import TwinProcess, TwinSandbox
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import a_skill, result
from tests.unit.engine.sessions.test_sessions import run_cmd

pytestmark = pytest.mark.anyio
ANN = Principal("ann", frozenset({Scope.RUN_CODE, Scope.BLOBS}), agent="crawler")
ENDED = Ending(Outcome.EXIT, code=0, usage=Usage())


@pytest.mark.parametrize(
    ("told", "clears"),
    [
        ((result({"left": []}), ENDED), 0),
        ((result({"left": ["the process 7"]}), ENDED), 1),
        ((b"", ENDED), 1),
        ((result({"left": []}), Ending(Outcome.TIMEOUT, usage=Usage())), 1),
        (None, 1),
    ],
)
async def test_a_clearing_that_followed_counts_only_when_it_says_that_nothing_is_left(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, told: tuple[bytes, Ending] | None, clears: int
) -> None:
    asked: list[tuple[str, Start]] = []

    class Follows(TwinSandbox):
        def follow(self, after: str, then: Start) -> None:
            asked.append((after, then))

        async def followed(self) -> tuple[bytes, Ending] | None:
            return told

    monkeypatch.setattr("skillyard.testing.twin_sandbox.backend.TwinSandbox", Follows)
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.backend.script = playing(result({"exit_code": 0}))
    ran = await rig.call("skills.run_cmd", ANN, skill_name="acme.notes", command="ls", session_id="work")
    assert ran["status"] == "succeeded"
    [(after, then)] = asked
    assert (after, then.id) == (ran["run_id"], f"{ran['run_id']}-clears")
    assert isinstance(then.program, Guest)
    assert then.program.request["op"] == "clear"
    assert rig.backend.clears == clears
    assert [session.runs for session in await rig.app.ports.sessions.live()] == [1]


async def test_a_session_whose_end_is_not_confirmed_has_lost_its_sandbox_already(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.backend.script = playing(result({"exit_code": 0}))
    await rig.call("skills.run_cmd", ANN, skill_name="acme.notes", command="ls", session_id="work")
    rig.clock.time += 1800

    async def broken() -> list[Held]:
        raise SandboxFault("it does not answer")

    with monkeypatch.context() as away:
        away.setattr(rig.backend, "survey", broken)
        await rig.app.sessions.reap()
    [session] = await rig.app.ports.sessions.live()  # another sandbox of it may be there
    assert (session.state, rig.backend.held) == (SessionState.DRAINING, {})
    await rig.app.sessions.reap()
    assert await rig.app.ports.sessions.live() == []


@pytest.mark.parametrize(("whole", "cpu_ms", "peak"), [(True, 0.0, None), (False, 1.0, 1 << 20)])
async def test_usage_is_that_of_the_call_alone(rig: Rig, whole: bool, cpu_ms: float, peak: int | None) -> None:
    """A backend counts each program, or the whole sandbox so far with its clearings."""

    async def play(process: TwinProcess) -> None:
        process.write(result({"exit_code": 0}))
        process.end(Ending(Outcome.EXIT, code=0, usage=Usage(1.0, 1 << 20, 5.0, whole=whole)))

    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.backend.script = play
    await run_cmd(rig)
    again = await run_cmd(rig)
    assert again["usage"]["cpu_ms"] == cpu_ms
    assert again["usage"]["peak_memory_bytes"] == peak
    assert again["timing"]["duration_ms"] >= 0
