"""What the records of native runs tell: their own use of a control group, and who made their walls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.settings import load_settings
from skillyard.runtime import Runtime
from skillyard.sandbox.native.grounds import root
from skillyard.sandbox.native.groups.spares import REST_S

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
HOLD = "def main(args):\n    held = bytearray(args['mb'] << 20)\n    held[::4096] = b'x' * len(held[::4096])\n"
KILLED = """
import os

def main(args):
    if os.fork() == 0:
        held = bytearray(1 << 30)
        held[::4096] = b"x" * len(held[::4096])
    os.wait()
    raise ValueError("its child ended")
"""


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(settings=load_settings(data_dir=tmp_path / "data", native={"ready": 0})) as runtime:
        yield runtime


async def _counted(runtime: Runtime) -> None:
    first = await _run(runtime, "def main(args): return 1", {})
    if first["usage"]["source"] != "cgroup":
        pytest.skip("no control group counts memory here")


async def _run(runtime: Runtime, code: str, args: dict[str, Any]) -> dict[str, Any]:
    """Runs code when groups of earlier runs have rested."""
    await asyncio.sleep(REST_S * 1.5)
    return dict(await runtime.run_code(code, args))


async def test_a_small_run_after_a_large_one_has_its_own_peak(runtime: Runtime) -> None:
    await _counted(runtime)
    assert (await _run(runtime, HOLD, {"mb": 150}))["usage"]["peak_memory_bytes"] > 150 << 20
    peaks = [(await _run(runtime, HOLD, {"mb": 1}))["usage"]["peak_memory_bytes"] for _ in range(3)]
    assert max(peaks) < 100 << 20, peaks


async def test_a_limit_that_one_run_met_is_told_of_no_other(runtime: Runtime) -> None:
    await _counted(runtime)
    assert (await _run(runtime, KILLED, {}))["outcome"] == "memory"
    for _ in range(3):
        assert (await _run(runtime, "def main(args): raise ValueError('plain')", {}))["outcome"] == "exit"


@pytest.mark.parametrize("compiled", [True, False])
async def test_a_record_tells_which_part_made_the_walls(tmp_path: Path, compiled: bool) -> None:
    """A run with packages that were imported ahead never has those of the compiled part."""
    own = {"native": {"ready": 0, "compiled": compiled}}
    async with Runtime(settings=load_settings(data_dir=tmp_path / "data", **own)) as runtime:
        run = await runtime.run_code("def main(args): return 1", {}, isolation="native")
        evidence = (await runtime.show_run(run["run_id"]))["run"]["guarantees"]["kernel_surface"]["evidence"]
    made = "C" if compiled and root.compiled_part() is not None else "Python"
    assert evidence[-1] == f"walls made in {made}"
