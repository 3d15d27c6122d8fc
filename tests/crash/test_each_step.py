"""kill -9 at each step of a run: the record that the next process finds is true, and nothing else is left."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from skillyard import Runtime
from tests.crash import dies_at
from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.store import contradictions

pytestmark = pytest.mark.anyio
SCRIPT = Path(dies_at.__file__)
NOTHING, LOST, DONE = "no record", "lost", "exit"

SHORT = [
    ("records", "insert", "after", {LOST}),
    ("backend", "launch", "while", {LOST}),
    ("observer", "-", "started", {LOST}),
    ("blobs", "create", "while", {LOST}),
    ("backend", "destroy", "while", {LOST}),
    ("records", "finish", "before", {LOST}),
    ("records", "finish", "after", {DONE}),
]
STEPS = [
    *SHORT,
    ("records", "insert", "before", {NOTHING}),
    ("records", "insert", "while", {NOTHING, LOST}),
    ("backend", "launch", "after", {LOST}),
    ("blobs", "create", "before", {LOST}),
    ("blobs", "create", "after", {LOST}),
    ("backend", "destroy", "before", {LOST}),
    ("backend", "destroy", "after", {LOST}),
    ("records", "finish", "while", {LOST, DONE}),
]


def _case(step: tuple[str, str, str, set[str]]) -> Any:
    return pytest.param(*step, id="-".join(step[:3]), marks=() if step in SHORT else pytest.mark.long)


@pytest.mark.parametrize(("port", "method", "when", "expected"), [_case(step) for step in STEPS])
async def test_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: str, method: str, when: str, expected: set[str]
) -> None:
    monkeypatch.setenv("SKILLYARD_NATIVE__READY", "0")
    data_dir = tmp_path / "data"
    await _dies(data_dir, port, method, when)
    footprint = Footprint(data_dir)
    async with Runtime(data_dir) as runtime:
        runs = (await runtime.call("runs.list"))["runs"]
        outcome = runs[0]["outcome"] if runs else NOTHING
        assert outcome in expected, runs
        await asyncio.to_thread(idle, footprint)  # the loop goes on sweeping
        until(lambda: not contradictions(data_dir), 10, f"the store agrees with itself: {contradictions(data_dir)}")
        await _asked_again(runtime, runs)
    gone(footprint)


async def _dies(data_dir: Path, *step: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), str(data_dir), *step, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert (process.returncode, said) == (-signal.SIGKILL, b"")


async def _asked_again(runtime: Runtime, runs: list[dict[str, Any]]) -> None:
    """The same call with the same key gets the first run when that was recorded, else a run of its own."""
    again = await runtime.run_code(dies_at.CODE, idempotency_key=dies_at.KEY)
    if runs:
        assert (again.run_id, again.status) == (runs[0]["run_id"], runs[0]["status"])
    else:
        assert again.ok, again
