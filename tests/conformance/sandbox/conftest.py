"""The conformance suite under pytest: a test that takes ``check`` and ``hold`` runs once for every check.

A module gives a ``ground`` fixture for its backend, of module scope, and one test::

    async def test_conformance(check: Check, ground: Ground, hold: Hold) -> None:
        await hold(check, ground)
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from skillyard.testing.sandbox_suite import CHECKS, Check, Ground, NotApplicable

if TYPE_CHECKING:
    from tests.conformance.sandbox.e2b_ground import StandIn

Hold = Callable[[Check, Ground], Awaitable[None]]
GUEST = frozenset({"benign", "commands", "content", "guest", "output", "poisoning", "programs", "randomness", "trees"})
"""Sections about what is the same wherever the guest's own code runs: walls, users and limits make no difference."""
OFTEN = frozenset({"test_exec_backend", "test_landlock_backend", "test_native_backend", "test_toy_backend"})
"""Modules that leave these sections to the long form where another one has them: `native` as root holds all of them,
and so does `landlock` as an ordinary user."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" in metafunc.fixturenames:
        metafunc.parametrize("check", CHECKS, ids=lambda check: check.id)


def pytest_itemcollected(item: pytest.Item) -> None:
    module, root = item.path.stem, os.geteuid() == 0
    if module not in OFTEN or module == ("test_native_backend" if root else "test_landlock_backend"):
        return
    callspec = getattr(item, "callspec", None)
    check = callspec and (callspec.params.get("check") or callspec.params.get("promise"))
    if isinstance(check, Check) and check.section in GUEST:
        item.add_marker("long")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """The stand-in for E2B, one for each module."""
    from tests.conformance.sandbox import e2b_ground  # which other backends do without

    with e2b_ground.stand_in(tmp_path_factory.mktemp("e2b")) as found:
        yield found


@pytest.fixture(scope="session")
def hold() -> Hold:
    """Holds a backend to a check; skips, with its reason, a promise that the backend does not make."""

    async def run(check: Check, ground: Ground) -> None:
        try:
            await check.run(ground)
        except NotApplicable as reason:
            pytest.skip(str(reason))

    return run
