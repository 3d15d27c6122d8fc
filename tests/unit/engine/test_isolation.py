"""What isolates a run: the operator's default, what a run may name, and ``auto``."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.domain.errors import IdempotencyConflict, InvalidInput, ProtectionMissing
from skillyard.domain.sandbox.guarantees import GUARANTEES, Level, Protection
from skillyard.domain.sandbox.spec import Held, Owner
from skillyard.engine.app import App
from skillyard.sandbox.registry import nature
from skillyard.testing.twin_sandbox import TwinBackend
from tests.unit.engine.conftest import Rig, make_app
from tests.unit.engine.fakes import succeed

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


async def test_policy_that_names_what_there_is_not(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match=r"policy\.isolation: there is no backend 'gvisor'"):
        await engine_over(rig, named("native"), isolation="gvisor")
