"""Skills in memory are bounded by their number and by what they hold."""

from __future__ import annotations

from skillyard.domain.skill.skill import SkillFile
from skillyard.stores.skills.catalogue.lookup import CachedSkill, SkillCache, weight
from skillyard.stores.skills.catalogue.rows import Entry
from tests.unit.engine.fakes import a_skill

ENTRY = Entry(b"/x", 1, b"", name="x", version="1.0.0", digest="0")


def kept(name: str, size: int = 0) -> CachedSkill:
    return CachedSkill(a_skill(name, files=(SkillFile("SKILL.md", size, "0"),)), ENTRY, (), 0.0)


def names(skills: SkillCache, *wanted: str) -> list[str]:
    return [name for name in wanted if skills.get(name, None)]


def test_the_last_used_stay() -> None:
    skills = SkillCache(max_count=3)
    for name in "abc":
        skills.put(name, None, kept(name))
    assert skills.get("a", None)
    skills.put("d", None, kept("d"))
    assert names(skills, *"abcd") == ["a", "c", "d"]


def test_large_ones_make_room_for_themselves_and_one_always_fits() -> None:
    skills = SkillCache(max_bytes=4 * weight(kept("x").skill))
    for name in "abc":
        skills.put(name, None, kept(name))
    skills.put("huge", None, kept("huge", size=1 << 20))
    assert names(skills, "a", "b", "c", "huge") == ["huge"]
    skills.put("a", None, kept("a"))
    assert names(skills, "a", "huge") == ["a"]


def test_names_that_changed_go_in_every_version() -> None:
    skills = SkillCache()
    for name in "ab":
        skills.put(name, None, kept(name))
        skills.put(name, "1.0.0", kept(name))
    skills.drop({"a", "other"})
    assert (names(skills, "a", "b"), skills.get("a", "1.0.0")) == (["b"], None)
    skills.drop({f"n{number}" for number in range(1000)})
    assert names(skills, "b") == []
