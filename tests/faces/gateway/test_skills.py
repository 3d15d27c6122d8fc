"""Skills that declare tools: their code calls those, once the skill and the tools are approved, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.principal import Principal
from tests.faces.gateway.conftest import SERVER, Yard, yard_of
from tests.faces.mcp.support import face_of
from tests.unit.stores.skills.skilldirs import action_files, write

pytestmark = pytest.mark.anyio

CODE = """
from tools.toy import add
from tools import ToolError, call

def main(args):
    said = {"total": add(numbers=[1, 2])["total"]}
    for tool in ("crash", "echo"):
        try:
            said[tool] = call("toy", tool, {"text": "x"})
        except ToolError as error:
            said[tool] = str(error)
    return said
"""
COMMAND = """
set -e
python3 -c 'from tools.toy import add; print(add(numbers=[3, 4])["total"])'
python3 -m tools toy add '{"numbers": [5, 6]}'
python3 -m tools toy crash || echo "refused: $?"
"""


def bundle(place: Path, name: str, tools: str, code: str = CODE) -> None:
    files = action_files(name, main=code)
    write(place / name, {**files, "skill.toml": f"{files['skill.toml']!s}\n[permissions]\ntools = {tools}\n"})


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    tmp_path.chmod(0o755)
    bundle(tmp_path / "skills", "acme.calls", '["toy__add"]')
    bundle(tmp_path / "skills", "acme.greedy", '["toy__add", "toy__crash"]')
    bundle(tmp_path / "skills", "acme.plain", "[]")
    profiles = {"narrow": {"allowed_tools": ["execute_skill", "tools.call", "toy__echo"]}}
    mcp = {"servers": {"toy": SERVER}, "code_tools": ["toy__add", "toy__echo"]}
    places: dict[str, Any] = {"skills_dirs": [tmp_path / "skills"], "profiles": profiles}
    async with yard_of(tmp_path / "data", mcp=mcp, **places) as yard:
        await yard.call("tools.refresh", server="toy")
        yield yard


async def told(yard: Yard, run: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = (await yard.call("runs.show", run_id=run["run_id"]))["run"]
    return record


async def test_a_skill_calls_what_it_declares_and_nothing_else(yard: Yard) -> None:
    run = await yard.call("execute_skill", name="acme.calls")
    assert run.get("output", {}).get("total") == 3, run
    for tool in ("crash", "echo"):
        assert "may not call" in run["output"][tool]
    (call,) = (await yard.call("runs.list", labels={"mcp.run": run["run_id"]}))["runs"]
    assert call["status"] == "completed"
    [skill] = (await told(yard, run))["needs"]["skills"]
    assert {"need": "tool", "asked": "toy__add", "granted": "toy__add"} in skill["needs"]


async def test_a_command_of_the_skill_calls_them_too(yard: Yard) -> None:
    run = await yard.call("skills.run_cmd", skill_name="acme.calls", command=COMMAND, language="bash")
    assert run["exit_code"] == 0, run["stderr"]
    assert run["stdout"].split("\n")[:3] == ["7", '{"total": 11}', "refused: 1"]
    assert "may not call 'crash'" in run["stderr"]


async def test_what_the_operator_gives_code_no_part_of_is_refused_by_name(yard: Yard) -> None:
    run = await yard.call("execute_skill", name="acme.greedy")
    assert run["error"]["type"] == "PolicyRefused"
    assert "'acme.greedy' asks for 'toy__crash', and the operator gives code none of it" in run["error"]["message"]
    [skill] = (await told(yard, run))["needs"]["skills"]
    assert {"need": "tool", "asked": "toy__crash", "why": "the run was refused"} in skill["needs"]


async def test_a_skill_that_declares_none_has_none(yard: Yard) -> None:
    run = await yard.call("execute_skill", name="acme.plain")
    assert run["error"]["type"] == "ModuleNotFoundError"


async def test_mounting_a_skill_gives_code_nothing(yard: Yard) -> None:
    code = "from tools.toy import add"
    run = await yard.call("run_code", language="python", code=code, mount_skills=["acme.calls"])
    assert run["error"]["type"] == "ModuleNotFoundError"
    [skill] = (await told(yard, run))["needs"]["skills"]
    assert {"need": "tool", "asked": "toy__add", "why": "the code asks for none of it"} in skill["needs"]
    run = await yard.call("run_code", language="python", code=code, mount_skills=["acme.calls"], tools=["toy__add"])
    assert run["status"] == "completed", run


async def test_a_tool_that_is_not_approved_is_refused(yard: Yard) -> None:
    await yard.call("tools.revoke", server="toy", tool="add")
    run = await yard.call("execute_skill", name="acme.calls")
    assert "it is not approved, or not allowed to the caller" in run["error"]["message"]


async def test_a_profile_bounds_skills_too(yard: Yard) -> None:
    narrow = yard.runtime.bound(Principal("eve", profile="narrow"))
    run = await yard.call("execute_skill", narrow, name="acme.calls")
    assert run["error"]["type"] == "PolicyRefused"


async def test_a_skill_that_nobody_approved_gets_none(tmp_path: Path) -> None:
    bundle(tmp_path / "skills", "acme.calls", '["toy__add"]')
    mcp = {"servers": {"toy": SERVER}, "code_tools": ["toy__*"]}
    places: dict[str, Any] = {"skills_dirs": [tmp_path / "skills"], "trust": {"directories": False}}
    tmp_path.chmod(0o755)
    async with yard_of(tmp_path / "data", mcp=mcp, **places) as yard:
        await yard.call("tools.refresh", server="toy")
        run = await yard.call("execute_skill", name="acme.calls")
        assert run["error"]["type"] == "PolicyRefused"
        assert "asks for toy__add, and 'acme.calls' 1.0.0 is not approved" in run["error"]["message"]
        asked = await yard.call("catalogue.needs", name="acme.calls")
        assert {"need": "tool", "asked": "toy__add", "granted": "toy__add"} in asked["needs"]
        await yard.call("catalogue.approve", name="acme.calls", digest=asked["digest"])
        assert (await yard.call("execute_skill", name="acme.calls"))["status"] == "completed"


async def test_an_approval_from_before_there_were_tools_covers_none(tmp_path: Path) -> None:
    """An earlier release did not show them to the operator, though the same bytes declared them."""
    bundle(tmp_path / "skills", "acme.calls", '["toy__add"]')
    mcp = {"servers": {"toy": SERVER}, "code_tools": ["toy__*"]}
    places: dict[str, Any] = {"skills_dirs": [tmp_path / "skills"], "trust": {"directories": False}}
    tmp_path.chmod(0o755)
    async with yard_of(tmp_path / "data", mcp=mcp, **places) as yard:
        await yard.call("tools.refresh", server="toy")
        told = await yard.call("catalogue.approve", name="acme.calls")
        approvals = yard.runtime.app.ports.approvals
        found = await approvals.find("acme.calls", "1.0.0", told["digest"])
        assert found is not None
        await approvals.approve(replace(found, needs=1))
        before = "it was approved before skills could declare tools: approve it again"
        for asked in (
            await yard.call("execute_skill", name="acme.calls"),
            (await yard.call("runs.list", limit=1))["runs"][0],
        ):
            assert asked["error"]["type"] == "PolicyRefused"
            assert before in asked["error"]["message"]
        refused = await yard.call("skills.run_cmd", skill_name="acme.calls", command=COMMAND, language="bash")
        assert before in str(refused)
        seen = await yard.call("catalogue.needs", name="acme.calls")
        assert seen["approved"]
        assert {"need": "tool", "asked": "toy__add", "why": before} in seen["needs"]
        again = await yard.call("catalogue.approve", name="acme.calls")
        assert {"need": "tool", "asked": "toy__add", "granted": "toy__add"} in again["needs"]
        assert (await yard.call("execute_skill", name="acme.calls"))["status"] == "completed"


async def test_detached_it_is_refused_and_over_mcp_it_becomes_no_task(yard: Yard) -> None:
    from mcp.client import Client
    from mcp.client.extension import advertise

    from skillyard.faces.mcp.tasks import EXTENSION

    run = await yard.call("execute_skill", name="acme.calls", detach=True)
    ended = await yard.call("runs.wait", run_id=run["run_id"], wait_ms=30_000)
    assert "a detached run calls none" in (ended.get("run") or ended)["error"]["message"]
    server, _ = face_of(yard.runtime)
    async with Client(server, extensions=[advertise(EXTENSION, {})]) as client:
        result = await client.call_tool("execute_skill", {"name": "acme.calls"})
    assert not result.is_error, result
