"""The tools as a profile of CommonGround has them: each parameter of theirs is taken, and each field of theirs is told.

The reference requires more than we do in places, so each call here is also one that passes its schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import InvalidInput
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import SkillFile, SkillKind
from skillyard.engine.table import METHODS
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import a_skill, result

pytestmark = pytest.mark.anyio
ANN = Principal("ann", frozenset({Scope.RUN_CODE, Scope.EXECUTE, Scope.DISCOVER}))
SKILL = {"skill_name": "acme.notes"}
HERE = {**SKILL, "session_id": "work"}
PLACE = {"workdir": "skill", "env": {"A": "1"}}
QUERY = {
    "provider": "cmd", "query_command": "cat state.json", "workdir": "skill", "status_field": "status",
    "progress_field": "progress", "events_field": "events", "done_states": ["done", "success", "completed"],
    "error_states": ["failed", "error", "errored"], "session_id": "work", **SKILL,
}  # fmt: skip
STATE = {"status": "done", "progress": 1.0, "events": []}

BG = (
    "task_id", "provider", "status", "mode", "startup_ready", "started_at", "finished_at", "last_output_at",
    "exit_code", "stdout_tail", "stderr_tail", "stdout_truncated", "stderr_truncated", "created_artifacts",
    "output_errors", "session_id", "error_message", "exposed_endpoints", "exposed_endpoints_active", "orphaned",
    "orphaned_reason",
)  # fmt: skip
CMD = ("task_id", "provider", "status_field", "state", "done", "error", "progress", "events", "raw")
STARTED = ("task_id", "provider", "mode", "status", "session_id", "workdir", "skill_name")
JOB = ("job_id", "status", "current_step_index", "steps", "started_at", "finished_at", "error_message")
STEP = ("name", "status", "task_id", "exit_code", "stdout_tail", "stderr_tail", "provider")


@pytest.fixture(autouse=True)
def skill(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("# Notes\n")
    files = (SkillFile("SKILL.md", 8, "x"),)
    rig.skills.add(a_skill("acme.notes", tmp_path, kind=SkillKind.INSTRUCTION, files=files))
    rig.principal = ANN
    rig.backend.script = playing(result({"exit_code": 0}), log=json.dumps(STATE).encode())


async def told(rig: Rig, tool: str, asked: dict[str, Any], *fields: str) -> dict[str, Any]:
    """Calls a tool, and returns its answer, which has these fields. Nothing beside the parameters is taken."""
    with pytest.raises(InvalidInput):
        await rig.call(tool, **asked, surely_unknown=1)
    answer = await rig.call(tool, **asked)
    assert set(fields) <= answer.keys(), f"{tool} lacks {sorted(set(fields) - answer.keys())}"
    return answer


async def test_skills_are_loaded_and_activated(rig: Rig) -> None:
    plain = ("content", "bytes", "sha256", "version_hash")
    await told(rig, "skills.load", {**SKILL, "path": "SKILL.md"}, *plain)
    await told(rig, "skills.load", HERE, *plain, "session_id", "session_root")
    local = ("mode", "skill_name", "version_hash", "local_dir", "active_path")
    await told(rig, "skills.activate", {**HERE, "timeout_sec": 30}, *local)


async def test_a_command_is_run(rig: Rig) -> None:
    blob = (await rig.app.ports.blobs.create(ANN.name, "text/plain", b"in")).blob_id
    asked = {
        **HERE, "command": "ls", "timeout_sec": 120, "outputs": [{"path": "out.gif", "save_as": "x.gif"}],
        "inputs": [{"artifact_id": blob, "mount_path": "in.txt"}],
    }  # fmt: skip
    fields = ("stdout", "stderr", "exit_code", "created_artifacts", "output_errors", "timing", "version_hash")
    ran = await told(rig, "skills.run_cmd", asked, *fields, "workdir", "skill_root", "session_id")
    assert (ran["workdir"], "duration_ms" in ran["timing"]) == ("skill", True)


async def test_a_task_is_started_watched_and_cancelled(rig: Rig) -> None:
    asked = {**HERE, "command": "ls", **PLACE, "timeout_sec": 1800}
    started = await told(rig, "skills.run_cmd_async", asked, *STARTED)
    assert (started["status"], started["mode"], started["workdir"]) == ("queued", "batch", "skill")
    task = {"provider": "bg", "task_id": started["task_id"], "tail_bytes": 8192, "session_id": "work"}
    times = {"poll_interval_sec": 2, "heartbeat_sec": 20, "timeout_sec": 600, "dedupe_key": "ours"}
    await told(rig, "skills.task_watch", {**task, **times}, *BG, "timing")
    await told(rig, "skills.task_status", task, *BG)
    over = await told(rig, "skills.task_cancel", {"task_id": started["task_id"]}, "task_id", "status", "canceled")
    assert (over["status"], over["canceled"]) == ("succeeded", False)


async def test_a_service_is_started(rig: Rig) -> None:
    asked = {**SKILL, "command": "serve", **PLACE, "ready_pattern": "^on", "startup_timeout_sec": 5}
    started = await told(rig, "skills.run_service", asked, *STARTED, "exposed_endpoints")
    assert (started["mode"], started["exposed_endpoints"]) == ("service", [])
    await told(rig, "skills.task_status", {"task_id": started["task_id"]}, *BG)
    known = METHODS["skills.run_service"].params["properties"]
    assert {"expose_ports", "session_id"} <= known.keys(), "the twin forwards no ports, and keeps no service"


async def test_the_state_of_work_elsewhere_is_asked_for(rig: Rig) -> None:
    told_of = await told(rig, "skills.task_status", {**QUERY, "timeout_sec": 30}, *CMD)
    assert (told_of["done"], told_of["error"], told_of["raw"]) == (True, False, STATE)
    await told(rig, "skills.task_watch", {**QUERY, "poll_interval_sec": 1, "timeout_sec": 600}, *CMD, "timing")


async def test_a_job_is_started_watched_and_cancelled(rig: Rig) -> None:
    steps = [{"name": "one", "command": "ls", "timeout_sec": 60, "env": {"B": "2"}}, {"command": "ls"}]
    asked = {**HERE, **PLACE, "steps": steps, "max_concurrency": 1, "max_wall_time_sec": 1800}
    started = await told(rig, "skills.start_job", asked, "job_id", "status", "session_id")
    assert started["status"] == "queued"
    job = {"job_id": started["job_id"], "tail_bytes": 8192}
    times = {"poll_interval_sec": 2, "heartbeat_sec": 20, "timeout_sec": 600, "dedupe_key": "ours"}
    ended = await told(rig, "skills.job_watch", {**job, **times}, *JOB, "timing")
    assert (ended["status"], [set(STEP) - step.keys() for step in ended["steps"]]) == ("succeeded", [set(), set()])
    await told(rig, "skills.job_status", job, *JOB)
    over = {"job_id": started["job_id"], "reason": "enough"}
    assert (await told(rig, "skills.job_cancel", over, "job_id", "status", "reason"))["status"] == "succeeded"


REQUIRED = {
    "skills.load": {"skill_name"}, "skills.activate": {"skill_name"}, "skills.run_cmd": {"skill_name", "command"},
    "skills.run_cmd_async": {"skill_name", "command"}, "skills.run_service": {"skill_name", "command", "session_id"},
    "skills.start_job": {"skill_name", "session_id", "steps"}, "skills.job_status": {"job_id"},
    "skills.job_watch": {"job_id"}, "skills.job_cancel": {"job_id"}, "skills.task_status": {"provider"},
    "skills.task_watch": {"provider"}, "skills.task_cancel": {"task_id"},
}  # fmt: skip


async def test_no_tool_requires_more_than_theirs() -> None:
    for name, theirs in REQUIRED.items():
        params = METHODS[name].params
        assert set(params.get("required", ())) <= theirs, name
        assert params["additionalProperties"] is False, name
