"""What runs import is learnt, made ready and used: by whom it may be, and never at the word of one hostile run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.preloading import MOST, MOST_KNOWN, PATIENCE, Habits, ModuleFault, admissible
from skillyard.domain.principal import Principal
from skillyard.domain.skill import Needs, SkillSource
from skillyard.engine.config import EngineConfig, EnvironmentDefinition
from skillyard.engine.observer import ModulesAhead
from skillyard.engine.packages_config import PackagesConfig
from skillyard.stores.preloads import FilePreloads
from tests.engine.conftest import Rig, make_engine, playing
from tests.engine.fakes import FakeBackend, a_skill, frame, js, result

OURS = frozenset({"numpy", "scipy", "PIL"})


def after(*runs: Iterable[str], habits: Habits | None = None) -> Habits:
    habits = habits or Habits()
    for imported in runs:
        habits.note(imported, (), OURS)
    return habits


def test_the_first_run_decides_for_the_second() -> None:
    habits = after(["numpy", "scipy.stats"])
    assert habits.wanted(0) == ("numpy", "scipy.stats")
    assert habits.due(habits.wanted(0))


def test_only_the_environments_own_modules_count() -> None:
    habits = after(["os", "numpy", "skillyard", "numpy.__main__", "PIL.Image", "evil", ""])
    assert habits.wanted(0) == ("numpy", "PIL.Image")
    assert not admissible("numpy.f2py.__main__", OURS)


def test_what_few_runs_import_is_left_out_and_what_none_does_goes() -> None:
    habits = after(*[["numpy"]] * 20, ["scipy"])
    assert habits.wanted(0) == ("numpy",)
    habits.adopt(("numpy", "scipy"))
    for _ in range(300):
        habits.note((), {"numpy"}, OURS)
    assert habits.wanted(0) == ("numpy",)


def test_a_set_changes_seldom_once_it_has_changed() -> None:
    habits, changes = Habits(), []
    for number in range(400):
        habits.note(["numpy"] if number % 2 else ["numpy", "scipy"], ("numpy",), OURS)
        wanted = ("numpy",) if number % 4 < 2 else ("numpy", "scipy")  # as if it were never settled
        if habits.due(wanted):
            habits.adopt(wanted)
            changes.append(number)
    assert changes[0] == 0
    assert len(changes) < 12
    assert all(later - former >= PATIENCE for former, later in pairwise(changes[7:]))


def test_a_module_at_fault_is_left_out_for_a_day() -> None:
    habits = after(["numpy", "scipy"])
    habits.faults["scipy"] = ModuleFault("it starts threads", at=1000.0)
    assert habits.wanted(1000.0 + 86_000) == ("numpy",)
    assert habits.wanted(1000.0 + 87_000) == ("numpy", "scipy")


@given(st.lists(st.lists(st.text(max_size=12) | st.sampled_from(["numpy", "numpy.a", "scipy.b", "PIL"]), max_size=80)))
def test_whatever_runs_say_it_stays_bounded_and_can_be_kept(runs: list[list[str]]) -> None:
    habits = after(*runs, [f"numpy.m{n}" for n in range(400)])
    assert len(habits.seen) <= MOST_KNOWN
    wanted = habits.wanted(0)
    assert len(wanted) <= MOST
    assert all(admissible(name, OURS) for name in wanted)
    again = Habits.of(json.loads(json.dumps(habits.as_dict())))
    assert again.wanted(0) == wanted


@pytest.mark.parametrize("data", [{}, {"runs": "x"}, {"runs": 1, "seen": [], "faults": {}, "ahead": []}])
def test_what_is_damaged_is_no_habit(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"float|habits"):
        Habits.of(data)


def importing(*modules: str, used: tuple[str, ...] = ()) -> Any:
    return playing(frame(b"I", js({"imported": list(modules), "used": list(used)})), result({}))


@pytest.fixture
async def learning(rig: Rig) -> Rig:
    """With an environment that the operator names, and packages that anybody may ask for."""
    await rig.engine.close()
    rig.extra["preloads"] = FilePreloads(rig.home / "preloads")
    _remake(rig)
    await rig.engine.start()
    return rig


def _remake(rig: Rig, **more: Any) -> None:
    config = EngineConfig(
        isolation=FakeBackend.name,
        environments={"base": EnvironmentDefinition(), "num": EnvironmentDefinition(("numpy", "scipy"))},
        packages=PackagesConfig(run_code=("*",)),
        **more,
    )
    rig.engine = make_engine(rig, config)


async def ran_with(rig: Rig, **params: Any) -> tuple[str, ...]:
    """What a run had imported ahead."""
    run = await rig.call("run_code", language="python", code="def main(args): pass", **params)
    assert run["status"] == "completed", run
    await rig.engine.preloads.settled()
    return rig.backend.started[-1][0].environment.preload


@pytest.mark.anyio
async def test_the_second_run_has_what_the_first_imported(learning: Rig) -> None:
    learning.backend.script = importing("numpy", "scipy.stats", "os", "evil")
    assert await ran_with(learning, environment="num") == ()
    (asked,) = [spec for spec in learning.backend.prepared if spec.environment.preload]
    assert (asked.mounts, asked.egress) == ((), None)
    assert await ran_with(learning, environment="num") == ("numpy", "scipy.stats")
    (event,) = [event for event in learning.events if isinstance(event, ModulesAhead)]
    assert event.modules == ("numpy", "scipy.stats")


@pytest.mark.anyio
async def test_what_was_learnt_is_kept(learning: Rig) -> None:
    learning.backend.script = importing("numpy")
    await ran_with(learning, environment="num")
    await learning.engine.close()
    _remake(learning)
    await learning.engine.start()
    assert await ran_with(learning, environment="num") == ("numpy",)


@pytest.mark.anyio
async def test_a_module_at_fault_is_left_out(learning: Rig) -> None:
    learning.backend.faulty = {"scipy": "it starts threads"}
    learning.backend.script = importing("numpy", "scipy")
    await ran_with(learning, environment="num")
    assert await ran_with(learning, environment="num") == ("numpy",)
    (event,) = [event for event in learning.events if isinstance(event, ModulesAhead)]
    assert event.faults == {"scipy": "it starts threads"}
    made = len(learning.backend.prepared)
    for _ in range(5):
        await ran_with(learning, environment="num")
    assert len(learning.backend.prepared) == made


@pytest.mark.anyio
async def test_what_code_asks_for_is_imported_by_its_own_run_alone(learning: Rig) -> None:
    """Nor does it teach anything, nor have what runs that may taught of the same environment."""
    learning.backend.script = importing("numpy", "scipy")
    for _ in range(3):
        assert await ran_with(learning, packages=["numpy", "scipy"]) == ()
    assert not [spec for spec in learning.backend.prepared if spec.environment.preload]
    await ran_with(learning, environment="num")
    assert await ran_with(learning, environment="num") == ("numpy", "scipy")
    assert await ran_with(learning, packages=["numpy", "scipy"]) == ()


@pytest.mark.anyio
@pytest.mark.parametrize(("source", "ahead"), [(SkillSource.DIRECTORY, ("numpy",)), (SkillSource.PUBLISHED, ())])
async def test_packages_of_an_approved_skill_are_imported_ahead(
    learning: Rig, source: SkillSource, ahead: tuple[str, ...]
) -> None:
    learning.skills.add(replace(a_skill("a.b", needs=Needs(dependencies=("numpy",))), source=source))
    learning.backend.script = importing("numpy")
    for expected in ((), ahead):
        run = await learning.call("execute_skill", name="a.b")
        assert run["status"] == "completed", run
        await learning.engine.preloads.settled()
        assert learning.backend.started[-1][0].environment.preload == expected


@pytest.mark.anyio
async def test_the_operator_can_have_none_of_it(learning: Rig) -> None:
    await learning.engine.close()
    _remake(learning, preload=False)
    await learning.engine.start()
    learning.backend.script = importing("numpy")
    for _ in range(3):
        assert await ran_with(learning, environment="num") == ()


@pytest.mark.anyio
async def test_a_backend_that_imports_nothing_ahead_is_not_asked_again(
    learning: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def prepare(spec: Any) -> None:
        asked.append(spec)

    monkeypatch.setattr(learning.backend, "prepare", prepare)
    learning.backend.script = importing("numpy")
    for _ in range(3):
        assert await ran_with(learning, environment="num") == ()
    assert len(asked) == 1


@pytest.mark.anyio
async def test_principals_that_are_kept_apart_learn_apart(learning: Rig) -> None:
    await learning.engine.close()
    _remake(learning, separate_principals=True)
    await learning.engine.start()
    learning.backend.script = importing("numpy")
    for name, expected in (("a", ()), ("b", ()), ("a", ("numpy",))):
        learning.principal = Principal(name)
        assert await ran_with(learning, environment="num") == expected
