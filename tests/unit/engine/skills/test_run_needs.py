"""What a record says of each thing that a run's skills declare: asked, granted, why not more."""

from __future__ import annotations

import json

import pytest

from skillyard.config.packages import PackagesSettings
from skillyard.domain.package.names import admits, parse_patterns
from skillyard.domain.secret import Delivery
from skillyard.domain.skill.skill import Needs, SecretNeed
from skillyard.engine.skills.need_rows import Row, declares, environment_rows, package_rows
from skillyard.engine.skills.run_needs import MOST_BYTES
from skillyard.engine.skills.standings import IN_DIRECTORY, NOBODY, packages_allowed
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill
from tests.unit.engine.skills.needing import ASKS, needs_of, opened, published, rows, rules

pytestmark = pytest.mark.anyio


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
    config, [text] = PackagesSettings(), skill.needs.dependencies
    assert list(package_rows(skill, NOBODY, config, {"ruamel-yaml": "0.18.6"})) == [
        Row("package", text, "ruamel-yaml 0.18.6")
    ]
    assert list(package_rows(skill, IN_DIRECTORY, config, {}, "refused")) == [Row("package", text, why="refused")]
    assert list(package_rows(skill, IN_DIRECTORY, config, {})) == [Row("package", text, "ruamel-yaml")]
    why = "packages.run_code does not admit it"
    assert list(package_rows(skill, NOBODY, config, {}, "refused")) == [Row("package", text, why=why)]
    config = PackagesSettings(allow=("!ruamel-*", "*"))
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
    config = PackagesSettings(allow=parse_patterns(["*", "!evil*"], "a"), run_code=parse_patterns(["NumPy"], "b"))
    asked = ("numpy", "pandas", "evil-thing", "Evil_Thing")
    assert packages_allowed(IN_DIRECTORY, asked, config) == ("numpy", "pandas")
    assert packages_allowed(NOBODY, asked, config) == ("numpy",)
    assert not admits((), "numpy")
    assert admits(parse_patterns(["ruamel.*"], "x"), "Ruamel_YAML")
    assert not admits(parse_patterns(["*", "!torch"], "x"), "torch")
