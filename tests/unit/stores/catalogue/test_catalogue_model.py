"""Whatever happens on disk and to the index: what is served is what a catalogue without an index reads."""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.stores.skills.catalogue import Catalogue
from skillyard.stores.skills.catalogue.search import ScanLimits
from tests.examples import fewer
from tests.unit.stores.skills.skilldirs import action_files, agent_skill, write

FINE_CLOCK = tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= (6, 13)
"""Two writes never leave the same times there, so that what is just written counts as settled."""
PLACES = ("a", "b", "team/a", "team/b", "team/deep/c", "c/1.0.0", "c/2.0.0")
SHOWN = ("a", "team", "team/deep", "c")

Served = dict[str, Any]


@pytest.fixture(autouse=True)
def _settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    if FINE_CLOCK:
        monkeypatch.setattr("skillyard.stores.skills.catalogue.stamps.TICK_NS", 0)


class Disk:
    """Two roots, and everything that may happen in them. Each act is a number's choice among what is possible."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.roots = [home / "one", home / "two"]
        self.numbers = itertools.count(1000)
        for root in self.roots:
            root.mkdir()

    def bundle(self, choice: random.Random) -> None:
        """A new one, or another in its place."""
        root, place = choice.choice(self.roots), choice.choice(PLACES)
        name, version = choice.choice(["x.a", "x.b", "y"]), choice.choice(["1.0.0", "1.1.0", "2.0.0-rc.1"])
        write(root / place, action_files(name, version, f"def main(args): return {next(self.numbers)}\n"))

    def plain(self, choice: random.Random) -> None:
        agent_skill(choice.choice(self.roots) / "agents", choice.choice(["p", "q"]), body=f"{next(self.numbers)}\n")

    def broken(self, choice: random.Random) -> None:
        write(choice.choice(self.roots) / choice.choice(PLACES), {"skill.toml": "name = 1\n", "SKILL.md": "x"})

    def edited(self, choice: random.Random) -> None:
        """The same size, and the time of change set back."""
        for file in self._some(choice, "code/main.py"):
            before = file.stat()
            file.write_text(f"def main(args): return {next(self.numbers)}\n")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def replaced(self, choice: random.Random) -> None:
        """As editors save: another file in its place."""
        for file in self._some(choice, "SKILL.md"):
            text = f"---\nname: n\ndescription: About {next(self.numbers)}\n---\n"
            file.with_name("new").write_text(text)
            file.with_name("new").rename(file)

    def removed(self, choice: random.Random) -> None:
        for directory in self._some_directories(choice):
            shutil.rmtree(directory)

    def renamed(self, choice: random.Random) -> None:
        for directory in self._some_directories(choice):
            directory.rename(directory.with_name(choice.choice(["a", "m", "z"]) + str(next(self.numbers))))

    def unmarked(self, choice: random.Random) -> None:
        """What was a bundle is a folder, perhaps with a bundle in it."""
        for file in self._some(choice, "skill.toml"):
            file.unlink()
            (file.parent / "SKILL.md").unlink(missing_ok=True)
            if choice.random() < 0.5:
                agent_skill(file.parent, "inner", body=f"{next(self.numbers)}\n")

    def marked(self, choice: random.Random) -> None:
        """What was a folder is a bundle, whatever was in it."""
        folder = choice.choice(self.roots) / choice.choice(SHOWN)
        if folder.is_dir():
            write(folder, action_files("x.marked", "1.0.0", f"def main(args): return {next(self.numbers)}\n"))

    def linked(self, choice: random.Random) -> None:
        root = choice.choice(self.roots)
        root.mkdir(exist_ok=True)
        link = root / choice.choice(["0-first", "z-last"])
        link.unlink(missing_ok=True)
        link.symlink_to(choice.choice([root / "team", root / "a", self.roots[0], self.home / "outside"]))

    def unreadable(self, choice: random.Random) -> None:
        for file in self._some(choice, "SKILL.md"):
            (file.parent / "pipe").unlink(missing_ok=True)
            os.mkfifo(file.parent / "pipe")

    def root_gone(self, choice: random.Random) -> None:
        root = choice.choice(self.roots)
        if root.exists():
            root.rename(self.home / f"outside-{next(self.numbers)}")
        else:
            root.mkdir()

    def _some(self, choice: random.Random, name: str) -> list[Path]:
        found = sorted(path for root in self.roots for path in root.rglob(name) if path.is_file())
        return [choice.choice(found)] if found else []

    def _some_directories(self, choice: random.Random) -> list[Path]:
        found = (path for root in self.roots for path in root.rglob("*") if path.is_dir() and not path.is_symlink())
        return [choice.choice(every)] if (every := sorted(found)) else []


ACTS = ("bundle", "bundle", "bundle", "plain", "broken", "edited", "replaced", "removed", "renamed", "unmarked",
        "marked", "linked", "unreadable", "root_gone")  # fmt: skip
INDEXES = ("kept", "kept", "kept", "closed", "deleted", "cut", "garbled", "empty", "foreign", "other_roots",
           "other_roots")  # fmt: skip


class Pair:
    """A catalogue with an index that lives on, and one that reads everything anew."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.disk = Disk(home)
        self.index = home / "catalogue.db"
        self.time = 0.0
        self.roots = self.disk.roots
        self.kept = self._made(self.index)

    def _made(self, index: Path) -> Catalogue:
        snapshots = self.home / "snapshots"
        limits = ScanLimits(depth=4, directories=60)
        clock: Callable[[], float] = lambda: self.time  # noqa: E731
        return Catalogue(self.roots, snapshots, index=index, guide=None, monotonic=clock, limits=limits)

    async def shake(self, what: str, choice: random.Random) -> None:
        """Do something to the index."""
        if what == "kept":
            return
        await self.kept.close()
        if what == "other_roots":
            one, two = self.disk.roots
            self.roots = choice.choice([[one, two], [two, one], [one], [one, one / "team", two], [one / "team", one]])
        elif self.index.exists():
            self._spoil(what, choice)
        self.kept = self._made(self.index)

    def _spoil(self, what: str, choice: random.Random) -> None:
        size = self.index.stat().st_size
        match what:
            case "deleted":
                self.index.unlink()
            case "cut":
                os.truncate(self.index, choice.randrange(size + 1))
            case "empty":
                os.truncate(self.index, 0)
            case "foreign":
                self.index.write_text("not a database at all")
            case "garbled" if size:  # a piece of some page is anything at all
                with self.index.open("r+b") as file:
                    file.seek(choice.randrange(size))
                    file.write(choice.randbytes(choice.choice([1, 64, 4096])))

    async def agree(self) -> None:
        self.time += 1.0
        fresh = self._made(self.home / "fresh.db")
        try:
            assert await served(self.kept) == await served(fresh)
        finally:
            await fresh.close()
            (self.home / "fresh.db").unlink()


async def served(skills: Catalogue) -> Served:
    lines = await skills.page(None, 1000)
    names = [line.name for line in lines]
    found = {name: [(await skills.get(name, v)).digest for v in await skills.versions(name)] for name in names}
    roots = {name: [(await skills.get(name, v)).root.is_dir() for v in await skills.versions(name)] for name in names}
    latest = {name: (await skills.get(name)).version for name in names}
    problems = sorted(str(problem) for problem in await skills.problems())
    revision = await skills.revision()
    return {"lines": lines, "found": found, "roots": roots, "latest": latest, "problems": problems, "at": revision}


async def story(seed: int, acts: list[tuple[str, ...]], home: Path) -> None:
    choice = random.Random(seed)
    pair = Pair(home)
    try:
        for index, *changes in acts:
            for change in changes:
                getattr(pair.disk, change)(choice)
            await pair.shake(index, choice)
            await pair.agree()
    finally:
        await pair.kept.close()


STEPS = st.tuples(st.sampled_from(INDEXES), st.sampled_from(ACTS), st.sampled_from(ACTS), st.sampled_from(ACTS))


@fewer(2)
@given(seed=st.integers(0, 2**32), acts=st.lists(STEPS, min_size=2, max_size=8))
def test_an_index_says_what_the_disk_says(seed: int, acts: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="skillyard-model-") as directory:
        asyncio.run(story(seed, acts, Path(directory)))
