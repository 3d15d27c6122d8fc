"""The shape of the source: every package is under a rule of imports, and folders and files have a largest size."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "skillyard"
MOST_MODULES = 15
MOST_LINES = 500
CROWDED: dict[str, int] = {}
"""Folders that have more than MOST_MODULES, and how many: this list only shrinks."""
KINDS = {"attacks", "conformance", "crash", "docs", "faces", "hosts", "unit"}
"""The folders of tests; CONTRIBUTING.md says what belongs into each."""
WITHOUT_RULE = {"_version"}
"""Holds one string."""


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def ruled(contracts: list[dict[str, object]]) -> set[str]:
    """Returns the modules that a contract names as those whose imports it limits."""
    found: set[str] = set()
    for contract in contracts:
        for key in ("source_modules", "layers", "modules"):
            listed = contract.get(key, [])
            assert isinstance(listed, list)
            found.update(name.strip(" ()") for entry in listed for name in entry.split("|"))
    return found


@pytest.fixture(scope="module")
def contracts() -> list[dict[str, object]]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: list[dict[str, object]] = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return found


def test_every_package_is_under_a_contract(contracts: list[dict[str, object]]) -> None:
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or any(path.rglob("*.py"))}
    public = {name for name in names if not name.startswith("__")}
    assert public - {name.removeprefix("skillyard.") for name in ruled(contracts)} == WITHOUT_RULE


def test_contracts_name_modules_that_exist(contracts: list[dict[str, object]]) -> None:
    named = {name for name in ruled(contracts) if name.startswith("skillyard.")}
    places = {name: ROOT / "src" / Path(*name.split(".")) for name in named}
    assert {name for name, at in places.items() if not at.is_dir() and not at.with_suffix(".py").is_file()} == set()


def test_folders_have_few_modules() -> None:
    modules = Counter(path.parent for path in sources("src") if path.name != "__init__.py")
    crowded = {str(at.relative_to(PACKAGE)): count for at, count in modules.items() if count > MOST_MODULES}
    assert crowded.keys() == CROWDED.keys(), "a folder outgrew the rule, or one that no longer does is still listed"
    assert {at: count for at, count in crowded.items() if count > CROWDED[at]} == {}


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources("src", "tests", "bench")}
    assert {str(path): lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def folders(place: Path) -> set[str]:
    return {path.name for path in place.iterdir() if path.is_dir() and any(path.rglob("*.py"))}


def test_tests_are_ordered_by_kind_and_units_as_the_source() -> None:
    assert folders(ROOT / "tests") == KINDS
    assert folders(ROOT / "tests" / "unit") <= folders(PACKAGE)
    parts = {
        f"{name}/{part}" for name in ("engine", "stores", "domain") for part in folders(ROOT / "tests/unit" / name)
    }
    assert {part for part in parts if not any(PACKAGE.glob(f"{part.replace('/', '/**/')}"))} == set()
