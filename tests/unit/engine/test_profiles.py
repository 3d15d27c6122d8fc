"""Profiles at work: what their tokens may call, and what bounds their runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skillyard.config.profiles import ProfileSettings, bound
from skillyard.domain.errors import Busy, Forbidden, InvalidInput, QuotaExceeded, SkillNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.skill import SkillKind
from skillyard.engine.table import METHODS, invoke
from tests.unit.engine.commands.stepping import Stepping
from tests.unit.engine.conftest import CODE, Rig, playing
from tests.unit.engine.fakes import a_skill, result
from tests.unit.engine.runs.resuming import idle

pytestmark = pytest.mark.anyio

ANN = Principal("ann", frozenset(Scope) - {Scope.ADMIN}, profile="bounded")
ROOT = Principal("root", profile="bounded")


def profiled(rig: Rig, **given: Any) -> dict[str, ProfileSettings]:
    profiles = {"bounded": ProfileSettings(**{"allowed_tools": ("run_code", "list_*"), **given})}
    rig.configure(profiles=profiles)
    return profiles


async def called(rig: Rig, principal: Principal, method: str, **params: Any) -> dict[str, Any]:
    return await invoke(rig.app, bound(rig.app.config.profiles, principal), method, params)


async def code(rig: Rig, principal: Principal = ANN, **params: Any) -> dict[str, Any]:
    return await called(rig, principal, "run_code", language="python", **{"code": CODE, **params})


@pytest.mark.parametrize("principal", [ANN, ROOT])
async def test_every_method_outside_is_refused_and_not_listed(rig: Rig, principal: Principal) -> None:
    profiled(rig)
    allowed = {"run_code", "list_skills", "rpc.discover"}
    for method in METHODS.keys() - allowed:
        with pytest.raises(Forbidden, match=f"the profile 'bounded' of this token does not allow the tool '{method}'"):
            await called(rig, principal, method)
    document = await called(rig, principal, "rpc.discover")
    assert {method["name"] for method in document["methods"]} == allowed
    assert (await code(rig, principal))["status"] == "completed"
    assert "skills" in await called(rig, principal, "list_skills")


@pytest.mark.parametrize("method", ["skills.task_status", "skills.task_watch"])
async def test_a_query_command_needs_the_tool_for_commands(rig: Rig, method: str) -> None:
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    asked: dict[str, Any] = {"provider": "cmd", "skill_name": "acme.notes", "query_command": "./state"}
    profiled(rig, allowed_tools=("skills.task_*",))
    with pytest.raises(Forbidden, match=r"does not allow the tool 'skills\.run_cmd'"):
        await called(rig, ANN, method, **asked)
    assert rig.backend.started == []
    profiled(rig, allowed_tools=("skills.task_*", "skills.run_cmd"))
    rig.backend.script = playing(result({"exit_code": 0}), log=b'{"status": "done"}')
    assert (await called(rig, ANN, method, **asked))["done"]


async def test_without_the_profile_every_call_is_refused_by_name(rig: Rig) -> None:
    for method in METHODS:
        with pytest.raises(Forbidden, match=f"{method}: the settings of this server lack the profile 'bounded'"):
            await called(rig, ROOT, method)


async def test_a_principal_that_nobody_gave_its_rights_may_call_nothing(rig: Rig) -> None:
    profiled(rig, allowed_tools=("*",))
    with pytest.raises(Forbidden):
        await invoke(rig.app, ROOT, "list_skills", {})


async def test_skills_outside_do_not_exist(rig: Rig) -> None:
    for name in ("sales.x", "hr.x"):
        rig.skills.add(a_skill(name))
    names = {row["name"] for row in (await rig.call("list_skills"))["skills"]}
    inside = min(names)
    profiled(rig, allowed_tools=("*",), skills=(inside,))
    assert [row["name"] for row in (await called(rig, ROOT, "list_skills"))["skills"]] == [inside]
    for name in names - {inside}:
        with pytest.raises(SkillNotFound, match=f"no skill '{name}'"):
            await called(rig, ROOT, "describe_skill", name=name)
    assert len(names) > 1


async def test_limits_of_its_runs_come_down(rig: Rig) -> None:
    profiled(rig, limits={"memory_mb": 100, "timeout_ms": 5000, "pids": 100_000})
    run = await code(rig)
    record = await rig.record(run)
    assert (record.limits["memory_mb"], record.limits["timeout_ms"], record.limits["pids"]) == (100, 5000, 256)
    with pytest.raises(
        InvalidInput, match=r"limits\.memory_mb: must be from 16 to 100, with the profile 'bounded'"
    ) as refused:
        await code(rig, limits={"memory_mb": 101})
    assert refused.value.details["limit"] == "memory_mb"
    with pytest.raises(InvalidInput, match=r"limits\.pids: must be from 4 to 4096"):
        await code(rig, limits={"pids": 5000})
    assert (await rig.run(limits={"memory_mb": 101}))["status"] == "completed", "of a token without it they stay"


async def test_its_runs_have_its_isolation_alone(rig: Rig) -> None:
    profiled(rig, isolation=rig.backend.name)
    assert (await rig.record(await code(rig))).isolation == rig.backend.name
    with pytest.raises(InvalidInput, match=f"isolation: must be '{rig.backend.name}': the profile 'bounded' has no"):
        await code(rig, isolation="other")


async def test_the_network_of_its_runs_is_bounded(rig: Rig) -> None:
    rig.with_network(rules=["*.x.com"], run_code=["*.x.com"])
    profiled(rig, allowed_tools=("*",), network=["api.x.com"])
    record = await rig.record(await code(rig))
    assert record.network is not None
    layers = {layer["name"]: layer["rules"] for layer in record.network["layers"]}
    assert layers == {"operator": ["*.x.com"], "code": ["*.x.com"], "profile": ["api.x.com"]}
    told = await called(rig, ANN, "policy.explain", targets=["api.x.com", "www.x.com"], code=True)
    assert [target["allowed"] for target in told["targets"]] == [True, False]
    assert told["targets"][1]["layer"] == "profile"


async def test_a_profile_without_a_network_refuses_runs_that_need_one(rig: Rig) -> None:
    rig.with_network(rules=["*.x.com"], run_code=["*.x.com"])
    profiled(rig, network="none")
    run = await code(rig)
    assert run["error"]["type"] == "PolicyRefused"
    assert "the profile of the token allows none" in run["error"]["message"]
    assert (await code(rig, network=[]))["status"] == "completed"


async def test_a_detached_run_is_bounded_too(rig: Rig) -> None:
    profiled(rig, allowed_tools=("run_code", "runs.wait"), limits={"memory_mb": 100})
    run = await code(rig, detach=True)
    ended = await called(rig, ANN, "runs.wait", run_id=run["run_id"])
    assert ended["run"]["status"] == "completed"
    assert (await rig.record(run)).limits["memory_mb"] == 100


async def test_a_run_is_planned_again_with_the_profile_as_it_is_now(rig: Rig) -> None:
    """A later server plans from the stored principal, which nobody has given rights yet."""
    from skillyard.domain.work.record import RunKind
    from skillyard.engine.runs.request import RunRequest

    request = RunRequest(RunKind.CODE, code=CODE)
    with pytest.raises(Forbidden, match="lack the profile 'bounded'"):
        await rig.app.planner.plan(ANN, request)
    profiled(rig, limits={"memory_mb": 64})
    plan = await rig.app.planner.plan(ANN, request)
    assert plan.limits.memory_mb == 64
    assert plan.principal.may_call("run_code")


async def test_a_profile_bounds_commands_too(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b"))
    profiled(rig, limits={"timeout_ms": 5000})
    with pytest.raises(Forbidden, match=r"does not allow the tool 'skills\.run_cmd'"):
        await called(rig, ANN, "skills.run_cmd", skill_name="a.b", command="true")
    profiled(rig, allowed_tools=("skills.run_cmd",), limits={"timeout_ms": 5000})
    with pytest.raises(InvalidInput, match="at most 5, which the profile"):
        await called(rig, ANN, "skills.run_cmd", skill_name="a.b", command="true", timeout_sec=6)


@pytest.mark.parametrize("method", ["skills.run_cmd", "skills.run_cmd_async", "skills.run_service"])
async def test_the_default_time_of_a_command_comes_down_to_that_of_a_profile(rig: Rig, method: str) -> None:
    profiled(rig, allowed_tools=("skills.*",), limits={"timeout_ms": 5000})
    rig.skills.add(a_skill("acme.notes"))
    rig.backend.script = playing(result({"exit_code": 0}))
    given = {"skill_name": "acme.notes", "command": "ls"}
    assert (await called(rig, ANN, method, **given))["limits"]["timeout_ms"] == 5000
    with pytest.raises(InvalidInput, match="timeout_sec: must be at most 5, which the profile 'bounded'"):
        await called(rig, ANN, method, **given, timeout_sec=6)


async def test_a_quota_bounds_the_sessions_of_a_token(rig: Rig) -> None:
    profiled(rig, allowed_tools=("skills.*",), quotas={"sessions": 2})
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.backend.script = playing(result({"exit_code": 0}))
    asked: dict[str, Any] = {"skill_name": "acme.notes", "command": "ls"}
    bob = Principal("bob", frozenset(Scope) - {Scope.ADMIN}, profile="bounded")
    for alias in ("a", "b", "a"):
        assert (await called(rig, ANN, "skills.run_cmd", **asked, session_id=alias))["status"] == "succeeded"
    with pytest.raises(QuotaExceeded, match=r"has 2 sessions .* profile 'bounded' allows 2; end one with") as refused:
        await called(rig, ANN, "skills.run_cmd", **asked, session_id="c")
    assert refused.value.details["limit"] == "profiles.bounded.quotas.sessions"
    assert (await called(rig, bob, "skills.run_cmd", **asked, session_id="c"))["status"] == "succeeded"
    await called(rig, ANN, "skills.end_session", session_id="a")
    assert (await called(rig, ANN, "skills.run_cmd", **asked, session_id="d"))["status"] == "succeeded"


async def test_a_quota_bounds_the_calls_of_a_token(rig: Rig) -> None:
    profiled(rig, allowed_tools=("list_skills",), quotas={"calls": 2, "calls_window_s": 30})
    for _ in range(2):
        await called(rig, ANN, "list_skills")
    with pytest.raises(Forbidden):  # it is not one of its tools, and counts for nothing
        await called(rig, ANN, "skills.list")
    with pytest.raises(Busy, match=r"profile 'bounded' .* profiles\.bounded\.quotas\.calls") as refused:
        await called(rig, ANN, "list_skills")
    await called(rig, ROOT, "list_skills")
    rig.clock.time += refused.value.retry_after_ms / 1000
    await called(rig, ANN, "list_skills")


async def test_quotas_bound_the_tasks_and_jobs_of_a_token(rig: Rig) -> None:
    profiled(rig, allowed_tools=("skills.*",), quotas={"tasks": 2, "jobs": 1})
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    work = rig.backend.script = Stepping()
    asked: dict[str, Any] = {"skill_name": "acme.notes", "command": "ls"}
    made = [(await called(rig, ANN, "skills.run_cmd_async", **asked))["task_id"] for _ in range(2)]
    with pytest.raises(QuotaExceeded, match=r"tasks: this token has 2 tasks .* its profile 'bounded' allows 2"):
        await called(rig, ANN, "skills.run_cmd_async", **asked)
    bob = Principal("bob", frozenset(Scope) - {Scope.ADMIN}, profile="bounded")
    made.append((await called(rig, bob, "skills.run_cmd_async", **asked))["task_id"])
    job = {"skill_name": "acme.notes", "session_id": "work", "steps": [{"command": "ls"}]}
    started = await called(rig, ANN, "skills.start_job", **job)
    with pytest.raises(QuotaExceeded, match=r"jobs: this token has 1 jobs .* its profile 'bounded' allows 1"):
        await called(rig, ANN, "skills.start_job", **job)
    await called(rig, ANN, "skills.job_cancel", job_id=started["job_id"])
    work.say(*[None] * 8)
    async with asyncio.timeout(30):
        for who, task_id in zip((ANN, ANN, bob), made, strict=True):
            await called(rig, who, "skills.task_watch", task_id=task_id)
        await called(rig, ANN, "skills.end_session", session_id="work")
    await idle(rig)
    rig.backend.script = playing(result({"exit_code": 0}))
    again = await called(rig, ANN, "skills.run_cmd_async", **asked)
    await called(rig, ANN, "skills.task_watch", task_id=again["task_id"])
