"""The catalogue over directories: layouts, versions, duplicates, changes on disk, cost."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from skillyard.bundled import GUIDE
from skillyard.domain.errors import InvalidInput, SkillNotFound, StoreFault
from skillyard.domain.skill.skill import SkillFormat
from skillyard.ports.skills import SkillStore
from skillyard.stores.skills.catalogue import Catalogue
from skillyard.stores.skills.catalogue.search import ScanLimits
from skillyard.stores.skills.tree import Caps, read_tree
from tests.unit.stores.skills.skilldirs import action, action_files, agent_skill, write
from tests.watching import counted

pytestmark = pytest.mark.anyio


_opened: list[Catalogue] = []


def opened(skills: Catalogue) -> Catalogue:
    """To be closed when the test ends."""
    _opened.append(skills)
    return skills


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    yield
    while _opened:
        await _opened.pop().close()


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    def forward(self, seconds: float = 1.0) -> None:
        self.time += seconds


async def names_of(skills: SkillStore) -> tuple[str, ...]:
    return tuple(line.name for line in await skills.page(None, 1000))


class Yard:
    """A catalogue over ``skills`` (and ``more``) below a directory, with its clock."""

    def __init__(self, home: Path, **options: Any) -> None:
        self.home = home
        self.root, self.more = home / "skills", home / "more"
        self.clock = Hand()
        self.root.mkdir(exist_ok=True)
        options.setdefault("guide", None)
        roots = [self.root, self.more] if self.more.exists() else [self.root]
        self.skills = opened(Catalogue(roots, home / "snapshots", monotonic=self.clock, **options))

    async def names(self) -> Sequence[str]:
        self.clock.forward()
        return await names_of(self.skills)

    async def problems(self) -> list[tuple[str, str]]:
        """(path below the home, rule)"""
        self.clock.forward()
        found = await self.skills.problems()
        return [(os.path.relpath(finding.file, self.home), finding.rule) for finding in found]


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


def settle(directory: Path) -> None:
    """Make everything look a minute old, so that equal times mean equal bytes."""
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (time.time() - 60,) * 2, follow_symlinks=False)


async def test_it_is_a_skill_store(yard: Yard) -> None:
    store: SkillStore = yard.skills
    assert list(await names_of(store)) == []
    assert list(await store.problems()) == []


async def test_layouts(yard: Yard) -> None:
    action(yard.root, "acme.text.count")
    write(yard.root / "acme.multi" / "1.0.0", action_files("acme.multi", "1.0.0"))
    write(yard.root / "acme.multi" / "1.10.0", action_files("acme.multi", "1.10.0"))
    write(yard.root / "acme.multi" / "2.0.0-rc.1", action_files("acme.multi", "2.0.0-rc.1"))
    agent_skill(yard.root / "team" / "docs")
    agent_skill(yard.root / "table" / "1.2.0", "x", "").rename(yard.root / "table" / "1.3.0")
    write(yard.root / "node_modules", {"x/SKILL.md": "x"})
    write(yard.root / ".hidden", {"x/SKILL.md": "x"})
    assert await yard.names() == ("acme.multi", "acme.text.count", "pdf-tools", "x")
    assert await yard.skills.versions("acme.multi") == ("2.0.0-rc.1", "1.10.0", "1.0.0")
    assert (await yard.skills.get("acme.multi")).version == "1.10.0"
    assert (await yard.skills.get("acme.multi", "2.0.0-rc.1")).version == "2.0.0-rc.1"
    assert (await yard.skills.get("pdf-tools")).format is SkillFormat.AGENT_SKILLS


async def test_a_root_may_be_a_skill_itself(tmp_path: Path) -> None:
    root = action(tmp_path, "acme.text.count")
    skills = opened(Catalogue([root], tmp_path / "snapshots", guide=None))
    assert await names_of(skills) == ("acme.text.count",)


async def test_what_is_served_is_an_immutable_copy(yard: Yard) -> None:
    source = action(yard.root)
    skill = await yard.skills.get("acme.text.count")
    assert skill.root == yard.home / "snapshots" / skill.digest
    (source / "code" / "main.py").write_text("changed")
    assert (skill.root / "code" / "main.py").read_text() != "changed"
    assert skill.root.stat().st_mode & 0o777 == 0o555


async def test_unknown_names_and_versions(yard: Yard) -> None:
    action(yard.root)
    with pytest.raises(SkillNotFound, match=r"^name: no skill 'none'"):
        await yard.skills.get("none")
    with pytest.raises(SkillNotFound, match=r"^name: no skill 'none'"):
        await yard.skills.get("none", "1.0.0")
    with pytest.raises(SkillNotFound, match=r"^version: the skill 'acme.text.count' has no version '9'; it has 1.0.0"):
        await yard.skills.get("acme.text.count", "9")
    with pytest.raises(SkillNotFound):
        await yard.skills.versions("none")


async def test_bad_bundles_are_not_served_and_said(yard: Yard) -> None:
    action(yard.root, "acme.good")
    write(yard.root / "bad", {"skill.toml": "name = 1\n", "SKILL.md": "x"})
    write(yard.root / "worse", {"SKILL.md": "# no front matter\n"})
    os.mkfifo(agent_skill(yard.root, "fifo") / "pipe")
    assert await yard.names() == ("acme.good",)
    problems = await yard.problems()
    assert ("skills/bad/skill.toml", "type") in problems
    assert ("skills/worse/SKILL.md", "front-matter") in problems
    assert ("skills/fifo/pipe", "special-file") in problems


async def test_profiles(tmp_path: Path) -> None:
    yard = Yard(tmp_path, profile="strict")
    agent_skill(yard.root, "pdf-tools").rename(yard.root / "other")
    assert await yard.names() == ()
    assert await yard.problems() == [("skills/other/SKILL.md", "directory-name")]
    assert await Yard(tmp_path).names() == ("pdf-tools",)
    with pytest.raises(InvalidInput, match="profile"):
        Yard(tmp_path, profile="loose")


async def test_the_first_root_wins(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    yard = Yard(tmp_path)
    action(yard.root, main="def main(args): return 1\n")
    action(yard.more, main="def main(args): return 2\n")
    action(yard.more / "other", version="2.0.0")
    skill = await yard.skills.get("acme.text.count", "1.0.0")
    assert "return 1" in (skill.root / "code" / "main.py").read_text()
    assert (await yard.skills.get("acme.text.count")).version == "2.0.0"
    assert await yard.problems() == [("more/acme.text.count", "duplicate-version")]
    shutil.rmtree(yard.root / "acme.text.count")
    assert await yard.problems() == []
    skill = await yard.skills.get("acme.text.count", "1.0.0")
    assert "return 2" in (skill.root / "code" / "main.py").read_text()


async def test_versions_that_differ_in_build_metadata_are_one(yard: Yard) -> None:
    write(yard.root / "a", action_files(version="1.0.0+a"))
    write(yard.root / "b", action_files(version="1.0.0+b"))
    assert [rule for _, rule in await yard.problems()] == ["duplicate-version"]
    assert await yard.skills.versions("acme.text.count") == ("1.0.0+a",)


async def test_agent_skills_without_a_version_shadow_each_other(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    yard = Yard(tmp_path)
    agent_skill(yard.root, body="mine")
    agent_skill(yard.more, body="theirs")
    assert (await yard.skills.get("pdf-tools")).body == "mine"
    assert [rule for _, rule in await yard.problems()] == ["duplicate-version"]


async def test_the_guide_cannot_be_overridden(tmp_path: Path) -> None:
    yard = Yard(tmp_path, guide=GUIDE)
    action(yard.root, "skills.protocol.guide", "9.0.0")
    agent_skill(yard.root / "x", "y").rename(yard.root / "skills.protocol.guide2")
    guide = await yard.skills.get("skills.protocol.guide")
    assert (guide.version, await yard.skills.versions(guide.name)) == ("0.1.0", ("0.1.0",))
    assert ("skills/skills.protocol.guide", "guide-reserved") in await yard.problems()
    assert "skills.protocol.guide" not in await Yard(tmp_path).names()


async def test_changes_are_picked_up(yard: Yard) -> None:
    assert await yard.names() == ()
    first = await yard.skills.revision()
    source = action(yard.root)
    assert await yard.names() == ("acme.text.count",)
    second = await yard.skills.revision()
    (source / "code" / "main.py").write_text("async def main(args): return 2\n")
    yard.clock.forward()
    skill = await yard.skills.get("acme.text.count")
    assert (skill.root / "code" / "main.py").read_text() == "async def main(args): return 2\n"
    assert len({first, second, await yard.skills.revision()}) == 3
    (source / "skill.toml").unlink()
    (source / "SKILL.md").unlink()
    assert await yard.names() == ()
    assert await yard.skills.revision() == first


@pytest.mark.parametrize("change", ["content", "mode", "rename", "add", "link", "directory"])
async def test_each_kind_of_change_is_seen(yard: Yard, change: str) -> None:
    source = action(yard.root)
    write(source, {"resources/a.txt": "a", "b.txt": "b"})
    (source / "c.txt").symlink_to("b.txt")
    settle(yard.root)
    before = (await yard.skills.get("acme.text.count")).digest
    file = source / "resources" / "a.txt"
    match change:
        case "content":
            stamp = file.stat()
            file.write_text("z")
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        case "mode":
            file.chmod(0o755)
        case "rename":
            file.rename(file.with_name("z.txt"))
        case "add":
            file.with_name("new").write_text("")
        case "link":
            (source / "c.txt").unlink()
            (source / "c.txt").symlink_to("resources/a.txt")
        case "directory":
            shutil.rmtree(source / "resources")
            write(source, {"resources/a.txt": "other"})
    yard.clock.forward()
    assert (await yard.skills.get("acme.text.count")).digest != before


async def test_writes_within_one_tick_are_seen(yard: Yard) -> None:
    """The same size and, on a coarse clock, the same times: what was just written is read once more."""
    source = action(yard.root, main="def main(args): return 1\n")
    await yard.names()
    file = source / "code" / "main.py"
    for number in range(2, 8):
        yard.clock.forward()
        await names_of(yard.skills)
        file.write_text(f"def main(args): return {number}\n")
    yard.clock.forward()
    skill = await yard.skills.get("acme.text.count")
    assert "return 7" in (skill.root / "code" / "main.py").read_text()


async def test_a_root_may_come_later(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    shutil.rmtree(yard.root)
    assert await yard.problems() == [("skills", "root-missing")]
    action(yard.root)
    assert await yard.names() == ("acme.text.count",)
    assert await yard.problems() == []


async def test_only_what_changed_is_read_again(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [action(yard.root, f"acme.s{number}") for number in range(5)]
    settle(yard.root)
    monkeypatch.setattr("skillyard.stores.skills.catalogue.stamps.TICK_NS", 0)
    read: list[str] = []

    def counted(root: Path, caps: Caps) -> Any:
        read.append(root.name)
        return read_tree(root, caps)

    monkeypatch.setattr("skillyard.stores.skills.catalogue.loading.read_tree", counted)
    await yard.names()
    assert len(read) == 5
    await yard.names()
    (sources[2] / "SKILL.md").write_text("---\nname: s2\ndescription: New\n---\n")
    await yard.names()
    assert read[5:] == ["acme.s2"]


async def test_the_disk_is_looked_at_twice_a_second_at_most(yard: Yard) -> None:
    action(yard.root)
    assert len(await yard.names()) == 1
    action(yard.root, "acme.other")
    yard.clock.forward(0.4)
    assert len(await names_of(yard.skills)) == 1
    yard.clock.forward(0.2)
    assert len(await names_of(yard.skills)) == 2


async def test_callers_during_a_load_get_what_is_there(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    action(yard.root)
    await yard.names()
    action(yard.root, "acme.other")
    started, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(root: Path, caps: Caps) -> Any:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
        return read_tree(root, caps)

    monkeypatch.setattr("skillyard.stores.skills.catalogue.loading.read_tree", slow)
    yard.clock.forward()
    loading = asyncio.ensure_future(names_of(yard.skills))
    await asyncio.wait_for(started.wait(), 10)
    assert len(await asyncio.wait_for(names_of(yard.skills), 10)) == 1
    go_on.set()
    assert len(await loading) == 2


async def test_start_sweeps_what_nobody_uses(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    source = action(yard.root)
    old = await yard.skills.get("acme.text.count")
    (source / "SKILL.md").write_text("---\nname: count\ndescription: Newer\n---\n")
    yard.clock.forward()
    middle = await yard.skills.get("acme.text.count")
    (source / "SKILL.md").write_text("---\nname: count\ndescription: Newest\n---\n")
    again = Yard(tmp_path)
    assert await again.skills.start(keep=[middle.digest]) == 1
    newest = await again.skills.get("acme.text.count")
    assert {path.name for path in (tmp_path / "snapshots").iterdir()} == {middle.digest, newest.digest}
    assert not old.root.exists()


async def test_a_disk_without_room_for_a_snapshot_refuses_the_use_of_a_skill(yard: Yard) -> None:
    action(yard.root)
    (yard.home / "snapshots").write_text("no directory")
    assert await yard.names() == ("acme.text.count",)
    with pytest.raises(StoreFault, match=r"snapshot of the skill acme.text.count 1.0.0 cannot be stored: File exists"):
        await yard.skills.get("acme.text.count")
    (yard.home / "snapshots").unlink()
    assert (await yard.skills.get("acme.text.count")).root.is_dir()


async def test_linked_directories_and_loops(yard: Yard) -> None:
    real = action(yard.home / "elsewhere")
    (yard.root / "linked").symlink_to(real)
    (yard.root / "again").symlink_to(real)
    (yard.root / "self").symlink_to(yard.root)
    (yard.root / "up").symlink_to(yard.home)
    assert await yard.names() == ("acme.text.count",)


async def test_scanning_is_bounded(tmp_path: Path) -> None:
    yard = Yard(tmp_path, limits=ScanLimits(depth=2, directories=20))
    action(yard.root / "a", "acme.near")
    action(yard.root / "a" / "b" / "c", "acme.far")
    assert await yard.names() == ("acme.near",)
    assert [rule for _, rule in await yard.problems()] == ["scan-depth"]
    for number in range(30):
        (yard.root / f"z{number}").mkdir()
    assert [rule for _, rule in await yard.problems()] == ["scan-depth", "scan-directories"]


async def test_caps_are_the_callers(tmp_path: Path) -> None:
    yard = Yard(tmp_path, caps=Caps(files=2))
    action(yard.root)
    assert await yard.problems() == [("skills/acme.text.count/skill.toml", "tree-files")]


async def test_getting_a_skill_again_opens_and_lists_nothing(yard: Yard) -> None:
    action(yard.root, "acme.s7")
    await yard.skills.get("acme.s7")
    with counted() as events:
        await yard.skills.get("acme.s7")
    assert not events.keys() & {"open", "os.scandir", "os.listdir"}
