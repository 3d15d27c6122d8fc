"""Environments that nobody uses go by age and by size."""

from __future__ import annotations

import pytest

from skillyard.config.packages import PackagesSettings
from skillyard.domain.errors import Busy
from skillyard.domain.sandbox.spec import Held, Owner
from skillyard.engine.packages.environments import JUST_USED_S, Environments
from tests.unit.engine.conftest import Rig
from tests.unit.engine.packages.building import MINE, kept, of

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]


async def test_unused_ones_go_by_age(environments: Environments, rig: Rig) -> None:
    rig.configure(environments=MINE, packages=PackagesSettings(max_age_s=1000.0))
    environments = rig.app.environments
    old = await of(environments, "old")
    rig.clock.time += 900
    young = await of(environments, "young")
    rig.clock.time += 200
    assert await environments.evict() == 1
    assert kept(rig) == [young.digest, f"{young.digest}.json"]
    assert (await of(environments, "old")).digest == old.digest


async def test_the_longest_unused_go_by_size(rig: Rig) -> None:
    rig.configure(environments=MINE, packages=PackagesSettings(max_age_s=None))
    environments = rig.app.environments
    made = []
    for name in ("a", "b", "c"):
        made.append(await of(environments, name))
        rig.clock.time += 10
    rig.clock.time += 1000
    await of(environments, "a")  # used again, and that is written down
    size = sum(e.built.size for e in made if e.built)
    rig.configure(environments=MINE, packages=PackagesSettings(max_age_s=None, max_bytes=size - 1))
    environments = rig.app.environments
    rig.clock.time += JUST_USED_S + 1
    assert await environments.evict() == 1
    assert made[1].digest not in kept(rig)


async def test_what_a_run_uses_stays(rig: Rig) -> None:
    rig.configure(environments=MINE)
    digest = (await rig.app.environments.get("mine")).digest
    rig.configure(environments=MINE, packages=PackagesSettings(max_bytes=0))
    environments = rig.app.environments
    rig.clock.time += JUST_USED_S + 1
    with environments.using(digest):
        assert await environments.evict() == 0
        with pytest.raises(Busy, match="1 run at work uses it"):
            await environments.remove(digest, forget=False)
    assert await environments.evict(in_use={digest}) == 0
    assert await environments.evict() == 1


async def test_a_sweep_removes_unused_ones_and_leaves_builds_alone(rig: Rig) -> None:
    rig.configure(environments=MINE)
    await rig.app.environments.get("mine")
    rig.configure(environments=MINE, packages=PackagesSettings(max_bytes=0))
    rig.clock.time += JUST_USED_S + 1
    rig.builder.at_work = frozenset({"build_1"})
    rig.backend.foreign = [Held("h1", "build_1", Owner.RUN, 500.0), Held("h2", "build_2", Owner.RUN, 500.0)]
    swept = await rig.app.reaper.sweep()
    assert (swept.environments, swept.sandboxes) == (1, 1)
    assert rig.backend.destroyed == ["h2"]
    assert kept(rig) == []


async def test_it_is_written_down_now_and_then_that_one_is_used(environments: Environments, rig: Rig) -> None:
    digest = (await environments.get("mine")).digest
    facts = rig.home / "environments" / f"{digest}.json"
    began = facts.stat().st_mtime
    rig.clock.time += 60
    await environments.get("mine")
    assert facts.stat().st_mtime == began
    rig.clock.time += 1000
    await environments.get("mine")
    assert facts.stat().st_mtime == rig.clock.time
    rig.configure(environments=MINE)
    found = await rig.app.environments.store.find(digest)
    assert found is not None
    assert found.used_at == rig.clock.time
