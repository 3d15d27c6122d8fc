"""What skills declare that they need, and what of it a run is granted: by approval, within the operator's policy."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.approval import Approval
from skillyard.domain.egress.rule import parse_rule
from skillyard.domain.egress.session import EgressPlan
from skillyard.domain.package_names import admits, parse_patterns
from skillyard.domain.secret import Delivery
from skillyard.domain.skill import Needs, SecretNeed, Skill, SkillSource
from skillyard.domain.trust import Trust, TrustRule
from skillyard.engine.need_rows import Row, declares, environment_rows, package_rows
from skillyard.engine.needs import BUILT_IN, IN_DIRECTORY, NOBODY, packages_allowed, standing_of
from skillyard.engine.packages_config import PackagesConfig
from skillyard.engine.run_needs import MOST_BYTES
from tests.engine.conftest import Rig
from tests.engine.fakes import a_skill, raises, result

pytestmark = pytest.mark.anyio

ASKS = Needs(
    network=("api.x.com:443", "!bad.x.com"),
    secrets=(SecretNeed("KEY"), SecretNeed("MORE", optional=True)),
    limits={"memory_mb": 1024, "timeout_ms": 1000},
)
NET = Needs(network=("api.x.com:443",))


def published(name: str, needs: Needs | None = None, **more: Any) -> Skill:
    return replace(a_skill(name, needs=needs, **more), source=SkillSource.PUBLISHED)


def rules(*texts: str) -> Any:
    return tuple(map(parse_rule, texts))


async def approve(rig: Rig, skill: Skill, digest: str | None = None) -> None:
    approval = Approval(skill.name, skill.version, digest or skill.digest, 0.0, "ann")
    await rig.engine.approvals.approve(approval)


async def needs_of(rig: Rig, run: dict[str, Any]) -> dict[str, Any]:
    needs = (await rig.call("runs.show", run_id=run["run_id"]))["run"]["needs"]
    assert isinstance(needs, dict)
    return needs


def rows(needs: dict[str, Any], skill: int = 0) -> list[tuple[str, str, str, str]]:
    found = needs["skills"][skill]["needs"]
    return [(row["need"], row["asked"], row.get("granted", ""), row.get("why", "")) for row in found]


def opened(rig: Rig) -> EgressPlan | None:
    assert rig.gate is not None
    plans = [session.plan for session in rig.gate.sessions.values()]
    return plans[-1] if plans else None


def has_network(rig: Rig) -> bool:
    return rig.backend.started[-1][0].egress is not None


async def test_who_is_approved_and_by_what(rig: Rig) -> None:
    skill = published("acme.mail")
    assert await standing_of(rig.engine, replace(skill, source=SkillSource.DIRECTORY)) is IN_DIRECTORY
    assert await standing_of(rig.engine, replace(skill, source=SkillSource.BUILT_IN)) is BUILT_IN
    assert await standing_of(rig.engine, skill) is NOBODY
    await approve(rig, skill)
    found = await standing_of(rig.engine, skill)
    assert (found.approved, found.by, found.because) == (True, "operator", "ann")
    for other in (replace(skill, digest="other bytes"), replace(skill, version="1.0.1"), replace(skill, name="acme.m")):
        assert await standing_of(rig.engine, other) is NOBODY, "the approval is of exactly these bytes"
    rig.configure(trust=Trust(directories=False, approve=(TrustRule.parse("acme.* >=1"),)))
    assert (await standing_of(rig.engine, skill)).because == "acme.* >=1"
    assert await standing_of(rig.engine, replace(skill, version="0.9.0", source=SkillSource.DIRECTORY)) is NOBODY
    assert await standing_of(rig.engine, replace(skill, version="0.9.0", source=SkillSource.BUILT_IN)) is BUILT_IN


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
    await rig.engine.approvals.revoke("acme.mail", "1.0.0")
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
    assert {mount.digest for mount in spec.mounts} >= {top.digest, good.digest}, "the newest that is approved"
    assert (request["env"]["KEY"], run["status"]) == ("value-value", "completed")

    await rig.engine.approvals.revoke("lib")
    run = await rig.call("execute_skill", name="acme.top")
    assert run["error"]["type"] == "PolicyRefused"
    assert "'lib' 1.1.0 is not approved" in run["error"]["message"]
    needs = await needs_of(rig, run)
    assert [(s["skill"], s["approved"]) for s in needs["skills"]] == [("acme.top", True), ("lib", False)]
    assert ("requires", "lib", "lib 1.1.0", "") in rows(needs)


async def test_nor_by_being_mounted_beside_it(rig: Rig) -> None:
    rig.with_network(run_code="mounted")
    rig.configure(run_code_secrets="mounted")
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


async def test_only_the_executed_skills_needs_are_granted(rig: Rig) -> None:
    rig.with_network()
    rig.secrets.values = {"KEY": "value-value"}
    rig.skills.add(a_skill("top", needs=Needs(requires=("lib",), network=("top.x.com",))))
    rig.skills.add(a_skill("lib", needs=ASKS))
    run = await rig.call("execute_skill", name="top")
    assert rig.backend.started[-1][1]["env"].get("KEY") is None
    plan = opened(rig)
    assert plan is not None
    assert not plan.policy.ask("api.x.com", None, 443).allowed
    needs = await needs_of(rig, run)
    assert rows(needs) == [("network", "top.x.com", "top.x.com", ""), ("requires", "lib", "lib 1.0.0", "")]
    assert {row[3] for row in rows(needs, 1)} == {"only what the executed skill declares is granted"}


async def test_what_the_operator_and_the_request_take_away(rig: Rig) -> None:
    rig.with_network(rules=rules("*.x.com:443", "!secret.x.com"))
    network = ("api.x.com:443", "api.x.com", "y.com", "secret.x.com")
    rig.skills.add(a_skill("a.b", needs=Needs(network=network, limits={"memory_mb": 10**6})))
    run = await rig.call("execute_skill", name="a.b")
    assert rows(await needs_of(rig, run)) == [
        ("network", "api.x.com:443", "api.x.com:443", ""),
        ("network", "api.x.com", "in part", "operator rules allow some of it: *.x.com:443"),
        ("network", "y.com", "", "no operator rule allows it"),
        ("network", "secret.x.com", "", "denied by operator rule '!secret.x.com'"),
        ("limit", "memory_mb=1000000", "memory_mb=8192", "the operator's maximum"),
    ]
    run = await rig.call("execute_skill", name="a.b", network=["other.x.com"])
    assert rows(await needs_of(rig, run))[0] == ("network", "api.x.com:443", "", "no request rule allows it")
    run = await rig.call("execute_skill", name="a.b", network=[])
    assert rows(await needs_of(rig, run))[0] == ("network", "api.x.com:443", "", "the request asked for none")


async def test_why_a_run_was_refused_stands_with_what_it_asked_for(rig: Rig) -> None:
    rig.with_network(rules=rules("x.com"))
    rig.skills.add(a_skill("a.b", needs=Needs(network=("*", "y.com", "x.com"), secrets=(SecretNeed("KEY"),))))
    run = await rig.call("execute_skill", name="a.b")
    assert run["error"]["type"] == "PolicyRefused"
    assert rows(await needs_of(rig, run)) == [
        ("network", "*", "", "the operator has not consented to every host (network.open)"),
        ("network", "y.com", "", "no operator rule allows it"),
        ("network", "x.com", "", "the run was refused"),
        ("secret", "KEY", "", "the run was refused"),
    ]


async def test_a_secret_at_the_gate(rig: Rig) -> None:
    rig.with_network()
    rig.secrets.values = {"KEY": "value-value"}
    need = SecretNeed("KEY", delivery=Delivery.GATE, hosts=("api.x.com",))
    rig.skills.add(a_skill("a.b", needs=Needs(network=("api.x.com",), secrets=(need,))))
    run = await rig.call("execute_skill", name="a.b")
    assert rows(await needs_of(rig, run))[1:] == [("secret", "KEY, gate: api.x.com", "gate: api.x.com:443", "")]


def test_packages_and_an_environment() -> None:
    skill = a_skill("a.b", needs=Needs(dependencies=("Ruamel.YAML[x]>=0.1; python_version > '3'",)), environment="data")
    assert declares(skill)
    config, [text] = PackagesConfig(), skill.needs.dependencies
    assert list(package_rows(skill, NOBODY, config, {"ruamel-yaml": "0.18.6"})) == [
        Row("package", text, "ruamel-yaml 0.18.6")
    ]
    assert list(package_rows(skill, IN_DIRECTORY, config, {}, "refused")) == [Row("package", text, why="refused")]
    assert list(package_rows(skill, IN_DIRECTORY, config, {})) == [Row("package", text, "ruamel-yaml")]
    why = "packages.run_code does not admit it"
    assert list(package_rows(skill, NOBODY, config, {}, "refused")) == [Row("package", text, why=why)]
    config = PackagesConfig(allow=("!ruamel-*", "*"))
    assert [row.why for row in package_rows(skill, IN_DIRECTORY, config, {})] == ["packages.allow does not admit it"]
    assert list(environment_rows(skill, "data")) == [Row("environment", "data", "data")]
    assert list(environment_rows(skill, "base")) == [Row("environment", "data", "base", "the request names it")]
    assert list(environment_rows(a_skill("plain"), "base")) == []


async def test_a_run_without_needs_stores_nothing(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b"))
    rig.skills.add(published("plain"))
    for run in (
        await rig.call("execute_skill", name="a.b"),
        await rig.call("execute_skill", name="plain"),
        await rig.run(mount_skills=["a.b"]),
        await rig.run(),
    ):
        assert (await rig.record(run)).needs is None
        assert (await rig.call("runs.show", run_id=run["run_id"]))["run"]["needs"] is None
    assert "needs" not in (await rig.call("runs.list"))["runs"][0]


async def test_what_a_record_holds_of_it_is_bounded(rig: Rig) -> None:
    rig.with_network(rules=rules("*", "!n0.x.com"))
    network = (*(f"n{n}.{'x' * 60}.com" for n in range(1, 1000)), "n0.x.com")
    rig.skills.add(a_skill("a.b", needs=Needs(network=network)))
    needs = await needs_of(rig, await rig.call("execute_skill", name="a.b"))
    assert len(json.dumps(needs)) < MOST_BYTES + 1000
    assert needs["dropped"] + len(rows(needs)) == 1000
    assert rows(needs)[-1][1:] == ("n0.x.com", "", "denied by operator rule '!n0.x.com'"), "what was not granted stays"


def test_which_packages_a_standing_lets_a_skill_have() -> None:
    config = PackagesConfig(allow=parse_patterns(["*", "!evil*"], "a"), run_code=parse_patterns(["NumPy"], "b"))
    asked = ("numpy", "pandas", "evil-thing", "Evil_Thing")
    assert packages_allowed(IN_DIRECTORY, asked, config) == ("numpy", "pandas")
    assert packages_allowed(NOBODY, asked, config) == ("numpy",)
    assert not admits((), "numpy")
    assert admits(parse_patterns(["ruamel.*"], "x"), "Ruamel_YAML")
    assert not admits(parse_patterns(["*", "!torch"], "x"), "torch")
