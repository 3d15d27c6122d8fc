"""A program's deadline ends processes that go on as others, also while another program of its sandbox runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.domain.work.record import Outcome
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.landlock.backend import LandlockBackend
from skillyard.testing.attacks.processes import HOPS
from skillyard.testing.sandbox_suite.ground import Ground, done, python, run, start, until
from skillyard.testing.sandbox_suite.programs import WAIT
from tests.hosts.landlock.host import TOO_OLD

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
_LOOK = "import time\nfound = [open('beats', 'rb').read(), time.sleep(0.3), open('beats', 'rb').read()]"
_TRIES = 4
"""Without the stop of everybody about half of them got away."""


@pytest.mark.parametrize("kind", [NativeBackend, LandlockBackend])
async def test_they_end_and_the_other_program_goes_on(kind: type[NativeBackend], tmp_path: Path) -> None:
    if TOO_OLD and kind is LandlockBackend:
        pytest.skip("this kernel's Landlock is too old for the level")
    backend = kind(tmp_path / "run")
    try:
        await _hold(Ground(backend, tmp_path))
    finally:
        await backend.close()


async def _hold(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        beside = await start(sandbox, python("print('ready', flush=True)\nprint(input())", stdin=True))
        await until(beside, b"ready")
        for _ in range(_TRIES):
            process = await start(sandbox, python(f"{HOPS}\nbegin('below', 'beats')\n{WAIT}"), timeout_ms=2000)
            await until(process, b"ready")
            assert (await process.wait()).outcome is Outcome.TIMEOUT
            assert (await run(sandbox, python(f"{_LOOK}\nprint(found[0] == found[2])"))).stdout == b"True\n"
        await beside.send(b"still here\n")
        assert (await done(beside)).stdout == b"ready\nstill here\n"
