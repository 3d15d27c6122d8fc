"""What the operator has imported ahead behind Landlock: what cannot be is left out, as with the native backend."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from skillyard.domain.isolation import waived
from skillyard.sandbox.landlock.backend import LandlockBackend
from skillyard.sandbox.landlock.options import LandlockOptions
from tests.landlock.host import need
from tests.sandbox.preloading import Yard, write_packages

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def yard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    base = tmp_path_factory.mktemp("preloading")
    backend = LandlockBackend(base / "run", LandlockOptions(ready=0, preload_mb=96, preload_s=1.5))
    need(await backend.probe())
    yield Yard(backend, write_packages(base / "packages"), waived("landlock"))
    await backend.close()


async def test_modules_at_fault_are_left_out(yard: Yard) -> None:
    assert await yard.imported("good", "threads", "leaves", "hangs", "claims", "fine") == ["good", "fine"]


async def test_nothing_is_made_ready_but_what_the_operator_names(yard: Yard) -> None:
    assert await yard.backend.prepare(yard.spec("good")) is None


async def test_a_zygote_that_was_spoiled_makes_no_sandbox_that_is_used(yard: Yard) -> None:
    """An ordinary user's has no capability to keep."""
    assert await yard.imported("forgives") == ([] if os.geteuid() == 0 else ["forgives"])
