"""Many skills: what is read and listed, what stays in memory, and how soon a change is seen."""

from __future__ import annotations

import asyncio
import gc
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bench.made_skills import name_of, write_skills, write_version
from skillyard.domain.errors import SkillNotFound
from skillyard.domain.skill.skill import Skill
from skillyard.stores.skills.catalogue import Catalogue
from skillyard.stores.skills.catalogue import upkeep as upkeeping
from skillyard.stores.skills.catalogue.search import look
from skillyard.stores.skills.catalogue.stamps import TICK_NS
from skillyard.stores.skills.tree import read_tree

pytestmark = pytest.mark.anyio

NAMES, VERSIONS = 100, 3
SOON_S = 30.0


class Counts:
    """How often bundles are read and directories listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self.listed = 0

        def counted_read(*args: Any) -> Any:
            self.read += 1
            return read_tree(*args)

        def counted_look(*args: Any, **more: Any) -> Any:
            self.listed += 1
            return look(*args, **more)

        monkeypatch.setattr("skillyard.stores.skills.catalogue.loading.read_tree", counted_read)
        monkeypatch.setattr("skillyard.stores.skills.catalogue.search.look", counted_look)

    def taken(self) -> tuple[int, int]:
        """Since the last time."""
        found, self.read, self.listed = (self.read, self.listed), 0, 0
        return found


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once, and a moment ago: what is younger is looked at once more."""
    home = tmp_path_factory.mktemp("many")
    written = list(write_skills(home / "skills", NAMES, VERSIONS))
    assert len(written) == NAMES
    while time.time_ns() <= written[-1].stat().st_ctime_ns + TICK_NS:
        time.sleep(0.01)
    return home


def catalogue(home: Path, **more: Any) -> Catalogue:
    return Catalogue([home / "skills"], home / "snapshots", guide=None, **more)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Asked as a client would ask, again and again."""
    deadline = time.monotonic() + SOON_S
    while not await holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_many_skills(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(monkeypatch)
    others = skills_in_memory()
    first = catalogue(shelf)
    await first.start()
    assert counts.taken()[0] == NAMES * VERSIONS
    revision = await first.revision()
    await first.close()

    skills = catalogue(shelf)
    await skills.start()
    try:
        assert counts.taken() == (0, 0), "a second start reads and lists nothing"
        assert await skills.revision() == revision
        await check_pages(skills)
        assert counts.taken() == (0, 0)
        assert not (shelf / "snapshots").exists()
        assert skills_in_memory() == others
        await skills.get(name_of(7))
        assert counts.taken() == (1, 0), "a skill that is asked for is read"
        assert len(list((shelf / "snapshots").iterdir())) == 1
        await check_changes(skills, shelf / "skills", counts)
    finally:
        await skills.close()


async def check_pages(skills: Catalogue) -> None:
    lines = [line for start in range(0, NAMES, 20) for line in await skills.page(_before(start), 20)]
    assert [line.name for line in lines] == sorted(map(name_of, range(NAMES)))
    assert {line.version for line in lines} == {f"1.{VERSIONS - 1}.0"}


def _before(start: int) -> str | None:
    return sorted(map(name_of, range(NAMES)))[start - 1] if start else None


async def check_changes(skills: Catalogue, root: Path, counts: Counts) -> None:
    """Each is seen, and nothing but it is read."""
    write_version(root / name_of(3), 3, 9)
    await until(lambda: is_latest(skills, name_of(3), "1.9.0"))
    read, listed = counts.taken()
    assert 1 <= read <= 3, "the new version; once more, while its times are young"
    assert listed <= 6
    shutil.rmtree(root / name_of(4))
    await until(lambda: is_gone(skills, name_of(4)))
    assert counts.taken()[0] <= 2


async def is_latest(skills: Catalogue, name: str, version: str) -> bool:
    lines = await skills.page(None, 1000, name)
    return [line.version for line in lines] == [version]


async def is_gone(skills: Catalogue, name: str) -> bool:
    return not await skills.page(None, 1000, name)


def skills_in_memory() -> int:
    gc.collect()
    return sum(isinstance(thing, Skill) for thing in gc.get_objects())


@pytest.fixture
async def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Catalogue]:
    """Five skills that are treated as if they were many."""
    monkeypatch.setattr(upkeeping, "AWAITED", 0)
    for _ in write_skills(tmp_path / "skills", 5, 2):
        pass
    skills = catalogue(tmp_path, check_every_s=0.0)
    await skills.start()
    yield skills
    await skills.close()


async def test_what_is_asked_for_is_never_stale(large: Catalogue, tmp_path: Path, monkeypatch: Any) -> None:
    """Although nobody goes round."""
    await large.close()
    monkeypatch.setattr(Catalogue, "rescan", lambda self: None)
    skills, root = catalogue(tmp_path, check_every_s=0.0), tmp_path / "skills"
    await skills.start()
    name = name_of(1)
    try:
        before = await skills.get(name)
        file = root / name / "1.1.0/code/main.py"
        file.write_text(file.read_text() + "# edited\n")
        after = await skills.get(name)
        assert after.digest != before.digest
        assert (after.root / "code/main.py").read_text().endswith("# edited\n")
        write_version(root / name, 1, 7)
        assert (await skills.get(name)).version == "1.7.0"
        write_version(root / name, 1, 8)
        assert (await skills.get(name, "1.8.0")).version == "1.8.0"
        shutil.rmtree(root / name / "1.8.0")
        with pytest.raises(SkillNotFound):
            await skills.get(name, "1.8.0")
        assert (await skills.get(name)).version == "1.7.0"
        write_version(root / name_of(77), 77, 0)
        assert (await skills.get(name_of(77))).version == "1.0.0"
        shutil.rmtree(root / name_of(77))
        with pytest.raises(SkillNotFound):
            await skills.get(name_of(77))
    finally:
        await skills.close()


async def test_lists_follow(large: Catalogue, tmp_path: Path) -> None:
    root = tmp_path / "skills"
    manifest = root / name_of(2) / "1.1.0/SKILL.md"
    manifest.write_text(manifest.read_text().replace("Counts", "Weighs"))
    write_version(root / name_of(3), 3, 5)
    write_version(root / name_of(9), 9, 0)
    shutil.rmtree(root / name_of(4))

    async def follows() -> bool:
        lines = {line.name: line for line in await large.page(None, 100)}
        told = lines[name_of(2)].description.startswith("Weighs")
        return told and name_of(9) in lines and name_of(4) not in lines and lines[name_of(3)].version == "1.5.0"

    await until(follows)


async def test_nobody_goes_round_when_nobody_asks(large: Catalogue) -> None:
    def rounds() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "catalogue rescan"]

    await large.page(None, 10)
    assert rounds()

    async def over() -> bool:
        return not rounds()

    await until(over)
