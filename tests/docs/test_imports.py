"""Which module of ours imports which: no circle, also not for types, and the engine is built from outside alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import skillyard

ROOT = Path(skillyard.__file__).parent
TRANSFERS = {
    "skillyard.faces.http.blobs": {"skillyard.engine.blobs.service"},
    "skillyard.faces.http.skills": {"skillyard.engine.skills.publishing"},
}
"""The one service of the engine that uploads and downloads of each kind go through."""
BUILDERS = {"skillyard.runtime", "skillyard.wiring", "skillyard.faces.serve"}
"""May import what builds the services."""


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in ROOT.rglob("*.py") if "bundled" not in path.parts}


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yields the modules of ours that a file imports anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield below if below in MODULES else node.module


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return {
        name: set(_imported(ast.parse(path.read_text(encoding="utf-8")))) - {name} for name, path in MODULES.items()
    }


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """Returns the modules of one circle, if there is any."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_there_is_no_circle(imports: dict[str, set[str]]) -> None:
    assert circle_in(imports) == []


def test_a_circle_would_be_found(imports: dict[str, set[str]]) -> None:
    turned = {**imports, "skillyard.domain.errors": {"skillyard.engine.table"}}
    assert circle_in(turned)


def test_only_the_composition_root_knows_what_builds_the_services(imports: dict[str, set[str]]) -> None:
    assert {name for name, found in imports.items() if "skillyard.engine.app" in found} <= BUILDERS


def test_a_transfer_goes_through_one_service(imports: dict[str, set[str]]) -> None:
    found = {name: {used for used in imports[name] if used.startswith("skillyard.engine")} for name in TRANSFERS}
    assert found == TRANSFERS


def test_no_part_of_the_engine_knows_all_services(imports: dict[str, set[str]]) -> None:
    """Each is given what it needs; the table and what builds it stand above them."""
    parts = {name for name in imports if name.startswith("skillyard.engine.") and name.count(".") > 2}
    above = {"skillyard.engine.app", "skillyard.engine.table"}
    assert {name for name in parts if imports[name] & above} == set()
