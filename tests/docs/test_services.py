"""The engine's services stay narrow, one module makes sandboxes, and a keeper is composed with its ground."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import skillyard

ROOT = Path(skillyard.__file__).parent
ENGINE = ROOT / "engine"
KEEPER, GROUNDS = ROOT / "sandbox/native/keeper", ROOT / "sandbox/native/grounds"
MOST_PARAMETERS = 11
"""Of a constructor in the engine. Fewer are better: lower the number then."""
WHOLE = {"App", "Ports", "Sections", "Settings"}
"""Everything at once; a service takes the ports, sections and services that it uses."""
MAY_TAKE_ALL = {"engine/app.py"}
MAKES_SANDBOXES = {"engine/lending.py"}
PARTS = {
    "blobs",
    "commands",
    "gateway",
    "jobs",
    "network",
    "packages",
    "runs",
    "secrets",
    "services",
    "sessions",
    "skills",
}


def trees(place: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(place.rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    listed = function.args
    return [*listed.posonlyargs, *listed.args, *listed.kwonlyargs]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def wide(tree: ast.Module) -> list[str]:
    """Returns the classes whose constructors take more than the rule allows."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for function in functions(node)
        if function.name == "__init__" and len(parameters(function)) - 1 > MOST_PARAMETERS
    ]


def takes_all(tree: ast.Module) -> list[str]:
    """Returns the functions and fields that are given everything at once."""
    given = [(f.name, arg.annotation) for f in functions(tree) for arg in parameters(f)]
    given += [
        (node.name, field.annotation)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    ]
    return [
        name
        for name, annotation in given
        if annotation is not None and {n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)} & WHOLE
    ]


def makes_sandboxes(tree: ast.Module) -> bool:
    """Returns whether ``create(spec, key)`` is called: in the engine only a sandbox's maker takes these two."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "create"
        and len(node.args) + len(node.keywords) == 2
        for node in ast.walk(tree)
    )


@pytest.fixture(scope="module")
def engine() -> dict[str, ast.Module]:
    return dict(trees(ENGINE))


def test_constructors_are_narrow(engine: dict[str, ast.Module]) -> None:
    assert {path: found for path, tree in engine.items() if (found := wide(tree))} == {}


def test_a_wide_constructor_would_be_found() -> None:
    listed = ", ".join(f"p{n}: int" for n in range(MOST_PARAMETERS + 1))
    assert wide(ast.parse(f"class Wide:\n    def __init__(self, {listed}) -> None: ...")) == ["Wide"]


def test_no_service_takes_everything(engine: dict[str, ast.Module]) -> None:
    found = {path: takes_all(tree) for path, tree in engine.items() if path not in MAY_TAKE_ALL}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text", ["class Part:\n    def __init__(self, config: Sections | None) -> None: ...", "class Part:\n    app: App"]
)
def test_a_service_that_takes_everything_would_be_found(text: str) -> None:
    assert takes_all(ast.parse(text))


def test_lending_alone_makes_sandboxes(engine: dict[str, ast.Module]) -> None:
    assert {path for path, tree in engine.items() if makes_sandboxes(tree)} == MAKES_SANDBOXES


@pytest.mark.parametrize("call", ["offer.backend.create(spec, key)", "backend.create(spec=a, key=b)"])
def test_another_maker_would_be_found(call: str) -> None:
    assert makes_sandboxes(ast.parse(call))


def test_each_part_has_a_service_and_its_methods() -> None:
    assert {path.name for path in ENGINE.iterdir() if any(path.glob("*.py"))} == PARTS
    assert [
        part for part in PARTS for name in ("service", "methods") if not (ENGINE / part / f"{name}.py").is_file()
    ] == []


def test_no_ground_inherits_from_the_keeper() -> None:
    """What differs between isolations is a ground's, which the keeper is given."""
    bases: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees(GROUNDS):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases[path] |= {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    of_keeper = {
        node.name
        for _, tree in trees(KEEPER)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases)
    }
    assert {path: found & of_keeper for path, found in bases.items() if found & of_keeper} == {}
    inherits = {
        node.name
        for _, tree in trees(KEEPER)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        if {ast.unparse(base).rpartition(".")[2] for base in node.bases} & of_keeper
    }
    assert inherits == set()
