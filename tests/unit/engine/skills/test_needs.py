"""Whether a skill is approved, and what a run of it is granted: network, secrets, limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.sandbox.content import Content
from skillyard.domain.skill.skill import SecretNeed, SkillSource
from skillyard.engine.skills.standings import BUILT_IN, IN_DIRECTORY, NOBODY
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import raises, result
from tests.unit.engine.skills.needing import ASKS, NET, approve, has_network, needs_of, opened, published, rows, rules

pytestmark = pytest.mark.anyio


async def test_who_is_approved_and_by_what(rig: Rig) -> None:
    skill, of = published("acme.mail"), rig.app.skills.standings.standing_of
    assert await of(replace(skill, source=SkillSource.DIRECTORY)) is IN_DIRECTORY
    assert await of(replace(skill, source=SkillSource.BUILT_IN)) is BUILT_IN
    assert await of(skill) is NOBODY
    await approve(rig, skill)
    found = await of(skill)
    assert (found.approved, found.by, found.because) == (True, "operator", "ann")
    for other in (replace(skill, digest="other bytes"), replace(skill, version="1.0.1"), replace(skill, name="acme.m")):
        assert await of(other) is NOBODY, "the approval is of exactly these bytes"
    rig.configure(trust={"directories": False, "approve": ["acme.* >=1"]})
    of = rig.app.skills.standings.standing_of
    assert (await of(skill)).because == "acme.* >=1"
    assert await of(replace(skill, version="0.9.0", source=SkillSource.DIRECTORY)) is NOBODY
    assert await of(replace(skill, version="0.9.0", source=SkillSource.BUILT_IN)) is BUILT_IN


async def test_an_unapproved_skill_gets_the_least(rig: Rig) -> None:
    rig.with_network()
    rig.secrets.values = {"KEY": "value", "MORE": "another"}
    optional = replace(ASKS, secrets=(SecretNeed("MORE", optional=True),))
    rig.skills.add(published("acme.mail", optional))
    run = await rig.call("execute_skill", name="acme.mail")
    spec, request, timeout = rig.backend.started[-1]
    assert run["status"] == "completed"
    assert spec.egress is None
    assert opened(rig) is None
    assert request["env"] == {}
    assert (spec.limits.memory_mb, timeout) == (512, 1000), "declared limits, at most the defaults"
    needs = await needs_of(rig, run)
    assert needs["least"] == "'acme.mail' 1.0.0 is not approved: `skillyard skill approve acme.mail@1.0.0`"
    assert run["least"] == needs["least"]
    assert needs["skills"][0]["by"] == "nobody"
    assert rows(needs) == [
        ("network", "api.x.com:443", "", "not approved"),
        ("secret", "MORE, optional", "", "not approved"),
        ("limit", "memory_mb=1024", "memory_mb=512", "not approved: the default at most"),
        ("limit", "timeout_ms=1000", "timeout_ms=1000", ""),
    ]
    audited = (await rig.call("secrets.audit"))["events"]
    assert [(event["act"], event["name"]) for event in audited] == [("denied", "MORE")]


async def test_an_approved_one_gets_what_it_declares(rig: Rig) -> None:
    rig.with_network()
    rig.secrets.values = {"KEY": "value-value"}
    skill = published("acme.mail", ASKS)
    rig.skills.add(skill)
    await approve(rig, skill)
    run = await rig.call("execute_skill", name="acme.mail", limits={"timeout_ms": 500})
    spec, request, timeout = rig.backend.started[-1]
    assert (spec.limits.memory_mb, timeout) == (1024, 500)
    assert request["env"]["KEY"] == "value-value"
    plan = opened(rig)
    assert plan is not None
    assert plan.policy.ask("api.x.com", None, 443).allowed
    needs = await needs_of(rig, run)
    assert "least" not in run
    assert needs == {
        "least": "",
        "dropped": 0,
        "skills": [
            {"skill": "acme.mail", "version": "1.0.0", "approved": True, "by": "operator", "because": "ann"}
            | {"needs": needs["skills"][0]["needs"]}
        ],
    }
    assert rows(needs) == [
        ("network", "api.x.com:443", "api.x.com:443", ""),
        ("secret", "KEY", "env", ""),
        ("secret", "MORE, optional", "", "there is none for this project and skill"),
        ("limit", "memory_mb=1024", "memory_mb=1024", ""),
        ("limit", "timeout_ms=1000", "timeout_ms=500", "the request names it"),
    ]


async def test_a_secret_that_must_be_there_refuses_the_run_by_name(rig: Rig) -> None:
    rig.with_network()
    rig.secrets.values = {"KEY": "value"}
    skill = published("acme.mail", ASKS)
    rig.skills.add(skill)
    run = await rig.call("execute_skill", name="acme.mail")
    assert run["error"]["type"] == "PolicyRefused"
    assert run["error"]["message"] == (
        "'acme.mail' needs the secret KEY, and 'acme.mail' 1.0.0 is not approved:"
        " `skillyard skill approve acme.mail@1.0.0`"
    )
    assert rig.backend.started == []
    needs = await needs_of(rig, run)
    assert {why for *_, granted, why in rows(needs) if not granted} == {"not approved"}
    await approve(rig, skill)
    assert (await rig.call("execute_skill", name="acme.mail"))["status"] == "completed"
    await rig.app.ports.approvals.revoke("acme.mail", "1.0.0")
    assert (await rig.call("execute_skill", name="acme.mail"))["error"]["type"] == "PolicyRefused", "at once"


async def test_other_bytes_under_an_approved_version_are_not_approved(rig: Rig) -> None:
    rig.with_network()
    skill = published("acme.mail", NET)
    rig.skills.add(skill)
    await approve(rig, skill)
    await rig.call("execute_skill", name="acme.mail")
    assert has_network(rig)
    rig.skills.skills["acme.mail"] = [replace(skill, digest="swapped")]
    run = await rig.call("execute_skill", name="acme.mail")
    assert not has_network(rig)
    assert not (await needs_of(rig, run))["skills"][0]["approved"]


async def test_foreign_code_does_not_come_by_an_approved_ones_grants(rig: Rig) -> None:
    """A version of a library that nobody approved would run with the secrets and the network of who requires it."""
    rig.with_network()
    rig.secrets.values = {"KEY": "value-value"}
    top = published("acme.top", replace(ASKS, requires=("lib",)))
    good, evil = published("lib"), published("lib", version="1.1.0")
    for skill in (top, good, evil):
        rig.skills.add(skill)
    await approve(rig, top)
    await approve(rig, good)
    run = await rig.call("execute_skill", name="acme.top")
    spec, request, _ = rig.backend.started[-1]
    shown = {mount.source.digest for mount in spec.mounts if isinstance(mount.source, Content)}
    assert shown >= {top.digest, good.digest}, "the newest that is approved"
    assert (request["env"]["KEY"], run["status"]) == ("value-value", "completed")

    await rig.app.ports.approvals.revoke("lib")
    run = await rig.call("execute_skill", name="acme.top")
    assert run["error"]["type"] == "PolicyRefused"
    assert "'lib' 1.1.0 is not approved" in run["error"]["message"]
    needs = await needs_of(rig, run)
    assert [(s["skill"], s["approved"]) for s in needs["skills"]] == [("acme.top", True), ("lib", False)]
    assert ("requires", "lib", "lib 1.1.0", "") in rows(needs)


async def test_nor_by_being_mounted_beside_it(rig: Rig) -> None:
    rig.with_network(run_code="mounted")
    rig.configure(policy={"run_code_secrets": "mounted"})
    rig.secrets.values = {"KEY": "value-value"}
    good, evil = published("good", replace(ASKS, limits={})), published("evil", NET)
    rig.skills.add(good)
    rig.skills.add(evil)
    await approve(rig, good)
    run = await rig.run(mount_skills=["good"])
    assert rig.backend.started[-1][1]["env"]["KEY"] == "value-value"
    assert has_network(rig)
    assert [row[2] for row in rows(await needs_of(rig, run))] == ["api.x.com:443", "env", ""]
    run = await rig.run(mount_skills=["good", "evil"])
    assert run["error"]["message"].startswith("'good' needs the secret KEY, and 'evil' 1.0.0 is not approved")
    run = await rig.call("execute_skill", name="good", mount_skills=["evil"])
    assert run["error"]["type"] == "PolicyRefused"
    run = await rig.run(mount_skills=["evil"])
    assert not has_network(rig)
    assert rows(await needs_of(rig, run)) == [("network", "api.x.com:443", "", "not approved")]


async def test_what_the_operator_gives_to_any_code_stays_with_it(rig: Rig) -> None:
    rig.with_network(run_code=rules("mirror.x.com"))
    rig.skills.add(published("evil", NET))
    await rig.run(mount_skills=["evil"])
    plan = opened(rig)
    assert plan is not None
    assert plan.policy.ask("mirror.x.com", None, 443).allowed
    assert not plan.policy.ask("api.x.com", None, 443).allowed
    run = await rig.call("execute_skill", name="evil")
    assert not has_network(rig), run


async def test_policy_explain_says_what_such_a_run_would_get(rig: Rig) -> None:
    rig.with_network(run_code="mounted")
    good, evil = published("good", replace(NET, requires=("evil",))), published("evil")
    rig.skills.add(good)
    rig.skills.add(evil)
    await approve(rig, good)

    async def allowed(**params: Any) -> tuple[bool, str]:
        found = await rig.call("policy.explain", targets=["api.x.com"], **params)
        return found["targets"][0]["allowed"], found.get("least", "")

    least = "'evil' 1.0.0 is not approved: `skillyard skill approve evil@1.0.0`"
    for params in ({"skill": "good"}, {"code": True, "mount_skills": ["good"]}):
        assert await allowed(**params) == (False, least), "it requires one that is not"
    found = await rig.call("policy.explain", targets=["api.x.com"], skill="good", network=["api.x.com"])
    assert found["refused"].endswith(least)
    await approve(rig, evil)
    for params in ({"skill": "good"}, {"code": True, "mount_skills": ["good"]}):
        assert await allowed(**params) == (True, "")


async def test_a_run_at_work_is_not_ended_by_what_is_revoked(rig: Rig) -> None:
    gate = rig.with_network()
    skill = published("acme.mail", NET)
    rig.skills.add(skill)
    await approve(rig, skill)

    async def late(process: Any) -> None:
        await rig.call("catalogue.revoke", name="acme.mail")
        process.write(result({"reached": gate.last.connect("api.x.com", 443)}))

    rig.backend.script = late
    run = await rig.call("execute_skill", name="acme.mail")
    assert run["output"] == {"reached": True}
    await rig.call("execute_skill", name="acme.mail")
    assert not has_network(rig)


async def test_a_request_for_the_network_of_an_unapproved_skill_is_refused_with_the_reason(rig: Rig) -> None:
    rig.with_network()
    rig.skills.add(published("acme.mail", NET))
    run = await rig.call("execute_skill", name="acme.mail", network=["api.x.com:443"])
    assert run["error"]["type"] == "PolicyRefused"
    assert "'acme.mail' 1.0.0 is not approved" in run["error"]["message"]
    run = await rig.call("execute_skill", name="acme.mail", network=[])
    assert run["status"] == "completed"


async def test_a_run_that_failed_for_want_of_the_network_is_told_of_the_approval(rig: Rig) -> None:
    async def fail(process: Any) -> None:
        process.write(raises("OSError", "[Errno 101] Network is unreachable"))

    rig.with_network()
    rig.backend.script = fail
    rig.skills.add(published("acme.mail", NET))
    run = await rig.call("execute_skill", name="acme.mail")
    assert "the run had none: 'acme.mail' 1.0.0 is not approved" in run["error"]["message"]
