"""Commands of skills over a backend without a keeper: its sandboxes have an agent inside, as remote ones have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard.domain.principal import Principal
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.skill.skill import SkillKind
from tests.conformance.sandbox import exec_walls
from tests.conformance.sandbox.exec_backend import ExecBackend
from tests.unit.engine.conftest import Rig, rig
from tests.unit.engine.fakes import a_skill

__all__ = ["rig"]
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(exec_walls.missing_tools()), reason=exec_walls.missing_tools()),
]
ANN = Principal("ann")


@pytest.fixture
async def backend(rig: Rig, tmp_path: Path) -> AsyncIterator[ExecBackend]:
    """The only backend of the rig."""
    base = tmp_path / "exec"
    base.mkdir(mode=0o711)
    backend = ExecBackend(base)
    probe = await backend.probe()
    missing = [name for name, each in probe.protections.items() if each.level is Level.MISSING]
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.extra["backends"] = {backend.name: backend}
    rig.configure(policy={"isolation": backend.name, "allow_degraded": missing})
    await rig.app.backends.start()
    yield backend
    await backend.close()


async def test_a_skill_is_activated_and_is_there_for_the_next_command(
    rig: Rig,
    backend: ExecBackend,
) -> None:
    alone = await rig.call("skills.activate", ANN, skill_name="acme.notes")
    assert (alone["mode"], alone["local_dir"], alone["active_path"]) == ("local", "/skills/acme.notes", "skill")
    assert await backend.survey() == []
    ready = await rig.call("skills.activate", ANN, skill_name="acme.notes", session_id="work")
    assert ready["session_id"] == "work"
    [held] = await backend.survey()
    asked = {"skill_name": "acme.notes", "session_id": "work"}
    first = await rig.call("skills.run_cmd", ANN, **asked, command="pwd; ls /skills; ls -A . > ../seen; echo kept > a")
    assert (first["status"], first["stdout"]) == ("succeeded", "/workspace/skill\nacme.notes\n"), first
    second = await rig.call("skills.run_cmd", ANN, **asked, command="cat a; test -s ../seen && echo there")
    assert (second["status"], second["stdout"], second["isolation"]) == ("succeeded", "kept\nthere\n", "exec"), second
    assert [one.handle for one in await backend.survey()] == [held.handle]
    await rig.call("skills.end_session", ANN, session_id="work")
    assert await backend.survey() == []
