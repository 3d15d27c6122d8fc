"""Control groups of sandboxes that another program makes: nothing of them stays open, and nothing is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skillyard.sandbox.bounds import Bounds, removed
from skillyard.sandbox.native.groups.groups import GroupLimits

pytestmark = pytest.mark.anyio


async def test_a_group_holds_no_descriptor_of_the_server(tmp_path: Path) -> None:
    """A server makes one for each sandbox, and would have no descriptor left after some thousand."""
    bounds = Bounds("tests", tmp_path)
    if why := bounds.lacking("memory"):
        pytest.skip(f"no group counts memory here: {why}")
    try:
        before = len(os.listdir("/proc/self/fd"))
        account = bounds.of("one")
        bounds.make("one", GroupLimits(64 << 20, 32, 1.0))
        assert len(os.listdir("/proc/self/fd")) == before
        directories = [Path(path) for path in account["directories"].values()]
        assert all(path.is_dir() for path in directories)
        await removed(account)
        assert not any(path.exists() for path in directories)
    finally:
        bounds.close()
