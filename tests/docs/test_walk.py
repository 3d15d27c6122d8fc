"""How many modules a warm run passes: what a reader has to know to follow one."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.runtime import Runtime
from tests.docs.walk import walk_of_run

pytestmark = pytest.mark.anyio

MODULES, RETURNS = 40, 72
"""As many as were reached. Fewer are better: lower the numbers then."""
ROUNDS = 60
"""On a busy host a run lasts longer than its reader waits for the end, and takes more steps: another round may not."""


async def test_a_warm_run_passes_few_modules(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "data") as runtime:
        offer = runtime.app.backends.default
        if offer is None or offer.name != "native":
            pytest.skip("the native isolation does not stand here")
        for _ in range(ROUNDS):
            walk = await walk_of_run(runtime)
            if len(walk.modules) <= MODULES and walk.returns <= RETURNS:
                break
    assert len(walk.modules) <= MODULES, walk.modules
    assert walk.returns <= RETURNS, walk.steps
