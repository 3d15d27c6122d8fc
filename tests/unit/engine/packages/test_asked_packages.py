"""The packages that code asks for, by parameter and by its own inline metadata, and who may have which."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skillyard.config.packages import EnvironmentSettings, PackagesSettings
from skillyard.domain.errors import InvalidInput
from skillyard.domain.skill.skill import Needs, SecretNeed
from skillyard.domain.work.record import RunKind
from skillyard.engine.packages.asked import why_refused
from skillyard.engine.runs.request import RunRequest, from_params
from tests.unit.engine.conftest import CODE, Rig
from tests.unit.engine.packages.fake_builder import VERSION
from tests.unit.engine.skills.needing import approve, published

SCRIPT = '# /// script\n# requires-python = "{python}"\n# dependencies = ["rich>=13", "numpy"]\n# ///\n' + CODE


def request(**params: Any) -> RunRequest:
    return from_params(RunKind.CODE, {"language": "python", "code": CODE, **params})


def test_requirements_are_taken_once_each() -> None:
    assert request(packages=["numpy >=2", "numpy  >=2", "abc"]).packages == ("abc", "numpy >=2")
    assert request().packages == ()


def test_inline_metadata_asks_likewise() -> None:
    asked = request(code=SCRIPT.format(python=">=3.9"), packages=["numpy", "six"])
    assert asked.packages == ("numpy", "rich>=13", "six")


@pytest.mark.parametrize(
    "text",
    [
        "x @ https://a/b.whl",
        "-r a.txt",
        "../x",
        "",
        "git+https://a/b",
        "a b",
        "x;a --hash=b",
        "x;${A}",
        "x;a\\",
        "x;a#",
    ],
)
def test_what_is_no_requirement_is_an_error_of_its_field(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"packages\[1\]"):
        request(packages=["numpy", text])


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("# /// script\n# dependencies = 3\n# ///\n" + CODE, "line 2: dependencies: must be a list"),
        ("# /// script\n# = = =\n# ///\n" + CODE, "not TOML"),
    ],
)
def test_metadata_that_cannot_be_read(code: str, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        request(code=code)


def test_metadata_that_is_never_closed_has_no_effect() -> None:
    assert request(code='# /// script\n# dependencies = ["x"]\n' + CODE).packages == ()


def test_packages_decide_what_runs() -> None:
    """An idempotency key is bound to them; a request without any has the digest that it always had."""
    plain, asked = request(), request(packages=["numpy"])
    assert plain.digest() != asked.digest() != request(packages=["scipy"]).digest()


def test_patterns_say_which_code_may_have() -> None:
    config = PackagesSettings(allow=("*", "!evil"), run_code=("scikit-*", "numpy", "evil", "!scikit-bad"))
    assert why_refused(["numpy>=2", "Scikit_Learn[x]==1"], config) == ""
    assert why_refused(["numpy", "Torch>1"], config) == (
        "code asks for 'torch', and packages.run_code does not admit that"
    )
    assert "'scikit-bad'" in why_refused(["scikit.bad"], config)
    assert why_refused(["evil"], config) == "packages.allow admits no package 'evil'"
    assert "packages.run_code" in why_refused(["numpy"], PackagesSettings())


@pytest.mark.anyio
async def test_a_run_that_may_not_have_them_is_refused_by_the_setting(rig: Rig) -> None:
    run = await rig.call("run_code", language="python", code=CODE, packages=["numpy"])
    assert run["error"]["type"] == "PolicyRefused"
    assert "packages.run_code" in run["error"]["message"]
    assert rig.backend.started == []


@pytest.mark.anyio
async def test_an_executed_skill_takes_none(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match="packages"):
        await rig.call("execute_skill", name="a.b", packages=["numpy"])


@pytest.mark.anyio
async def test_what_is_denied_cannot_be_drawn_in_by_what_is_not(rig: Rig) -> None:
    rig.builder.draws = {"learns": "torch"}
    asked = published("acme.learns", Needs(dependencies=("learns",)))
    rig.skills.add(asked)
    code: dict[str, Any] = {"language": "python", "code": CODE, "packages": ["learns"]}

    async def refused(method: str = "run_code", **params: Any) -> str:
        run = await rig.call(method, **(params or code))
        return str(run["error"]["message"]) if "error" in run else ""

    rig.configure(packages=PackagesSettings(run_code=("*", "!torch")))
    denied = "what is asked for requires 'torch', which packages.{} denies"
    assert denied.format("run_code") in await refused()
    assert denied.format("run_code") in await refused("execute_skill", name="acme.learns")
    await approve(rig, asked)
    assert await refused("execute_skill", name="acme.learns") == ""
    rig.configure(packages=PackagesSettings(allow=("*", "!torch"), run_code=("learns",)))
    assert denied.format("allow") in await refused()
    assert denied.format("allow") in await refused("execute_skill", name="acme.learns")
    named = {"base": EnvironmentSettings(packages=("torch",))}
    rig.configure(packages=PackagesSettings(allow=("*", "!torch"), run_code=("learns",)), environments=named)
    await rig.app.environments.get("base")
    assert await refused() == "", "the operator gives it to everybody"


@pytest.mark.anyio
@pytest.mark.parametrize(("asks", "environment"), [(("numpy",), "base"), ((), "named")])
async def test_what_is_revoked_while_packages_are_built_is_revoked(
    rig: Rig, asks: tuple[str, ...], environment: str
) -> None:
    rig.configure(environments={"base": EnvironmentSettings(), "named": EnvironmentSettings(packages=("numpy",))})
    rig.secrets.values = {"KEY": "value"}
    needs = Needs(dependencies=asks, secrets=(SecretNeed("KEY"),))
    asked = published("acme.slow", needs, environment=environment)
    rig.skills.add(asked)
    await approve(rig, asked)
    rig.builder.gate = asyncio.Event()
    running = asyncio.create_task(rig.call("execute_skill", name="acme.slow"))
    async with asyncio.timeout(10):
        while not rig.builder.installed:
            await asyncio.sleep(0.001)
    await rig.call("catalogue.revoke", name="acme.slow")
    rig.builder.gate.set()
    run = await running
    assert run["error"]["type"] == "PolicyRefused"
    assert "revoked: 'acme.slow' 1.0.0 is not approved" in run["error"]["message"]
    assert rig.backend.started == []


def _needing(name: str) -> Any:
    return published(name, Needs(dependencies=("numpy",), secrets=(SecretNeed("KEY"),)))


@pytest.mark.anyio
async def test_an_approval_is_of_the_packages_that_the_requirements_became(rig: Rig) -> None:
    """Resolved anew, the same requirement is another package: nobody looked at that."""
    rig.secrets.values = {"KEY": "value-value"}
    skill = _needing("acme.asks")
    rig.skills.add(skill)
    await approve(rig, skill)
    [unbound] = (await rig.call("catalogue.approvals"))["approvals"]
    assert unbound["locks"] == []
    assert (await rig.call("execute_skill", name="acme.asks"))["status"] == "completed"
    [bound] = (await rig.call("catalogue.approvals"))["approvals"]
    assert [len(lock) for lock in bound["locks"]] == [64]

    started = len(rig.backend.started)
    rig.builder.version = "6.6.6"
    await rig.call("environments.build", skill="acme.asks", refresh=True)
    run = await rig.call("execute_skill", name="acme.asks")
    assert run["error"]["type"] == "PolicyRefused"
    assert "was approved with other packages" in run["error"]["message"]
    assert "skill approve acme.asks@1.0.0" in run["error"]["message"]
    assert len(rig.backend.started) == started

    await approve(rig, skill)
    assert (await rig.call("execute_skill", name="acme.asks"))["status"] == "completed"
    rig.builder.version = VERSION


@pytest.mark.anyio
async def test_what_is_approved_by_a_rule_is_approved_with_whatever_it_becomes(rig: Rig) -> None:
    rig.secrets.values = {"KEY": "value-value"}
    rig.configure(trust={"approve": ["acme.*"]})
    rig.skills.add(_needing("acme.asks"))
    assert (await rig.call("execute_skill", name="acme.asks"))["status"] == "completed"
    rig.builder.version = "6.6.6"
    await rig.call("environments.build", skill="acme.asks", refresh=True)
    assert (await rig.call("execute_skill", name="acme.asks"))["status"] == "completed"
