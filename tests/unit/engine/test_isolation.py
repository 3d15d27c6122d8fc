"""What isolates a run: the operator's default, what a run may name, and ``auto``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from skillyard.config.policy import BoundaryRule, PolicySettings
from skillyard.domain.errors import IdempotencyConflict, InvalidInput, ProtectionMissing
from skillyard.domain.sandbox.guarantees import GUARANTEES, OWN_KERNEL, Level, Protection
from skillyard.domain.sandbox.spec import Held, Owner
from skillyard.domain.skill.trust import parse_trust_rules
from skillyard.engine.app import App
from skillyard.sandbox.registry import nature
from skillyard.testing.twin_sandbox import TwinBackend
from tests.unit.engine.conftest import Rig, make_app
from tests.unit.engine.fakes import a_skill, succeed
from tests.unit.engine.skills.needing import approve, published

pytestmark = pytest.mark.anyio


def named(name: str) -> TwinBackend:
    backend = TwinBackend(succeed)
    backend.name = name
    backend.nature = nature(name)
    return backend


async def engine_over(rig: Rig, *backends: TwinBackend, **policy: Any) -> App:
    rig.extra["backends"] = {backend.name: backend for backend in backends}
    rig.app = make_app(rig, rig.app.config.model_copy(update={"policy": rig.app.config.policy.changed(**policy)}))
    await rig.app.start()
    return rig.app


def without(backend: TwinBackend, *walls: str) -> TwinBackend:
    backend.protections |= {wall: Protection(Level.MISSING, why="closed", mend="open it") for wall in walls}
    return backend


async def test_the_default_runs_and_the_record_names_it(rig: Rig) -> None:
    await engine_over(rig, named("native"), named("landlock"), isolation="native")
    run = await rig.run()
    assert run["isolation"] == "native"
    assert (await rig.record(run)).isolation == "native"


async def test_a_run_may_name_what_policy_offers(rig: Rig) -> None:
    gvisor = named("gvisor")
    await engine_over(rig, named("native"), gvisor, isolation="native", isolations=frozenset({"gvisor"}))
    assert (await rig.run(isolation="gvisor"))["isolation"] == "gvisor"
    assert len(gvisor.started) == 1
    assert (await rig.run(isolation="native"))["isolation"] == "native"


async def test_a_run_may_not_name_another(rig: Rig) -> None:
    await engine_over(rig, named("native"), named("landlock"), isolation="native")
    with pytest.raises(InvalidInput, match=r"isolation: must be one that policy.isolations offers: native"):
        await rig.run(isolation="landlock")
    assert await rig.app.ports.records.list(None) == []


async def test_what_a_run_names_is_never_swapped_for_a_weaker_one(rig: Rig) -> None:
    closed = without(named("native"), "user_namespace")
    await engine_over(rig, closed, named("landlock"), isolation="landlock", isolations=frozenset({"native"}))
    with pytest.raises(ProtectionMissing, match="user_namespace"):
        await rig.run(isolation="native")
    assert (await rig.run())["isolation"] == "landlock"


async def test_the_default_is_never_swapped_for_a_weaker_one(rig: Rig) -> None:
    closed = without(named("native"), "user_namespace")
    await engine_over(rig, closed, named("landlock"), isolation="native", isolations=frozenset({"landlock"}))
    with pytest.raises(ProtectionMissing, match="user_namespace"):
        await rig.run()


@pytest.mark.parametrize(
    ("closed", "chosen"),
    [
        (set(), "native"),
        ({"native"}, "gvisor"),
        ({"native", "gvisor"}, "landlock"),
    ],
)
async def test_auto_is_the_strongest_that_stands(rig: Rig, closed: set[str], chosen: str) -> None:
    backends = [
        without(named(name), "user_namespace") if name in closed else named(name)
        for name in ("landlock", "gvisor", "native")
    ]
    await engine_over(rig, *backends, isolation="auto")
    assert (await rig.run())["isolation"] == chosen
    assert (await rig.run(isolation=chosen))["isolation"] == chosen


async def test_auto_with_nothing_that_stands_says_what_the_strongest_lacks(rig: Rig) -> None:
    await engine_over(
        rig, without(named("native"), "seccomp"), without(named("landlock"), "landlock"), isolation="auto"
    )
    with pytest.raises(ProtectionMissing, match=r"seccomp \(closed; open it\)"):
        await rig.run()


async def test_an_isolation_may_lack_what_it_is_without_by_nature_and_nothing_else(rig: Rig) -> None:
    level = without(named("landlock"), *nature("landlock").without)
    await engine_over(rig, level, isolation="landlock")
    assert (await rig.run())["enforced"]["pid_namespace"] == "missing"
    without(level, "seccomp")
    await rig.app.start()
    with pytest.raises(ProtectionMissing) as caught:
        await rig.run()
    assert caught.value.details["protections"] == ["seccomp"]


async def test_the_record_says_what_was_guaranteed_by_whom_and_by_which_walls(rig: Rig) -> None:
    level = without(named("landlock"), *nature("landlock").without)
    level.protections["disk"] = Protection(Level.SUPERVISED, by="a watch")
    await engine_over(rig, level, isolation="landlock")
    run = await rig.run()
    found = (await rig.record(run)).guarantees
    assert list(found) == list(GUARANTEES)
    assert found["host_files"] == {"attestor": "kernel", "evidence": ["landlock"]}
    assert found["disk"] == {"attestor": "supervised", "evidence": ["a watch"]}
    assert (await rig.call("runs.show", run_id=run["run_id"]))["run"]["guarantees"] == found
    assert "guarantees" not in run


async def test_a_backend_that_lacks_a_guarantee_is_refused_before_a_sandbox_is_made(rig: Rig) -> None:
    remote = named("remote")
    remote.protections = {name: Protection(Level.PROVIDER, by="its word") for name in GUARANTEES}
    await engine_over(rig, remote, isolation="remote")
    assert (await rig.record(await rig.run())).guarantees["host_files"]["attestor"] == "provider"
    for changes in ({"host_files": Protection(Level.MISSING, why="it shares them")}, {"host_files": None}):
        remote.protections |= {name: p for name, p in changes.items() if p is not None}
        if changes["host_files"] is None:
            del remote.protections["host_files"]
        await rig.app.start()
        made = len(remote.started)
        with pytest.raises(ProtectionMissing, match="host_files") as caught:
            await rig.run()
        assert caught.value.details["protections"] == ["host_files"]
        assert len(remote.started) == made


async def test_a_provider_does_where_policy_asks_for_no_kernel(rig: Rig) -> None:
    remote = named("remote")
    remote.protections = {name: Protection(Level.PROVIDER) for name in GUARANTEES}
    await engine_over(rig, remote, isolation="remote", require="kernel")
    with pytest.raises(ProtectionMissing, match=r"host_files \(only attested by its provider here"):
        await rig.run()


async def test_a_sandbox_with_less_than_its_backend_offered_is_refused(rig: Rig) -> None:
    remote = named("remote")
    remote.protections = {name: Protection(Level.PROVIDER) for name in GUARANTEES}
    await engine_over(rig, remote, isolation="remote")
    for claim in (Level.MISSING, "by some new word", None):
        remote.protections = {name: Protection(Level.PROVIDER) for name in GUARANTEES if name != "neighbours"}
        if claim is not None:
            remote.protections["neighbours"] = Protection(Level(claim))
        with pytest.raises(ProtectionMissing, match="neighbours"):
            await rig.run()
    remote.protections = {}
    with pytest.raises(ProtectionMissing, match="host_files"):
        await rig.run()


async def test_leftovers_of_every_backend_are_swept(rig: Rig) -> None:
    backends = named("native"), named("landlock")
    for backend in backends:
        backend.foreign = [Held(f"of-{backend.name}", "run_0", Owner.RUN, 5.0)]
    await engine_over(rig, *backends, isolation="native")
    assert [backend.destroyed for backend in backends] == [["of-native"], ["of-landlock"]]


async def test_the_isolation_is_part_of_what_an_idempotency_key_is_bound_to(rig: Rig) -> None:
    await engine_over(rig, named("native"), named("gvisor"), isolation="native", isolations=frozenset({"gvisor"}))
    await rig.run(idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="other parameters"):
        await rig.run(idempotency_key="k", isolation="gvisor")


async def test_auto_takes_no_backend_without_a_rank(rig: Rig) -> None:
    await engine_over(rig, named("remote"), without(named("native"), "seccomp"), named("landlock"), isolation="auto")
    assert (await rig.run())["isolation"] == "landlock"
    with pytest.raises(InvalidInput, match=r"there is no backend that 'auto' may choose; name one"):
        await engine_over(rig, named("remote"), isolation="auto")


def with_kernel(name: str) -> TwinBackend:
    backend = named(name)
    backend.protections |= {OWN_KERNEL: Protection(Level.KERNEL, by="its own")}
    return backend


BOTH = {"isolation": "native", "isolations": frozenset({"gvisor"})}


async def test_auto_takes_the_first_that_has_what_policy_demands(rig: Rig) -> None:
    backends = named("native"), with_kernel("gvisor"), named("landlock")
    await engine_over(rig, *backends, isolation="auto", demand=frozenset({OWN_KERNEL}))
    assert (await rig.run())["isolation"] == "gvisor"


async def test_a_demand_is_not_excused_by_the_nature_of_a_backend(rig: Rig) -> None:
    landlock = without(named("landlock"), "mount_namespace")
    await engine_over(rig, landlock, isolation="landlock", demand=frozenset({"mount_namespace"}))
    with pytest.raises(ProtectionMissing, match="mount_namespace"):
        await rig.run()


async def test_what_policy_demands_of_every_run_leads_to_no_other_isolation(rig: Rig) -> None:
    await engine_over(rig, named("native"), with_kernel("gvisor"), **BOTH, demand=frozenset({OWN_KERNEL}))
    with pytest.raises(ProtectionMissing, match=r"own_kernel .the host's kernel answers programs; choose an isolation"):
        await rig.run()
    assert (await rig.run(isolation="gvisor"))["isolation"] == "gvisor"


async def test_a_sandbox_without_what_policy_demands_of_it_is_refused(rig: Rig) -> None:
    gvisor = with_kernel("gvisor")
    await engine_over(rig, gvisor, isolation="gvisor", demand=frozenset({OWN_KERNEL}))
    gvisor.protections = {name: have for name, have in gvisor.protections.items() if name != OWN_KERNEL}
    with pytest.raises(ProtectionMissing, match=OWN_KERNEL):
        await rig.run()


async def test_skills_that_nobody_approved_are_sent_elsewhere_by_a_rule(rig: Rig) -> None:
    rule = BoundaryRule(unapproved=True, isolation="gvisor")
    skill = published("s")
    rig.skills.skills["s"] = [skill]
    await engine_over(rig, named("native"), named("gvisor"), isolation="native", rules=(rule,))
    assert (await rig.run())["isolation"] == "native"
    assert (await rig.call("execute_skill", name="s", args={}))["isolation"] == "gvisor"
    assert (await rig.run(mount_skills=["s"]))["isolation"] == "gvisor"
    with pytest.raises(InvalidInput, match=r"isolation: must be 'gvisor': policy.rules sends"):
        await rig.call("execute_skill", name="s", args={}, isolation="native")
    await approve(rig, skill)
    assert (await rig.call("execute_skill", name="s", args={}))["isolation"] == "native"


async def test_a_rule_is_about_the_skills_that_it_names(rig: Rig) -> None:
    rule = BoundaryRule(skills=parse_trust_rules(["acme.*"]), demand=frozenset({OWN_KERNEL}))
    rig.skills.skills |= {name: [a_skill(name)] for name in ("acme.a", "b")}
    await engine_over(rig, named("native"), with_kernel("gvisor"), **BOTH, rules=(rule,))
    assert (await rig.call("execute_skill", name="acme.a", args={}))["isolation"] == "gvisor"
    assert (await rig.call("execute_skill", name="b", args={}))["isolation"] == "native"


async def test_a_rule_whose_boundary_is_not_ready_refuses(rig: Rig) -> None:
    rig.skills.skills["s"] = [a_skill("s")]
    rules = (BoundaryRule(isolation="gvisor"),)
    await engine_over(rig, named("native"), without(named("gvisor"), "seccomp"), isolation="native", rules=rules)
    with pytest.raises(ProtectionMissing, match="seccomp"):
        await rig.call("execute_skill", name="s", args={})


async def test_a_skill_demands_a_guarantee(rig: Rig) -> None:
    skill = a_skill("s")
    assert skill.runtime is not None
    rig.skills.skills["s"] = [replace(skill, runtime=replace(skill.runtime, guarantees=frozenset({OWN_KERNEL})))]
    await engine_over(rig, named("native"), with_kernel("gvisor"), **BOTH)
    assert (await rig.call("execute_skill", name="s", args={}))["isolation"] == "gvisor"
    assert (await rig.run(mount_skills=["s"]))["isolation"] == "gvisor"
    with pytest.raises(ProtectionMissing, match=OWN_KERNEL):
        await rig.call("execute_skill", name="s", args={}, isolation="native")
    await engine_over(rig, named("native"), isolation="native", isolations=frozenset())
    with pytest.raises(ProtectionMissing, match=r"no isolation that policy offers has own_kernel; name one in"):
        await rig.call("execute_skill", name="s", args={})


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"demand": ["warp"]}, "unknown protections warp"),
        ({"demand": ["seccomp"], "allow_degraded": ["seccomp"]}, "must not name what allow_degraded lets be missing"),
        ({"rules": [{"skills": ["a"]}]}, "must each name an isolation or a demand"),
        ({"rules": [{"isolation": "gvisor", "skills": ["A B"]}]}, "must be a skill's name"),
    ],
)
def test_rules_and_demands_without_sense_are_refused(policy: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidInput, ValidationError), match=words):
        PolicySettings(**policy)


async def test_policy_that_names_what_there_is_not(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match=r"policy\.isolation: there is no backend 'gvisor'"):
        await engine_over(rig, named("native"), isolation="gvisor")
