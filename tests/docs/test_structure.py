"""The shape of the source: rules of imports for every package, sizes of folders and files, names, commit subjects."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
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
RIDDLES = {
    *("box", "crowd", "door", "farewell", "feed", "forest", "guarded", "hearsay", "heavy", "held", "large", "meant"),
    *(
        "mend",
        "noticed",
        "parked",
        "patrol",
        "room",
        "shelf",
        "standing",
        "surroundings",
        "tenants",
        "trouble",
        "visit",
    ),
    *("warm_house", "words", "yard"),
}
"""Names that modules had and that said nothing about them."""
PROGRAMS = {"bundled"}
"""Skills that are shipped: programs of their own."""
SUBJECTS_SINCE = "3d352cefed3ef40631eb772e6b55514a17c442f2"
"""The last commit whose subject is longer than LONGEST_SUBJECT."""
LONGEST_SUBJECT = 72
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


def test_no_module_has_a_name_that_says_nothing() -> None:
    paths = [path.relative_to(PACKAGE) for path in sources("src")]
    named = {str(path) for path in paths if {*path.with_suffix("").parts} & RIDDLES and path.parts[0] not in PROGRAMS}
    assert named == set()


def test_commit_subjects_are_short() -> None:
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "merge-base", "--is-ancestor", SUBJECTS_SINCE, "HEAD"], capture_output=True).returncode:
        pytest.skip(f"this checkout's history does not reach back to {SUBJECTS_SINCE[:7]}")
    told = subprocess.run([*git, "log", "--format=%s", f"{SUBJECTS_SINCE}..HEAD"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert [subject for subject in told.stdout.splitlines() if len(subject) > LONGEST_SUBJECT] == []


def private_patches(tree: ast.AST) -> Iterator[str]:
    """Yields the private names of ours that ``monkeypatch`` replaces: a test replaces what has a public name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "monkeypatch.setattr":
            texts = [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant)]
            names = [str(text).rpartition(".")[2] for text in texts]
            yield from (name for name in names if name.startswith("_") and not name.endswith("__"))


def test_units_replace_no_private_name() -> None:
    found = {path: [*private_patches(ast.parse(path.read_text(encoding="utf-8")))] for path in sources("tests/unit")}
    assert {str(path): names for path, names in found.items() if names} == {}


def test_a_replaced_private_name_would_be_found() -> None:
    for call in ('monkeypatch.setattr(module, "_name", 1)', 'monkeypatch.setattr("skillyard.engine.x._name", 1)'):
        assert [*private_patches(ast.parse(call))] == ["_name"]


def test_check_installs_no_system_package() -> None:
    """That is for .ci/setup, which fails where one cannot be installed."""
    words = (ROOT / "check").read_text(encoding="utf-8").split()
    assert {"apt", "apt-get", "dnf", "apk", "sudo"}.isdisjoint(words)
    assert "apt-get" in (ROOT / ".ci" / "setup").read_text(encoding="utf-8")
    assert ".ci/setup" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
