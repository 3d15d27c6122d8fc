"""One list names the backends."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import skillyard
from skillyard.domain.sandbox.guarantees import AUTO, GUARANTEES, WALLS, Nature
from skillyard.sandbox import registry

SRC = Path(skillyard.__file__).parent
_IMAGES = (SRC / "images.py", SRC / "faces/cli/commands/image.py")
_FACE = (SRC / "faces/e2b", SRC / "faces/serve.py", SRC / "faces/cli/commands/installation.py")
KNOWS = [
    Path(registry.__file__), SRC / "config", *(SRC / "sandbox" / name for name in registry.BACKENDS), *_IMAGES, *_FACE,
]  # fmt: skip
"""The registry, the sections of the settings, the backends (some are made of others), the commands for images, and the
face that answers programs for one of these providers."""
BASE = "native"
"""The backend that others, the gate and the benchmark take parts of; its name is a word of plain English, too."""


def sources() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each module that must not know the names of backends."""
    for path in sorted(SRC.rglob("*.py")):
        if not any(path.is_relative_to(place) for place in KNOWS):
            yield str(path.relative_to(SRC)), path.read_text(encoding="utf-8")


def test_nothing_else_compares_with_the_name_of_a_backend() -> None:
    names = set(registry.BACKENDS) - set(WALLS)
    found = [
        f"{path}:{node.lineno}"
        for path, text in sources()
        if any(name in text for name in names)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert found == []


@pytest.mark.parametrize("name", sorted(set(registry.BACKENDS) - {BASE}))
def test_nothing_else_speaks_of_a_backend(name: str) -> None:
    """Where a wall has the name of the backend, its package is meant."""
    word = rf"\bsandbox\W+{name}\b" if name in WALLS else rf"\b{name}\b"
    assert [path for path, text in sources() if re.search(word, text, re.IGNORECASE)] == []


def test_a_backend_is_without_what_has_a_name() -> None:
    natures = [registry.nature(name) for name in registry.BACKENDS]
    assert all(nature.without <= {*GUARANTEES, *WALLS} for nature in natures)
    ranks = [nature.rank for nature in natures if nature.rank is not None]
    assert ranks == sorted(set(ranks))
    assert all(nature.rank is None for nature in natures[len(ranks) :])


def test_builds_of_packages_have_a_backend_with_a_network() -> None:
    assert registry.nature(registry.best_with_network()).network


def test_a_backend_that_there_is_not_is_without_nothing() -> None:
    assert registry.nature("made-up") == Nature()
    assert registry.nature(AUTO) == Nature()
