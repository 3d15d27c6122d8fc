"""The native backend passes the conformance suite, as root and as an ordinary user.

Its walls are made by the compiled part, where that was built, and by Python in the long form.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.testing.sandbox_suite import Check, Ground
from skillyard.testing.twin_gate import TwinGate
from tests.conformance.sandbox.conftest import Hold

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
PATIENCE = float(os.environ.get("SKILLYARD_TEST_PATIENCE") or 1)
"""More than one for an emulated machine, as tests/hosts/vm boots it."""


@pytest.fixture(scope="module", params=["compiled", pytest.param("python", marks=pytest.mark.long)])
async def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    base = tmp_path_factory.mktemp("native")
    gate = TwinGate()
    backend = NativeBackend(base / "run", NativeSettings(compiled=request.param == "compiled"), plug=gate)
    reopen = _reopen(tmp_path_factory.mktemp("again"), gate)
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), (base,), reopen, patience=PATIENCE, gate=gate)
    await backend.close()
    await gate.close()


def _reopen(run_dir: Path, gate: TwinGate) -> Callable[[], Awaitable[NativeBackend]]:
    async def reopen() -> NativeBackend:
        return NativeBackend(run_dir, plug=gate)

    return reopen


async def test_conformance(check: Check, ground: Ground, hold: Hold) -> None:
    await hold(check, ground)
