"""Withdrawing, restoring, pinning, and what is told of every version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.errors import Forbidden, InvalidInput, SkillNotFound, VersionTaken
from skillyard.domain.principal import Scope
from skillyard.engine.observer import CatalogueChanged
from skillyard.testing.twin_sandbox import TwinProcess
from tests.bundles import a_skill, note_files, skill_files, tar
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import result
from tests.unit.engine.skills.publisher import ANN, BOB, EVE, ROOT, Publisher, publisher
from tests.unit.engine.skills.test_publishing import put

pytestmark = pytest.mark.anyio

NAME = "acme.words.say"


@pytest.fixture
async def yard(rig: Rig) -> AsyncIterator[Publisher]:
    """With three versions of one name."""
    made = await publisher(rig)
    for version in ("1.0.0", "1.1.0", "2.0.0-rc.1"):
        await made.publish(a_skill(version=version))
    rig.events.clear()
    yield made
    await rig.skills.close()  # type: ignore[attr-defined]


async def test_a_withdrawn_version_is_nowhere_and_says_why(yard: Publisher) -> None:
    told = await yard.call("withdraw", BOB, name=NAME, version="1.1.0", reason="it leaks keys")
    now = yard.rig.clock.now()
    assert (told["state"], told["withdrawn_by"], told["withdrawn_at"]) == ("withdrawn", "bob", now)
    assert (told["changed"], told["unpinned"]) == (True, False)
    assert "1.1.0" not in (await yard.rig.call("describe_skill", ANN, name=NAME))["skill"]["versions"]
    for ask in (
        yard.rig.call("describe_skill", ANN, name=NAME, version="1.1.0"),
        yard.rig.call("read_skill_file", ANN, name=NAME, version="1.1.0", path="SKILL.md"),
        yard.rig.call("execute_skill", ANN, name=NAME, version="1.1.0", args={}),
        yard.export(NAME, "1.1.0"),
    ):
        with pytest.raises(SkillNotFound, match=r"withdrawn on 2027-.*: it leaks keys") as refusal:
            await ask
        assert refusal.value.details["withdrawn"] is True
    assert (await yard.skills.get(NAME)).version == "1.0.0"
    assert [(e.act, e.version, e.principal) for e in yard.rig.of(CatalogueChanged)] == [("withdrawn", "1.1.0", "bob")]


async def test_a_name_whose_every_version_is_withdrawn_is_not_listed(yard: Publisher) -> None:
    for version in ("1.0.0", "1.1.0", "2.0.0-rc.1"):
        await yard.call("withdraw", name=NAME, version=version, reason="all gone")
    assert (await yard.rig.call("list_skills", ANN))["skills"] == []
    with pytest.raises(SkillNotFound, match=r"every version .* was withdrawn.*all gone"):
        await yard.rig.call("describe_skill", ANN, name=NAME)
    told = await yard.call("versions", name=NAME)
    assert told["latest"] is None
    assert {version["state"] for version in told["versions"]} == {"withdrawn"}


async def test_withdrawing_twice_is_withdrawing_once(yard: Publisher) -> None:
    first = await yard.call("withdraw", name=NAME, version="1.1.0", reason="first")
    again = await yard.call("withdraw", BOB, name=NAME, version="1.1.0", reason="second")
    assert again == {**first, "changed": False}
    assert len(yard.rig.of(CatalogueChanged)) == 1


async def test_restoring_serves_it_again_from_the_next_call_on(yard: Publisher) -> None:
    await yard.call("withdraw", name=NAME, version="1.1.0")
    told = await yard.call("restore", BOB, name=NAME, version="1.1.0")
    assert (told["state"], told["changed"]) == ("published", True)
    assert "reason" not in told
    assert (await yard.skills.get(NAME)).version == "1.1.0"
    assert (await yard.call("restore", name=NAME, version="1.1.0"))["changed"] is False
    assert [event.act for event in yard.rig.of(CatalogueChanged)] == ["withdrawn", "restored"]


async def test_the_bytes_of_a_withdrawn_version_cannot_be_published_again(yard: Publisher) -> None:
    await yard.call("withdraw", name=NAME, version="1.1.0")
    with pytest.raises(VersionTaken, match="restore it"):
        await yard.publish(a_skill(version="1.1.0"))


async def test_a_run_goes_on_when_its_version_is_withdrawn(yard: Publisher) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def waiting(process: TwinProcess) -> None:
        begun.set()
        await go.wait()
        process.write(result({"done": True}))

    yard.rig.backend.script = waiting
    running = asyncio.create_task(yard.rig.call("execute_skill", ANN, name=NAME, version="1.1.0", args={}))
    await begun.wait()
    digest = (await yard.call("withdraw", name=NAME, version="1.1.0"))["digest"]
    assert digest in yard.stored()
    go.set()
    assert (await running)["status"] == "completed"


@pytest.mark.parametrize("method", ["withdraw", "restore"])
async def test_only_what_was_published_is_withdrawn(yard: Publisher, method: str) -> None:
    for name, version in ((NAME, "9.9.9"), ("acme.nothing", "1.0.0")):
        with pytest.raises(SkillNotFound, match="was published"):
            await yard.call(method, name=name, version=version)
    with pytest.raises(InvalidInput, match="semantic version"):
        await yard.call(method, name=NAME, version="latest")


async def test_a_directory_does_not_bring_a_withdrawn_version_back(yard: Publisher) -> None:
    put(yard, skill_files(version="1.1.0"))
    assert (await yard.skills.get(NAME)).version == "1.1.0"
    await yard.call("withdraw", ROOT, name=NAME, version="1.1.0", reason="it leaks")
    with pytest.raises(SkillNotFound, match="it leaks"):
        await yard.skills.get(NAME, "1.1.0")
    assert (await yard.skills.get(NAME)).version == "1.0.0"


async def test_the_latest_is_the_highest_release(yard: Publisher) -> None:
    assert (await yard.skills.get(NAME)).version == "1.1.0"
    await yard.publish(a_skill(version="1.0.5"))
    assert (await yard.skills.get(NAME)).version == "1.1.0"
    for version in ("1.0.0", "1.0.5", "1.1.0"):
        await yard.call("withdraw", name=NAME, version=version)
    assert (await yard.skills.get(NAME)).version == "2.0.0-rc.1"


async def test_a_pin_is_the_latest_until_it_is_taken_away(yard: Publisher) -> None:
    told = await yard.call("pin", BOB, name=NAME, version="1.0.0")
    assert (told["version"], told["pinned_by"], told["pinned_at"]) == ("1.0.0", "bob", yard.rig.clock.now())
    assert (await yard.rig.call("list_skills", ANN))["skills"] == [{"name": NAME, "version": "1.0.0"}]
    await yard.publish(a_skill(version="3.0.0"))
    assert (await yard.skills.get(NAME)).version == "1.0.0"
    assert await yard.skills.pinned(NAME) == "1.0.0"
    assert unpacked_version(await yard.export(NAME)) == "1.0.0"
    again = await yard.restarted()
    assert (await again.skills.get(NAME)).version == "1.0.0"
    told = await again.call("unpin", name=NAME)
    assert (told["unpinned"], told["unpinned_by"], told["latest"]) == ("1.0.0", "ann", "3.0.0")
    assert (await again.call("unpin", name=NAME))["unpinned"] is None


async def test_pinning_twice_is_pinning_once(yard: Publisher) -> None:
    first = await yard.call("pin", BOB, name=NAME, version="1.0.0")
    again = await yard.call("pin", ANN, name=NAME, version="1.0.0")
    assert first["changed"]
    assert again == {**first, "changed": False}
    assert [event.act for event in yard.rig.of(CatalogueChanged)] == ["pinned"]


async def test_what_is_not_served_cannot_be_pinned(yard: Publisher) -> None:
    await yard.call("withdraw", name=NAME, version="1.0.0")
    for version in ("1.0.0", "9.9.9"):
        with pytest.raises(SkillNotFound):
            await yard.call("pin", name=NAME, version=version)
    assert await yard.skills.pinned(NAME) is None


async def test_withdrawing_a_pinned_version_unpins_it(yard: Publisher) -> None:
    await yard.call("pin", name=NAME, version="1.0.0")
    assert (await yard.call("withdraw", name=NAME, version="1.0.0"))["unpinned"] is True
    assert (await yard.skills.get(NAME)).version == "1.1.0"
    assert (await yard.call("versions", name=NAME))["pin"] is None


async def test_versions_tell_everything(yard: Publisher) -> None:
    await yard.call("withdraw", BOB, name=NAME, version="1.1.0", reason="it leaks")
    await yard.call("pin", name=NAME, version="1.0.0")
    told = await yard.call("versions", name=NAME)
    assert (told["latest"], told["project"], told["pin"]["by"]) == ("1.0.0", "crm", "ann")
    seen = [(v["version"], v["state"], v["latest"], v["published_by"]) for v in told["versions"]]
    assert seen == [
        ("2.0.0-rc.1", "published", False, "ann"),
        ("1.1.0", "withdrawn", False, "ann"),
        ("1.0.0", "published", True, "ann"),
    ]
    assert told["versions"][1]["reason"] == "it leaks"
    acts = [(event["act"], event["version"], event["principal"]) for event in told["history"]]
    assert acts[:2] == [("pinned", "1.0.0", "ann"), ("withdrawn", "1.1.0", "bob")]
    assert all(event["digest"] for event in told["history"])
    assert len((await yard.call("versions", name=NAME, history=1))["history"]) == 1


async def test_versions_of_directories_stand_beside_them(yard: Publisher) -> None:
    put(yard, skill_files(version="4.0.0"))
    told = await yard.call("versions", name=NAME)
    assert told["latest"] == "4.0.0"
    assert [(v["version"], v["state"]) for v in told["versions"]][:2] == [
        ("4.0.0", "directory"),
        ("2.0.0-rc.1", "published"),
    ]


async def test_a_version_is_found_without_its_build_metadata(yard: Publisher) -> None:
    stored = (await yard.publish(tar(note_files()))).publication
    assert "+" in stored.version
    assert (await yard.call("withdraw", name="some-note", version="0.0.0"))["version"] == stored.version
    with pytest.raises(SkillNotFound, match="withdrawn"):
        await yard.skills.get("some-note", stored.version)


CHANGES: dict[str, dict[str, Any]] = {
    "withdraw": {"version": "1.0.0"},
    "restore": {"version": "1.0.0"},
    "pin": {"version": "1.0.0"},
    "unpin": {},
}


@pytest.mark.parametrize("method", CHANGES)
async def test_another_projects_token_changes_nothing(yard: Publisher, method: str) -> None:
    with pytest.raises(Forbidden, match="another project"):
        await yard.call(method, EVE, name=NAME, **CHANGES[method])
    await yard.call(method, ROOT, name=NAME, **CHANGES[method])


@pytest.mark.parametrize("method", CHANGES)
async def test_changes_need_the_scope_and_the_pattern(yard: Publisher, method: str) -> None:
    without = replace(ANN, scopes=frozenset(Scope) - {Scope.PUBLISH, Scope.ADMIN})
    with pytest.raises(Forbidden, match="publish"):
        await yard.call(method, without, name=NAME, **CHANGES[method])
    elsewhere = replace(ANN, skills=("sales.*",))
    with pytest.raises((Forbidden, SkillNotFound)):
        await yard.call(method, elsewhere, name=NAME, **CHANGES[method])
    assert yard.rig.of(CatalogueChanged) == []


async def test_versions_hide_what_a_token_may_not_use(yard: Publisher) -> None:
    with pytest.raises(SkillNotFound):
        await yard.call("versions", replace(ANN, skills=("sales.*",)), name=NAME)
    with pytest.raises(SkillNotFound):
        await yard.call("versions", name="acme.nothing")


async def test_pins_of_directory_names_are_the_operators(yard: Publisher) -> None:
    put(yard, skill_files("acme.words.other"), "acme.words.other")
    put(yard, skill_files("acme.words.other", "2.0.0"), "acme.words.other-2")
    with pytest.raises(Forbidden, match="operator"):
        await yard.call("pin", ANN, name="acme.words.other", version="1.0.0")
    await yard.call("pin", ROOT, name="acme.words.other", version="1.0.0")
    assert (await yard.skills.get("acme.words.other")).version == "1.0.0"


async def test_a_pin_to_what_is_no_longer_there_is_passed_over(yard: Publisher) -> None:
    put(yard, skill_files(version="4.0.0"))
    await yard.call("pin", ROOT, name=NAME, version="4.0.0")
    (yard.directory / NAME / "skill.toml").unlink()
    (yard.directory / NAME / "SKILL.md").unlink()
    assert (await yard.skills.get(NAME)).version == "1.1.0"
    assert await yard.skills.pinned(NAME) is None


def unpacked_version(archive: bytes) -> str:
    from tests.bundles import unpacked

    return unpacked(archive)["skill.toml"].split(b'version = "')[1].split(b'"')[0].decode()
