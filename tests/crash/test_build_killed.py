"""kill -9 at each step of storing an environment: the next start has it whole or not at all, and nothing beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash import build_dies_at
from tests.crash.build_dies_at import STEPS, WANTED, environments_in

pytestmark = pytest.mark.anyio
SCRIPT = Path(build_dies_at.__file__)
TREE = SCRIPT.parents[2]
SHORT = {("receive", "after"), ("facts", "after"), ("place", "after"), ("delete", "before")}


@pytest.mark.parametrize(
    ("step", "when"),
    [
        pytest.param(step, when, marks=() if (step, when) in SHORT else pytest.mark.long)
        for step in STEPS
        for when in ("before", "after")
    ],
)
async def test_killed(tmp_path: Path, step: str, when: str) -> None:
    directory = tmp_path / "environments"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TREE), str(TREE / "src")])}
    command = [sys.executable, str(SCRIPT), str(directory), step, when]
    died = await asyncio.to_thread(subprocess.run, command, env=env, timeout=60, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    environments = environments_in(directory)
    await environments.clean()
    built = await environments.store.list()
    names = {path.name for path in directory.iterdir()} - {"locks"} if directory.is_dir() else set()
    assert names == {name for one in built for name in (one.digest, f"{one.digest}.json")}
    assert len(built) == (
        (step, when) in {("place", "after"), ("lock", "before"), ("lock", "after"), ("forget", "before")}
    )
    found = await environments.of(WANTED, "somebody")
    assert found.distributions == {"alpha": "1.5.0", "beta": "1.5.0"}
    assert found.ref.packages is not None
    assert found.ref.packages.path is not None
    assert (found.ref.packages.path / "alpha" / "__init__.py").read_text() == "VERSION = '1.5.0'\n"
    await environments.close()
