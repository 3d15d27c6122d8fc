"""The conformance suite under pytest: a test that takes ``check`` and ``hold`` runs once for every check.

A module gives a ``ground`` fixture for its backend, of module scope, and one test::

    async def test_conformance(check: Check, ground: Ground, hold: Hold) -> None:
        await hold(check, ground)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from skillyard.testing.sandbox_suite import CHECKS, Check, Ground, NotApplicable

Hold = Callable[[Check, Ground], Awaitable[None]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" in metafunc.fixturenames:
        metafunc.parametrize("check", CHECKS, ids=lambda check: check.id)


@pytest.fixture(scope="session")
def hold() -> Hold:
    """Holds a backend to a check; skips, with its reason, a promise that the backend does not make."""

    async def run(check: Check, ground: Ground) -> None:
        try:
            await check.run(ground)
        except NotApplicable as reason:
            pytest.skip(str(reason))

    return run
