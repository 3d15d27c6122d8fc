"""Builds take turns by owner, within bounds of number, time and disk."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skillyard.config.packages import PackagesSettings
from skillyard.domain.errors import Busy, Forbidden
from skillyard.domain.package.environment import Wanted
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.packages import building
from skillyard.engine.packages.environment import BuildFailed
from skillyard.engine.packages.environments import JUST_USED_S, Environments
from skillyard.engine.shares import Room
from tests.unit.engine.conftest import Rig
from tests.unit.engine.packages.building import MINE, kept, of, until

pytestmark = pytest.mark.anyio


async def test_only_so_many_build_at_once(rig: Rig) -> None:
    rig.configure(environments=MINE, packages=PackagesSettings(at_once=1, run_code=("*",)))
    environments = rig.app.environments
    rig.builder.gate = asyncio.Event()
    tasks = [asyncio.create_task(of(environments, name)) for name in ("x", "y")]
    await until(lambda: rig.builder.installed and len([*environments.building.at_work()]) == 2)
    states = sorted(build.state.value for build in environments.building.at_work())
    assert states == ["installing", "waiting"]
    rig.builder.gate.set()
    await asyncio.gather(*tasks)


async def test_who_has_many_builds_waits_behind_who_has_few(rig: Rig) -> None:
    """Also when some of them gave up."""
    room, order = Room(1), []

    async def build(owner: str) -> None:
        async with room.place(owner):
            order.append(owner)
            await asyncio.sleep(0)

    many = [asyncio.create_task(build("many")) for _ in range(6)]
    await asyncio.sleep(0)
    late = [asyncio.create_task(build(owner)) for owner in ("few", "few", "one")]
    await asyncio.sleep(0)
    late[0].cancel()
    many[1].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*many, *late, return_exceptions=True)
        await build("again")
    assert order == ["many", "many", "few", "one", "many", "many", "many", "again"]


async def test_wheels_are_fetched_in_turn_with_builds(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a sandbox as large as a build's."""
    monkeypatch.setattr(building, "MOST_EACH", 2)
    rig.configure(environments=MINE, packages=PackagesSettings(at_once=1, run_code=("*",)))
    environments = rig.app.environments
    await environments.get("mine")
    rig.builder.gate = asyncio.Event()
    build = asyncio.create_task(of(environments, "x"))
    await until(lambda: len(rig.builder.installed) == 2)
    one = Principal("one", frozenset({Scope.EXECUTE, Scope.BLOBS}))
    asked = [asyncio.create_task(rig.call("environments.wheels", one, environment="mine")) for _ in range(3)]
    done, waiting = await asyncio.wait(asked, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert [type(task.exception()) for task in done] == [Busy]
    assert rig.builder.fetched == 0
    rig.builder.gate.set()
    assert all(found["archive"] for found in await asyncio.gather(*waiting))
    await build


async def test_who_has_the_same_environment_does_not_see_what_others_asked_for(rig: Rig) -> None:
    rig.configure(environments=MINE, packages=PackagesSettings(run_code=("a-pkg", "b")))
    first, second = (Principal(name, frozenset({Scope.RUN_CODE})) for name in ("first", "second"))
    built = (await rig.call("environments.build", first, packages=["a-pkg ; 'mine' != ''"]))["environment"]
    await rig.call("environments.build", second, packages=["a-pkg"])

    async def asked_for(**what: Any) -> Any:
        return (await rig.call("environments.show", second, **what))["environment"]["requirements"]

    assert await asked_for(packages=["a-pkg"]) == ["a-pkg"]
    assert await asked_for(environment=built["digest"]) == []
    with pytest.raises(Forbidden):
        await asked_for(packages=["c"])


async def test_all_environments_together_never_have_more_than_max_bytes(rig: Rig) -> None:
    """A caller who asks for one large set after the other fills no disk between two sweeps."""
    first = await of(rig.app.environments, "a")
    assert first.built is not None
    size = first.built.size
    rig.configure(environments=MINE, packages=PackagesSettings(max_bytes=2 * size - 1))
    environments = rig.app.environments
    for name in ("b", "d"):
        with pytest.raises(BuildFailed, match=r"no room for another one: packages\.max_bytes"):
            await of(environments, name)
    assert [built.digest for built in await environments.store.list()] == [first.digest]
    rig.clock.time += JUST_USED_S + 1
    assert (await of(environments, "c")).distributions == {"c": "1.5.0"}
    assert first.digest not in kept(rig)
    rig.configure(environments=MINE, packages=PackagesSettings(max_bytes=size - 1))
    rig.clock.time += JUST_USED_S + 1
    with pytest.raises(BuildFailed, match=r"packages\.max_bytes"):
        await of(rig.app.environments, "e")
    assert await rig.app.environments.store.list() == []


async def test_only_so_many_wait_for_one_owner_and_in_all(
    environments: Environments, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "MOST_EACH", 2)
    monkeypatch.setattr(building, "MOST_BUILDS", 3)
    rig.builder.gate = asyncio.Event()
    for owner, name in (("one", "a"), ("one", "b"), ("two", "c")):
        environments.begin(Wanted.of([name]), owner, refresh=False)
    environments.begin(Wanted.of(["a"]), "one", refresh=False)  # that one waits already
    for owner in ("one", "three"):
        with pytest.raises(Busy, match="too many environments"):
            environments.begin(Wanted.of(["d"]), owner, refresh=False)


async def test_a_builder_that_no_longer_answers_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "PATIENCE_S", 0.01)
    rig.configure(environments=MINE, packages=PackagesSettings(timeout_s=0.01))
    rig.builder.gate = asyncio.Event()
    with pytest.raises(BuildFailed, match="no longer answers"):
        await rig.app.environments.get("mine")
    assert kept(rig) == []
