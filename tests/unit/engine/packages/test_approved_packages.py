"""The packages that an approval is of stay the same beside whatever else a run mounts or asks for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skillyard.config.packages import EnvironmentSettings, PackagesSettings
from skillyard.domain.skill.skill import Needs, Skill
from tests.unit.engine.conftest import CODE, Rig
from tests.unit.engine.packages.building import until
from tests.unit.engine.packages.fake_builder import VERSION
from tests.unit.engine.skills.needing import approve, published

pytestmark = pytest.mark.anyio

NEWER = "6.6.6"
BESIDE = {"name": "acme.asks", "mount_skills": ["acme.more"]}


async def approved(rig: Rig, name: str, *packages: str, requires: tuple[str, ...] = ()) -> Skill:
    skill = published(name, Needs(dependencies=packages, requires=requires))
    rig.skills.add(skill)
    await approve(rig, skill)
    return skill


async def given(rig: Rig, run: dict[str, Any]) -> dict[str, str]:
    """The packages that the run's sandbox was made with."""
    assert "error" not in run, run["error"]
    ref = rig.backend.started[-1][0].environment
    built = await rig.app.environments.store.find(ref.digest)
    assert built is not None
    return dict(built.distributions)


async def executed(rig: Rig, **params: Any) -> dict[str, Any]:
    return await rig.call("execute_skill", **(params or {"name": "acme.asks"}))


async def coded(rig: Rig, **params: Any) -> dict[str, Any]:
    return await rig.call("run_code", language="python", code=CODE, **params)


async def test_another_mounted_skill_changes_nothing_of_them(rig: Rig) -> None:
    await approved(rig, "acme.asks", "numpy")
    assert await given(rig, await executed(rig)) == {"numpy": VERSION}
    await approved(rig, "acme.more", "rich")
    rig.builder.version = NEWER
    assert await given(rig, await executed(rig, **BESIDE)) == {"numpy": VERSION, "rich": NEWER}
    assert await given(rig, await executed(rig, **BESIDE)) == {"numpy": VERSION, "rich": NEWER}
    assert await given(rig, await executed(rig, name="acme.more")) == {"rich": NEWER}


async def test_they_are_chosen_by_the_skill_alone_when_others_come_first(rig: Rig) -> None:
    """Else a caller's requirements would choose what every later run of the skill gets."""
    rig.configure(packages=PackagesSettings(run_code=("*",)))
    await approved(rig, "acme.asks", "numpy")
    run = await coded(rig, mount_skills=["acme.asks"], packages=["numpy==0.1"])
    assert run["error"]["type"] == "SandboxError"
    assert f"numpy=={VERSION}" in run["error"]["message"]
    assert "'acme.asks' 1.0.0" in run["error"]["message"]
    rig.builder.version = NEWER
    assert await given(rig, await coded(rig, mount_skills=["acme.asks"], packages=["rich"])) == {
        "numpy": VERSION,
        "rich": NEWER,
    }
    assert await given(rig, await executed(rig)) == {"numpy": VERSION}


async def test_another_environment_changes_nothing_of_them(rig: Rig) -> None:
    rig.configure(environments={"base": EnvironmentSettings(), "data": EnvironmentSettings(packages=("pandas",))})
    await approved(rig, "acme.asks", "numpy")
    await executed(rig)
    rig.builder.version = NEWER
    run = await coded(rig, mount_skills=["acme.asks"], environment="data")
    assert await given(rig, run) == {"numpy": VERSION, "pandas": NEWER}
    rig.configure(environments={"base": EnvironmentSettings(packages=("pandas",))})
    assert (await given(rig, await executed(rig)))["numpy"] == VERSION, "the operator gave it another environment"


async def test_a_skill_is_bound_to_what_those_that_it_requires_are_approved_with(rig: Rig) -> None:
    await approved(rig, "acme.lib", "numpy")
    await executed(rig, name="acme.lib")
    rig.builder.version = NEWER
    await approved(rig, "acme.mid", requires=("acme.lib",))
    await approved(rig, "acme.asks", "numpy>=1", "rich", requires=("acme.mid",))
    assert await given(rig, await executed(rig)) == {"numpy": VERSION, "rich": NEWER}


async def test_approvals_that_contradict_one_another_refuse_the_run(rig: Rig) -> None:
    """Either alone goes on, and neither is bound anew silently."""
    one, other = await approved(rig, "acme.asks", "numpy"), await approved(rig, "acme.more", "numpy>=1", "rich")
    await executed(rig)
    rig.builder.version = NEWER
    await executed(rig, name="acme.more")
    started = len(rig.backend.started)
    for _ in range(2):
        run = await executed(rig, **BESIDE)
        assert run["error"]["type"] == "PolicyRefused"
        assert run["error"]["message"].startswith(
            f"packages: 'acme.asks' 1.0.0 is approved with numpy {VERSION}, 'acme.more' 1.0.0 with numpy {NEWER}; "
        )
    assert len(rig.backend.started) == started
    assert await given(rig, await executed(rig)) == {"numpy": VERSION}

    for skill in (one, other):
        await rig.call("environments.build", skill=skill.name, refresh=True)
        await approve(rig, skill)
    assert await given(rig, await executed(rig, **BESIDE)) == {"numpy": NEWER, "rich": NEWER}


@pytest.mark.parametrize(("deaf", "files"), [(True, ""), (False, "others")])
async def test_a_resolution_that_gives_others_is_refused(rig: Rig, deaf: bool, files: str) -> None:
    """Another version, or other files under the same one."""
    await approved(rig, "acme.asks", "numpy")
    await executed(rig)
    await approved(rig, "acme.more", "rich")
    started = len(rig.backend.started)
    rig.builder.version, rig.builder.deaf, rig.builder.files = NEWER, deaf, files
    run = await executed(rig, **BESIDE)
    assert "'numpy'" in run["error"]["message"]
    assert "approve" in run["error"]["message"]
    assert len(rig.backend.started) == started


async def test_they_stay_when_every_environment_and_lock_is_gone(rig: Rig) -> None:
    await approved(rig, "acme.asks", "numpy")
    await executed(rig)
    for built in await rig.app.environments.store.list():
        await rig.app.environments.remove(built.digest, forget=True)
    rig.builder.version = NEWER
    await approved(rig, "acme.more", "rich")
    assert await given(rig, await executed(rig, **BESIDE)) == {"numpy": VERSION, "rich": NEWER}


async def test_approving_again_lets_them_go(rig: Rig) -> None:
    skill = await approved(rig, "acme.asks", "numpy")
    await executed(rig)
    await approved(rig, "acme.more", "rich")
    rig.builder.version = NEWER
    await rig.call("environments.build", skill="acme.asks", refresh=True)
    assert (await given(rig, await executed(rig, **BESIDE)))["numpy"] == VERSION
    await approve(rig, skill)
    assert (await given(rig, await executed(rig, **BESIDE)))["numpy"] == NEWER


async def test_an_approval_that_ends_while_they_are_resolved_is_none(rig: Rig) -> None:
    await approved(rig, "acme.asks", "numpy")
    await approved(rig, "acme.more", "rich")
    rig.builder.gate = asyncio.Event()
    running = asyncio.create_task(executed(rig, **BESIDE))
    await until(lambda: rig.builder.installed)
    await rig.call("catalogue.revoke", name="acme.asks")
    rig.builder.gate.set()
    assert (await running)["error"]["type"] == "PolicyRefused"
    assert rig.backend.started == []
