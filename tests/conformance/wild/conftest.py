"""Third-party skills in a runtime of their own, when somebody says where they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.settings import load_settings
from skillyard.runtime import Runtime
from tests.conformance.wild.skills import VARIABLE, checkouts, skills_of

Open = Callable[..., AbstractAsyncContextManager[Runtime]]


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each checkout that has known skills a directory with links to those, and to nothing else."""
    if not checkouts():
        pytest.skip(f"{VARIABLE} names no directory with checkouts of third-party skills")
    shelves = {}
    for checkout in checkouts():
        if found := skills_of(checkout):
            shelves[checkout.name] = home = tmp_path_factory.mktemp(checkout.name)
            for skill in found:
                (home / skill.name).symlink_to(skill)
    if not shelves:
        pytest.skip(f"there is none of the known skills in the directory that {VARIABLE} names")
    return shelves


@pytest.fixture
def wild(shelf: dict[str, Path], tmp_path: Path) -> Open:
    """Opens a runtime over one checkout; further settings by name."""

    @asynccontextmanager
    async def opened(name: str, **settings: Any) -> AsyncIterator[Runtime]:
        if name not in shelf:
            pytest.skip(f"the directory that {VARIABLE} names has no checkout {name!r} with known skills")
        given = load_settings(data_dir=tmp_path / "data", skills_dirs=[shelf[name]], **settings)
        async with Runtime(settings=given) as runtime:
            yield runtime

    return opened
