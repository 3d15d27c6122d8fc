"""The index: a cache that goes with its rules, its roots and what was published, and hurts nobody when it is gone."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import SkillNotFound, StoreFault
from skillyard.domain.skill.publication import Pin, Publication
from skillyard.domain.skill.skill import SkillSource
from skillyard.stores.skills.catalogue import Catalogue, cache_file
from skillyard.stores.skills.catalogue.search import ScanLimits
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.skills.tree import Caps, read_tree
from skillyard.testing.memory_publications import MemoryPublications
from tests.unit.stores.skills.skilldirs import action, action_files, agent_skill, write

pytestmark = pytest.mark.anyio


class Yard:
    """Catalogues over the same directories, one after the other; ``read`` are the bundles that were read."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.roots = [home / "one", home / "two"]
        for root in self.roots:
            root.mkdir()
        self.read: list[str] = []
        self.publications: MemoryPublications | None = None
        self._open: Catalogue | None = None

        def counted(path: Path, caps: Caps) -> Any:
            self.read.append(str(path.relative_to(home)))
            return read_tree(path, caps)

        monkeypatch.setattr("skillyard.stores.skills.catalogue.loading.read_tree", counted)
        monkeypatch.setattr("skillyard.stores.skills.catalogue.stamps.TICK_NS", 0)

    async def again(self, **more: Any) -> Catalogue:
        """As after a restart."""
        await self.close()
        self.read.clear()
        more = {"guide": None, "publications": self.publications, "check_every_s": 0.0} | more
        self._open = Catalogue(self.roots, self.home / "snapshots", index=self.home / "catalogue.db", **more)
        await self._open.start()
        return self._open

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()

    async def publish(self, name: str, version: str, main: str = "def main(args): return 1\n", **more: Any) -> str:
        """Its digest."""
        bundle = write(self.home / "upload" / name / version, action_files(name, version, main))
        tree, _ = read_tree(bundle, Caps())
        assert tree is not None
        Snapshots(self.home / "snapshots").store(tree)
        assert self.publications is not None
        told = Publication(name, version, tree.digest, 1.0, "ann", "crm", 1, len(tree.files), **more)
        await self.publications.insert(told)
        return tree.digest


@pytest.fixture
async def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Yard]:
    yard = Yard(tmp_path, monkeypatch)
    yield yard
    await yard.close()


async def names(skills: Catalogue) -> list[str]:
    return [line.name for line in await skills.page(None, 1000)]


async def test_a_second_start_reads_nothing(yard: Yard) -> None:
    action(yard.roots[0], "x.a")
    agent_skill(yard.roots[1], "plain")
    write(yard.roots[1] / "bad", {"SKILL.md": "# nothing\n"})
    first = await yard.again()
    before = [await names(first), list(await first.problems()), await first.revision()]
    assert len(yard.read) == 3
    second = await yard.again()
    assert [await names(second), list(await second.problems()), await second.revision()] == before
    assert yard.read == []


@pytest.mark.parametrize("other", ["profile", "caps", "rules"])
async def test_what_was_judged_otherwise_is_read_again(yard: Yard, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    action(yard.roots[0], "x.a")
    agent_skill(yard.roots[0], "pdf-tools").rename(yard.roots[0] / "misnamed")
    assert await names(await yard.again()) == ["pdf-tools", "x.a"]
    if other == "rules":
        monkeypatch.setattr(cache_file, "rules_digest", lambda: "rules of another version")
        assert await names(await yard.again()) == ["pdf-tools", "x.a"]
    elif other == "caps":
        assert await names(await yard.again(caps=Caps(files=2))) == ["pdf-tools"]
    else:
        assert await names(await yard.again(profile="strict")) == ["x.a"]
    assert len(yard.read) == 2


async def test_other_roots_are_searched_and_known_bundles_are_not_read(yard: Yard) -> None:
    action(yard.roots[0], "x.a", main="def main(args): return 1\n")
    action(yard.roots[1], "x.a", main="def main(args): return 2\n")
    first = (await (await yard.again()).get("x.a")).digest
    yard.roots = yard.roots[::-1]
    skills = await yard.again()
    assert yard.read == []
    assert (await skills.get("x.a")).digest != first
    yard.roots = yard.roots[1:]
    skills = await yard.again(limits=ScanLimits(depth=3))
    assert ((await skills.get("x.a")).digest, list(await skills.problems())) == (first, [])


async def test_a_bundle_that_goes_to_another_root_stays(yard: Yard) -> None:
    """A root in a root: what a link makes the outer one find elsewhere is the inner one's from then on."""
    yard.roots = [yard.roots[0], yard.roots[0] / "team"]
    action(yard.roots[1], "x.a")
    skills = await yard.again()
    assert list(await skills.problems()) == []
    (yard.roots[0] / "0-first").symlink_to(yard.roots[1])
    assert await names(skills) == ["x.a"]
    [problem] = await skills.problems()
    assert (problem.rule, problem.file) == ("duplicate-version", str(yard.roots[1] / "x.a"))
    (yard.roots[0] / "0-first").unlink()
    assert (await names(skills), list(await skills.problems())) == (["x.a"], [])


async def test_damage_that_shows_while_it_serves(yard: Yard) -> None:
    """Whatever was cut or garbled, the answer is the right one."""
    for number in range(40):
        action(yard.roots[0], f"x.s{number}")
    skills = await yard.again()
    assert (await skills.get("x.s5")).name == "x.s5"
    expected = await names(skills)
    other = sqlite3.connect(yard.home / "catalogue.db", isolation_level=None)
    other.execute("UPDATE bundles SET line = replace(line, 'A skill', 'Another') WHERE name = 'x.s7'")
    lines = await skills.page(None, 1000)
    assert [line.name for line in lines] == expected
    assert {line.description for line in lines} == {"A skill"}
    other.close()
    other = sqlite3.connect(yard.home / "catalogue.db", isolation_level=None)
    other.execute("DELETE FROM bundles WHERE name = 'x.s9'")
    other.close()
    assert (await skills.get("x.s9")).name == "x.s9"
    await skills.get("x.s5")
    other = sqlite3.connect(yard.home / "catalogue.db", isolation_level=None)
    other.execute("UPDATE bundles SET digest = digest || 'x'")
    other.close()
    shutil.rmtree(yard.roots[0] / "x.s5")
    with pytest.raises(SkillNotFound):
        await skills.get("x.s5")


async def test_an_index_that_is_deleted_while_it_is_used(yard: Yard) -> None:
    action(yard.roots[0], "x.a")
    skills = await yard.again()
    for file in yard.home.glob("catalogue.db*"):
        file.unlink()
    action(yard.roots[0], "x.b")
    assert await names(skills) == ["x.a", "x.b"]
    assert await names(await yard.again()) == ["x.a", "x.b"]


async def test_an_index_that_cannot_be_made(yard: Yard) -> None:
    (yard.home / "catalogue.db").mkdir()
    with pytest.raises(StoreFault, match=r"catalogue.db cannot be opened"):
        await yard.again()
    os.rmdir(yard.home / "catalogue.db")
    assert await names(await yard.again()) == []


async def test_a_full_disk_leaves_what_was_served(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    action(yard.roots[0], "x.a")
    skills = await yard.again()
    assert skills._upkeep is not None
    far = skills._upkeep._index.table._connection
    [pages] = far.execute("PRAGMA page_count").fetchone()
    far.execute(f"PRAGMA max_page_count = {pages}")
    for number in range(300):
        agent_skill(yard.roots[0], f"s{number}")
    assert "x.a" in await names(skills)
    assert "catalogue.db has no room left on its disk" in caplog.text
    far.execute("PRAGMA max_page_count = 1000000")
    assert len(await names(skills)) == 301


async def test_a_closed_catalogue_answers_nothing(yard: Yard) -> None:
    skills = await yard.again()
    await skills.close()
    await skills.close()
    with pytest.raises(StoreFault, match="closed"):
        await skills.page(None, 1)


async def test_published_versions_beside_those_of_directories(yard: Yard) -> None:
    yard.publications = MemoryPublications()
    action(yard.roots[0], "x.a", main="def main(args): return 'directory'\n")
    other = await yard.publish("x.a", "1.0.0")
    newer = await yard.publish("x.a", "1.2.0")
    skills = await yard.again()
    assert await skills.versions("x.a") == ("1.2.0", "1.0.0")
    here = await skills.get("x.a", "1.0.0")
    assert (here.source, here.digest == other) == (SkillSource.DIRECTORY, False)
    latest = await skills.get("x.a")
    assert (latest.source, latest.digest, latest.version) == (SkillSource.PUBLISHED, newer, "1.2.0")
    assert [problem.rule for problem in await skills.problems()] == ["duplicate-version"]
    (yard.roots[0] / "x.a" / "skill.toml").unlink()
    (yard.roots[0] / "x.a" / "SKILL.md").unlink()
    assert (await skills.get("x.a", "1.0.0")).digest == other


async def test_what_was_published_meanwhile_is_served_after_a_restart_and_nothing_else_is_read(yard: Yard) -> None:
    yard.publications = MemoryPublications()
    for number in range(6):
        await yard.publish(f"x.s{number}", "1.0.0")
    first = await yard.again()
    revision = await first.revision()
    assert len(yard.read) == 6
    assert await (await yard.again()).revision() == revision
    assert yard.read == []
    await yard.publish("x.s3", "1.1.0")
    await yard.publications.withdraw("x.s4", "1.0.0", at=5.0, by="ann", reason="it leaks")
    await yard.publications.pin(Pin("x.s3", "1.0.0", 1.0, "ann"))
    third = await yard.again()
    assert len(yard.read) == 1
    assert (await third.versions("x.s3"), (await third.get("x.s3")).version) == (("1.1.0", "1.0.0"), "1.0.0")
    assert await third.pinned("x.s3") == "1.0.0"
    assert "x.s4" not in await names(third)
    with pytest.raises(SkillNotFound, match=r"version 1.0.0 of 'x.s4' was withdrawn on 1970-01-01T00:00:05Z: it leaks"):
        await third.get("x.s4")


async def test_a_withdrawn_version_is_served_from_nowhere(yard: Yard) -> None:
    yard.publications = MemoryPublications()
    action(yard.roots[0], "x.a")
    await yard.publish("x.a", "2.0.0")
    await yard.publish("x.a", "1.0.0+other.build")
    skills = await yard.again()
    await yard.publications.withdraw("x.a", "1.0.0", at=5.0, by="ann", reason="")
    await skills.refresh("x.a")
    assert await skills.versions("x.a") == ("2.0.0",)
    assert [problem.rule for problem in await skills.problems()] == ["withdrawn"]
    await yard.publications.restore("x.a", "1.0.0", at=6.0, by="ann")
    await skills.refresh("x.a")
    assert await skills.versions("x.a") == ("2.0.0", "1.0.0")


async def test_another_database_of_publications_replaces_what_was_known(yard: Yard) -> None:
    yard.publications = MemoryPublications()
    for version in ("1.0.0", "1.1.0", "1.2.0"):
        await yard.publish("x.old", version)
    assert await names(await yard.again()) == ["x.old"]
    yard.publications = MemoryPublications()
    await yard.publish("x.new", "1.0.0")
    assert await names(await yard.again()) == ["x.new"]
    yard.publications = None
    assert await names(await yard.again()) == []


async def test_the_only_copy_of_a_published_version_is_never_swept(yard: Yard) -> None:
    yard.publications = MemoryPublications()
    kept = {await yard.publish("x.a", "1.0.0"), await yard.publish("x.a", "1.1.0")}
    await yard.publications.withdraw("x.a", "1.1.0", at=5.0, by="ann", reason="")
    write(yard.home / "snapshots" / ".tmp-dead", {"x": "left by a crash"})
    write(yard.home / "snapshots" / ("0" * 64), {"x": "of nobody"})
    for file in (None, "catalogue.db"):
        if file:
            await yard.close()
            (yard.home / file).unlink()
        await yard.again()
        assert set(os.listdir(yard.home / "snapshots")) == kept


async def test_a_damaged_snapshot_is_not_served_until_it_is_published_again(yard: Yard) -> None:
    yard.publications = MemoryPublications()
    digest = await yard.publish("x.a", "1.0.0")
    skills = await yard.again()
    code = yard.home / "snapshots" / digest / "code/main.py"
    os.chmod(code, 0o644)
    code.write_text("def main(args): return 'evil'\n")
    with pytest.raises(SkillNotFound):
        await skills.get("x.a")
    assert [problem.rule for problem in await skills.problems()] == ["snapshot"]
    await yard.publish("x.a", "1.0.0")
    await skills.refresh("x.a")
    assert (await skills.get("x.a")).digest == digest


async def test_problems_are_bounded(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillyard.stores.skills.catalogue.catalogue.MAX_PROBLEMS", 5)
    for number in range(8):
        write(yard.roots[0] / f"b{number}", {"SKILL.md": "# nothing\n"})
    found = await (await yard.again()).problems()
    assert [problem.rule for problem in found] == [*["front-matter"] * 5, "more-problems"]
    assert found[-1].rule == "more-problems"
    assert "8 bundles" in found[-1].message
