"""kill -9 of the server at each step of a detached run: the next one brings it to its end."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from skillyard import Runtime
from tests.crash import dies_at
from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.store import contradictions

pytestmark = pytest.mark.anyio
SCRIPT = Path(dies_at.__file__)
SHORT = [
    ("backend", "create", "while"),
    ("blobs", "create", "while"),
    ("backend", "destroy", "while"),
]
STEPS = [
    *SHORT,
    ("records", "insert", "after"),
    ("observer", "-", "started"),
    ("records", "change", "before"),
    ("records", "change", "after"),
    ("records", "insert", "while"),
    ("backend", "create", "after"),
    ("blobs", "create", "before"),
    ("blobs", "create", "after"),
    ("backend", "destroy", "before"),
    ("backend", "destroy", "after"),
    ("records", "finish", "before"),
    ("records", "finish", "while"),
    ("records", "finish", "after"),
]


@pytest.mark.parametrize(
    "step", [pytest.param(s, id="-".join(s), marks=() if s in SHORT else pytest.mark.long) for s in STEPS]
)
async def test_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[str, str, str]) -> None:
    monkeypatch.setenv("SKILLYARD_NATIVE__READY", "0")
    data_dir = tmp_path / "data"
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), str(data_dir), *step, "detach", stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert (process.returncode, said) == (-signal.SIGKILL, b"")
    footprint = Footprint(data_dir)
    async with Runtime(data_dir) as runtime:
        found = (await runtime.call("runs.list"))["runs"]
        if not found:
            assert step == ("records", "insert", "while"), "it was promised"
            return
        [run] = found
        again = await runtime.run_code(dies_at.CODE, idempotency_key=dies_at.KEY)
        assert (again.run_id, again.status, again.output) == (run["run_id"], "completed", {"done": True})
        assert len(again.output_blobs) == 3
        blobs = (await runtime.call("blobs.list"))["blobs"]
        assert {blob["blob_id"] for blob in blobs} == {*again.output_blobs, again.logs_blob}
        await asyncio.to_thread(idle, footprint)
        until(lambda: not contradictions(data_dir), 10, f"the store agrees with itself: {contradictions(data_dir)}")
    gone(footprint)
