"""Which versions a run mounts: everything that is required, each once, as all who require it accept."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import InvalidInput, SkillNotFound
from skillyard.domain.principal import LOCAL
from skillyard.domain.skill.publication import Pin
from skillyard.domain.skill.requirement import Requirement
from skillyard.domain.skill.semver import newest_first
from skillyard.domain.skill.skill import Needs, Skill, SkillSource
from skillyard.engine.skills.requires import MOST_SKILLS, MOST_TRIES
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import FakeSkills, a_skill
from tests.unit.engine.skills.needing import approve

pytestmark = pytest.mark.anyio


class Shelf(FakeSkills):
    """Ordered as the catalogue is: the latest is the highest release."""

    def __init__(self, *skills: Skill) -> None:
        super().__init__(*skills)
        self.asked = 0

    async def get(self, name: str, version: str | None = None) -> Skill:
        self.asked += 1
        if version is None and name in self.skills:
            every = newest_first(skill.version for skill in self.skills[name])
            version = next((v for v in every if "-" not in v), every[0])
        return await super().get(name, version)


def skill(name: str, version: str = "1.0.0", *requires: str, source: SkillSource = SkillSource.DIRECTORY) -> Skill:
    return replace(a_skill(name, version=version, needs=Needs(requires=requires)), source=source)


async def chosen(rig: Rig, shelf: FakeSkills, target: str | None, *names: str) -> dict[str, str]:
    rig.app.skills.store = shelf
    executed = None if target is None else await shelf.get(target)
    return {found.name: found.version for found in await rig.app.skills.mounted(LOCAL, executed, names)}


async def test_a_diamond_gets_the_newest_that_both_accept(rig: Rig) -> None:
    shelf = Shelf(
        skill("top", "1.0.0", "left", "right"),
        skill("left", "1.0.0", "base >=1,<3"),
        skill("right", "1.0.0", "base <2"),
        *(skill("base", version) for version in ("1.0.0", "1.4.0", "2.0.0", "3.0.0")),
    )
    assert await chosen(rig, shelf, "top") == {"top": "1.0.0", "left": "1.0.0", "right": "1.0.0", "base": "1.4.0"}


async def test_an_older_version_is_taken_when_the_newest_cannot_be(rig: Rig) -> None:
    shelf = Shelf(
        skill("top", "1.0.0", "left", "base <2"),
        skill("left", "2.0.0", "base >=2"),
        skill("left", "1.0.0", "base >=1"),
        skill("base", "1.0.0"),
        skill("base", "2.0.0"),
    )
    assert await chosen(rig, shelf, "top") == {"top": "1.0.0", "left": "1.0.0", "base": "1.0.0"}


async def test_what_conflicts_is_told(rig: Rig) -> None:
    shelf = Shelf(
        skill("top", "1.0.0", "left", "right"),
        skill("left", "1.1.0", "base >=2"),
        skill("right", "1.2.0", "base <2"),
        skill("base", "1.0.0"),
        skill("base", "2.0.0"),
    )
    with pytest.raises(InvalidInput) as caught:
        await chosen(rig, shelf, "top")
    assert caught.value.message == (
        "requires: 'left' 1.1.0 requires 'base >=2.0.0' and 'right' 1.2.0 requires 'base <2.0.0':"
        " no version of 'base' is accepted by all (there is 2.0.0, 1.0.0)"
    )


async def test_pre_releases_only_where_named_or_where_nothing_else_fits(rig: Rig) -> None:
    versions = [skill("lib", version) for version in ("1.0.0", "1.1.0-rc.1", "2.0.0-rc.1")]
    for range_, expected in (
        ("", "1.0.0"),
        (" >=1.1.0-rc.1", "2.0.0-rc.1"),
        (" >=1.1.0-rc.1,<2", "1.1.0-rc.1"),
        (" >1.0.0", "2.0.0-rc.1"),
    ):
        shelf = Shelf(skill("top", "1.0.0", f"lib{range_}"), *versions)
        assert (await chosen(rig, shelf, "top"))["lib"] == expected


async def test_a_pinned_version_goes_first_where_it_fits(rig: Rig) -> None:
    libs = [skill("lib", version) for version in ("1.0.0", "1.5.0", "2.0.0")]
    await rig.app.publisher._publications.pin(Pin("lib", "1.0.0", 0.0, "ann"))
    for range_, expected in (("", "1.0.0"), (" <2", "1.0.0"), (" >1", "2.0.0")):
        shelf = Shelf(skill("top", "1.0.0", f"lib{range_}"), *libs)
        assert (await chosen(rig, shelf, "top"))["lib"] == expected


async def test_a_flood_of_unapproved_versions_does_not_hide_the_approved_one(rig: Rig) -> None:
    flood = [skill("lib", f"1.{n}.0", source=SkillSource.PUBLISHED) for n in range(1, MOST_TRIES + 50)]
    shelf = Shelf(skill("top", "1.0.0", "lib >=1"), skill("lib", "1.0.0", source=SkillSource.PUBLISHED), *flood)
    await approve(rig, await shelf.get("lib", "1.0.0"))
    assert await chosen(rig, shelf, "top") == {"top": "1.0.0", "lib": "1.0.0"}
    assert shelf.asked < 10, "what cannot be approved is not read"


async def test_circles_and_skills_that_require_themselves(rig: Rig) -> None:
    shelf = Shelf(skill("a", "1.0.0", "b"), skill("b", "2.0.0", "a >=1", "b >=2"), skill("c", "1.0.0", "c >=2"))
    assert await chosen(rig, shelf, "a") == {"a": "1.0.0", "b": "2.0.0"}
    with pytest.raises(InvalidInput, match=r"'c' 1\.0\.0 requires 'c >=2\.0\.0', but version 1\.0\.0 is mounted"):
        await chosen(rig, shelf, "c")


async def test_a_named_skill_gives_way_to_the_ranges_and_the_executed_one_does_not(rig: Rig) -> None:
    shelf = Shelf(skill("top", "1.0.0", "lib <2"), skill("lib", "1.0.0"), skill("lib", "2.0.0", "top"))
    assert await chosen(rig, shelf, None, "lib", "top") == {"lib": "1.0.0", "top": "1.0.0"}
    with pytest.raises(InvalidInput, match=r"'top' 1\.0\.0 requires 'lib <2\.0\.0', but version 2\.0\.0 is mounted"):
        await chosen(rig, shelf, "lib")


async def test_what_the_caller_may_not_use_is_not_there(rig: Rig) -> None:
    shelf = Shelf(skill("public.x", "1.0.0", "private.x"), skill("private.x"))
    rig.app.skills.store = shelf
    principal = replace(LOCAL, skills=("public.*",))
    with pytest.raises(SkillNotFound) as hidden:
        await rig.app.skills.mounted(principal, await shelf.get("public.x"), ())
    del shelf.skills["private.x"]
    with pytest.raises(SkillNotFound) as absent:
        await rig.app.skills.mounted(principal, await shelf.get("public.x"), ())
    assert (hidden.value.message, hidden.value.data) == (absent.value.message, absent.value.data)


async def test_a_search_is_bounded(rig: Rig) -> None:
    chain = [skill(f"s{n}", "1.0.0", f"s{n + 1}") for n in range(MOST_SKILLS + 1)]
    with pytest.raises(InvalidInput, match=f"at most {MOST_SKILLS} skills"):
        await chosen(rig, Shelf(*chain, skill(f"s{MOST_SKILLS + 1}")), "s0")
    wide = [skill(f"w{n}", f"{v}.0.0", f"w{n + 1} ={'='}{v}.0.0") for n in range(3) for v in range(400)]
    shelf = Shelf(skill("top", "1.0.0", "w0"), *wide)
    with pytest.raises(InvalidInput, match=f"among {MOST_TRIES} that were tried"):
        await chosen(rig, shelf, "top")
    assert shelf.asked < 2 * MOST_TRIES + 10


async def test_conflicts_far_apart_do_not_cost_all_that_lies_between(rig: Rig) -> None:
    """Chronological backtracking would try 6**8 ways."""
    between = [skill(f"m{n}", f"{v}.0.0") for n in range(8) for v in range(6)]
    shelf = Shelf(
        skill("top", "1.0.0", "first", *(f"m{n}" for n in range(8)), "last"),
        skill("first", "2.0.0", "base >=2"),
        skill("first", "1.0.0", "base"),
        *between,
        skill("last", "1.0.0", "base <2"),
        skill("base", "1.0.0"),
        skill("base", "2.0.0"),
    )
    found = await chosen(rig, shelf, "top")
    assert (found["first"], found["base"]) == ("1.0.0", "1.0.0")
    assert all(found[f"m{n}"] == "5.0.0" for n in range(8))


async def test_an_approved_skill_draws_in_approved_versions_where_there_are_such(rig: Rig) -> None:
    rig.configure(trust={"approve": ["lib <2", "top"]})
    libs = [skill("lib", version, source=SkillSource.PUBLISHED) for version in ("1.0.0", "1.5.0", "2.0.0")]
    for requires, expected in (("lib", "1.5.0"), ("lib >=2", "2.0.0")):
        shelf = Shelf(skill("top", "1.0.0", requires, source=SkillSource.PUBLISHED), *libs)
        assert (await chosen(rig, shelf, "top"))["lib"] == expected
    shelf = Shelf(skill("other", "1.0.0", "lib", source=SkillSource.PUBLISHED), *libs)
    assert (await chosen(rig, shelf, "other"))["lib"] == "2.0.0", "nothing is granted to it anyway"
    assert (await chosen(rig, Shelf(*libs, skill("x", "1.0.0", "lib >1")), None, "lib"))["lib"] == "2.0.0", "as named"


NAMES = ("a", "b", "c", "d")
RANGES = ("", " >=2", " <2", " ==1", " >1,<3", " !=3")
VERSIONS = ("1.0.0", "2.0.0", "3.0.0")
needs = st.lists(
    st.builds("{}{}".format, st.sampled_from(NAMES), st.sampled_from(RANGES)),
    max_size=3,
    unique_by=lambda text: text.partition(" ")[0],
)
universes = st.dictionaries(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(VERSIONS)), needs, min_size=2, max_size=10
)


@given(universe=universes)
async def test_a_solution_is_found_exactly_when_there_is_one(
    rig: Rig, universe: dict[tuple[str, str], list[str]]
) -> None:
    shelf = Shelf(*(skill(name, version, *requires) for (name, version), requires in universe.items()))
    names = sorted({name for name, _ in universe})
    target = await shelf.get(names[0])
    named = tuple(names[1:2])
    fitting = list(solutions(universe, {target.name: target.version}, named))
    try:
        found = await chosen(rig, shelf, target.name, *named)
    except InvalidInput:
        assert not fitting
        return
    assert found in [minimal(universe, one, (target.name, *named)) for one in fitting]
    assert found == await chosen(rig, shelf, target.name, *named), "it is always the same"


def solutions(
    universe: Mapping[tuple[str, str], list[str]], fixed: Mapping[str, str], named: tuple[str, ...]
) -> Iterator[dict[str, str]]:
    """By trying everything."""
    choices = [[fixed[n]] if n in fixed else [None, *(v for m, v in universe if m == n)] for n in NAMES]
    for versions in itertools.product(*choices):
        one = {name: version for name, version in zip(NAMES, versions, strict=True) if version is not None}
        wants = [Requirement.parse(text) for pair in one.items() for text in universe[pair]]
        if all(name in one for name in named) and all(w.name in one and w.admits(one[w.name]) for w in wants):
            yield one


def minimal(
    universe: Mapping[tuple[str, str], list[str]], one: Mapping[str, str], roots: tuple[str, ...]
) -> dict[str, str]:
    """Without what nobody requires."""
    kept: dict[str, str] = {}
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name not in kept:
            kept[name] = one[name]
            pending += [Requirement.parse(text).name for text in universe[(name, one[name])]]
    return kept
