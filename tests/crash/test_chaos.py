"""kill -9 of everything, at random, under load: no record lies, no blob is lost, nothing is left behind.

SKILLYARD_CHAOS_SEED repeats a schedule of the long form, SKILLYARD_CHAOS_KILLS changes its length.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.chaos import Chaos
from tests.crash.witness import Witness

pytestmark = pytest.mark.anyio
SEED = 20


@pytest.mark.timeout(600)
async def test_a_few_dozen_kills(tmp_path: Path) -> None:
    with Witness(tmp_path) as witness:
        chaos = Chaos(tmp_path / "data", SEED, witness)
        await chaos.run(30, each_server=12)
    print(chaos.report())


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_a_thousand_kills(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    seed = int(os.environ.get("SKILLYARD_CHAOS_SEED") or secrets.randbelow(1 << 32))
    witness = Witness(tmp_path)
    chaos = Chaos(tmp_path / "data", seed, witness)
    try:
        with witness:
            await chaos.run(int(os.environ.get("SKILLYARD_CHAOS_KILLS") or 1000), each_server=10)
    finally:
        record_property("chaos", chaos.report())
        print(chaos.report())
