"""Every known third-party skill is valid, listed, described and read, and its scripts are found."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from skillyard.bundled import EXAMPLES
from skillyard.config.settings import load_settings
from skillyard.runtime import Runtime
from skillyard.stores.skills.catalogue.search import ScanLimits, walk
from skillyard.stores.skills.review import review_source
from skillyard.stores.skills.validation.bundle import validate
from tests.conformance.wild.conftest import Open
from tests.conformance.wild.skills import checkouts, skills_of
from tests.unit.domain.review.corpus import ReaderHere

pytestmark = pytest.mark.anyio
BUNDLES = [path for checkout in checkouts() for path in skills_of(checkout)]

every = pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.name)


@every
def test_strictly_valid(path: Path) -> None:
    assert [str(finding) for finding in validate(path, "strict") if finding.level == "error"] == []


@every
async def test_a_review_says_what_its_scripts_import(path: Path) -> None:
    found = await review_source(path, ReaderHere())
    assert found["name"] == path.name
    scripts = {str(script.relative_to(path)) for script in path.rglob("*.py")}
    assert bool(found["imports"]["standard"]) == any((path / script).stat().st_size for script in scripts)


@every
async def test_the_three_tiers(path: Path, wild: Open) -> None:
    checkout = next(c.name for c in checkouts() if path.is_relative_to(c))
    async with wild(checkout) as runtime:
        rows = (await runtime.list_skills(detail="summary"))["skills"]
        row = next(row for row in rows if row["name"] == path.name)
        assert (row["kind"], row["format"]) == ("instruction", "agent-skills")
        assert 20 < len(row["description"]) <= 1024
        full = (await runtime.describe_skill(path.name, detail="full"))["skill"]
        assert full["directory"] == f"/skills/{path.name}"
        assert full["skill_md"] == (path / "SKILL.md").read_text()
        assert {file["path"] for file in full["files"]} == files_of(path)
        for file in full["files"][:5]:
            assert await size_of(runtime, path.name, file["path"]) == (path / file["path"]).stat().st_size


def files_of(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


async def size_of(runtime: Any, name: str, file: str) -> int:
    return int((await runtime.read_skill_file(name, file, max_bytes=1))["size_bytes"])


@every
def test_its_python_is_python(path: Path) -> None:
    for script in path.rglob("*.py"):
        ast.parse(script.read_bytes(), str(script))


@pytest.mark.parametrize("checkout", checkouts(), ids=lambda path: path.name)
async def test_they_are_found_where_their_repository_has_them(checkout: Path) -> None:
    """Only names of directories are read here, whatever else the checkout holds."""
    [tree] = walk([str(checkout)], ScanLimits(), [])
    assert set(map(str, skills_of(checkout))) <= {path for path, _ in tree.bundles()}


async def test_nothing_of_a_checkout_is_a_problem(shelf: dict[str, Path], wild: Open) -> None:
    for name, home in shelf.items():
        async with wild(name) as runtime:
            assert [problem for problem in await runtime.app.ports.skills.problems() if problem.level == "error"] == []
            served = {line.name for line in await runtime.app.ports.skills.page(None, 1000)}
            assert {skill.name for skill in home.iterdir()} < served


async def test_two_of_one_name_are_told_apart(shelf: dict[str, Path], tmp_path: Path) -> None:
    """The first directory's is served, and whoever looks is told of the other."""
    homes = [home for home in shelf.values() if (home / "skill-creator").exists()]
    if len(homes) < 2:
        pytest.skip("only one of the checkouts has a skill-creator")
    settings = load_settings(data_dir=tmp_path / "data", skills_dirs=[*homes, EXAMPLES])
    async with Runtime(settings=settings) as runtime:
        problems = [problem for problem in await runtime.app.ports.skills.problems() if problem.level == "error"]
        assert [problem.rule for problem in problems] == ["duplicate-version"]
        assert str(homes[1]) in problems[0].file
        served = (await runtime.describe_skill("skill-creator", detail="full"))["skill"]
        assert served["skill_md"] == (homes[0] / "skill-creator/SKILL.md").read_text()
        assert "examples.gif.animate" in {line.name for line in await runtime.app.ports.skills.page(None, 1000)}
