"""The landlock backend passes the conformance suite, as root and as an ordinary user."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.sandbox.native.grounds.landlock.backend import LandlockBackend
from skillyard.testing.sandbox_suite import CHECKS, Check, Ground
from tests.conformance.sandbox.conftest import Hold
from tests.hosts.landlock.host import need

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
SLOW = frozenset(
    {
        "files-hostile_trees_are_removed",
        "endurance-a_hundred_in_a_row_leave_nothing",
        "disk-inodes",
        "disk-directories",
        "disk-hard-links",
    }
)
"""A disk's file system takes tens of seconds for what a tmpfs drops at once."""
VARIABLES = frozenset({"SKILLYARD_ROOT", "LD_LIBRARY_PATH"})


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    base = tmp_path_factory.mktemp("landlock")
    backend = LandlockBackend(base / "run")
    need(await backend.probe())
    yield Ground(
        backend,
        tmp_path_factory.mktemp("scratch"),
        (base,),
        _reopen(tmp_path_factory.mktemp("again")),
        variables=VARIABLES,
        keeps_bounding_set=os.geteuid() != 0,
    )
    await backend.close()


def _reopen(run_dir: Path) -> Callable[[], Awaitable[LandlockBackend]]:
    async def reopen() -> LandlockBackend:
        return LandlockBackend(run_dir)

    return reopen


def _promises() -> Iterator[Any]:
    for check in CHECKS:
        yield pytest.param(check, id=check.id, marks=pytest.mark.long if check.id in SLOW else ())


@pytest.mark.parametrize("promise", [*_promises()])
async def test_conformance(promise: Check, ground: Ground, hold: Hold) -> None:
    await hold(promise, ground)
