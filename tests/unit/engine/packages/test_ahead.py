"""What is imported ahead of runs: who consented to it, what turns it off, and what becomes of what cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.config.packages import EnvironmentSettings, PackagesSettings
from skillyard.config.policy import PolicySettings
from skillyard.config.sections import Sections
from skillyard.domain.principal import Principal
from skillyard.domain.skill.skill import Needs, RuntimeSpec, SecretNeed, Skill, SkillSource
from skillyard.engine.observer import ModulesAhead
from skillyard.engine.packages.ahead import CURATED, curated, is_read
from skillyard.gate.client_session import PROXY_ENV
from skillyard.gate.trust import TRUST_ENV
from skillyard.guest.imports import SKILL_DIR, SKILLS_DIR
from skillyard.testing.twin_sandbox import TwinBackend
from tests.unit.engine.conftest import Rig, make_app, playing
from tests.unit.engine.fakes import a_skill, result

pytestmark = pytest.mark.anyio

ENVIRONMENTS = {
    "base": EnvironmentSettings(),
    "num": EnvironmentSettings(packages=("numpy", "tqdm")),
    "more": EnvironmentSettings(packages=("numpy", "tqdm"), preload=("tqdm",)),
    "off": EnvironmentSettings(packages=("numpy", "tqdm"), preload=()),
    "plain": EnvironmentSettings(packages=(), preload=("ssl",)),
}


@pytest.fixture
async def warm(rig: Rig) -> Rig:
    await rig.app.close()
    await _remake(rig)
    return rig


async def _remake(rig: Rig, *, separate: bool = False, **more: Any) -> None:
    config = Sections(
        policy=PolicySettings(isolation=TwinBackend.name, separate_principals=separate),
        environments=ENVIRONMENTS,
        packages=PackagesSettings(run_code=("*",)),
        **more,
    )
    rig.app = make_app(rig, config)
    rig.backend.script = playing(result({}))
    await rig.app.start()


async def _had(rig: Rig, method: str, **params: Any) -> tuple[str, ...]:
    run = await rig.call(method, **params)
    assert run["status"] == "completed", run
    await rig.app.ahead.settled()
    return rig.backend.started[-1][0].environment.preload


async def ran_with(rig: Rig, **params: Any) -> list[tuple[str, ...]]:
    """What each of two runs had imported ahead."""
    code = "def main(args): pass"
    return [await _had(rig, "run_code", language="python", code=code, **params) for _ in range(2)]


async def executed_with(rig: Rig, skill: Skill) -> list[tuple[str, ...]]:
    rig.skills.add(skill)
    return [await _had(rig, "execute_skill", name=skill.name) for _ in range(2)]


@pytest.mark.parametrize(
    ("environment", "ahead"),
    [("num", ("numpy",)), ("more", ("tqdm", "numpy")), ("off", ()), ("plain", ("ssl",)), ("base", ())],
)
async def test_an_environment_of_the_operator(warm: Rig, environment: str, ahead: tuple[str, ...]) -> None:
    """The first run does not wait for it."""
    assert await ran_with(warm, environment=environment) == [(), ahead]
    told = [event.modules for event in warm.events if isinstance(event, ModulesAhead)]
    assert told == ([ahead] if ahead else [])
    assert [(spec.mounts, spec.egress) for spec in warm.backend.prepared if spec.environment.preload] == [
        ((), None)
    ] * bool(ahead)


async def test_what_code_asks_for_is_imported_by_its_own_run_alone(warm: Rig) -> None:
    assert await ran_with(warm, packages=["numpy"]) == [(), ()]
    assert await ran_with(warm, environment="more") == [(), ("tqdm", "numpy")]
    assert await ran_with(warm, packages=["numpy"], environment="more") == 2 * [("tqdm", "numpy")], "it has it anyway"
    assert await ran_with(warm, packages=["six"], environment="more") == [(), ()]


@pytest.mark.parametrize(
    ("source", "runtime", "environment", "ahead"),
    [
        (SkillSource.DIRECTORY, {}, "base", ("numpy",)),
        (SkillSource.PUBLISHED, {}, "base", ()),
        (SkillSource.DIRECTORY, {"preload": False}, "base", ()),
        (SkillSource.DIRECTORY, {"preload": False}, "more", ()),
        (SkillSource.DIRECTORY, {}, "off", ()),
    ],
)
async def test_packages_of_an_approved_skill(
    warm: Rig, source: SkillSource, runtime: dict[str, Any], environment: str, ahead: tuple[str, ...]
) -> None:
    skill = replace(
        a_skill("a.b", needs=Needs(dependencies=("numpy", "tqdm"))),
        source=source,
        runtime=RuntimeSpec("python", "code/main.py", "main", environment, **runtime),
    )
    assert await executed_with(warm, skill) == [(), ahead]


async def test_the_operator_can_have_none_of_it(warm: Rig) -> None:
    await warm.app.close()
    await _remake(warm, native=NativeSettings(preload_mb=0))
    assert await ran_with(warm, environment="more") == [(), ()]


async def test_a_module_at_fault_is_left_out(warm: Rig) -> None:
    warm.backend.faulty = {"tqdm": "it starts threads"}
    assert await ran_with(warm, environment="more") == [(), ("numpy",)]
    (event,) = [event for event in warm.events if isinstance(event, ModulesAhead)]
    assert (event.modules, event.faults) == (("numpy",), {"tqdm": "it starts threads"})
    made = len(warm.backend.prepared)
    await ran_with(warm, environment="more")
    assert len(warm.backend.prepared) == made


async def test_a_backend_that_makes_nothing_ready_imports_what_the_operator_names(
    warm: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def prepare(spec: Any) -> None:
        asked.append(spec)

    monkeypatch.setattr(warm.backend, "prepare", prepare)
    assert await ran_with(warm, environment="more") == [(), ("tqdm",)]
    assert await ran_with(warm, environment="num") == [(), ()]
    assert await ran_with(warm, environment="num") == [(), ()]
    assert len(asked) == 2


async def test_principals_that_are_kept_apart_have_interpreters_of_their_own(warm: Rig) -> None:
    await warm.app.close()
    await _remake(warm, separate=True)
    for name in ("a", "b"):
        warm.principal = Principal(name)
        assert await ran_with(warm, environment="num") == [(), ("numpy",)]


async def test_a_variable_that_the_packages_read_when_they_are_imported_is_for_its_run_to_read(warm: Rig) -> None:
    needs = Needs(dependencies=("numpy", "tqdm"), secrets=(SecretNeed("OPENBLAS_CORETYPE", optional=True),))
    skill = replace(a_skill("a.b", needs=needs), source=SkillSource.DIRECTORY)
    assert await executed_with(warm, skill) == [(), ()]


def test_no_variable_that_a_run_is_given_by_us_is_read_by_the_table() -> None:
    given = {*TRUST_ENV, *PROXY_ENV, SKILL_DIR, SKILLS_DIR}
    assert [name for name in given if is_read(name)] == []


def test_the_table_is_read_by_distribution_and_by_what_can_be_imported() -> None:
    assert curated({"pillow": "11", "numpy": "2"}, ("PIL", "numpy")) == ("numpy", "PIL.Image")
    assert curated({"pillow": "11"}, ("Image",)) == ()
    assert curated({"six": "1"}, ("numpy",)) == ()
    assert list(CURATED)[:1] == ["numpy"]
