"""A clone that hangs while it shares the memory of its zygote, which stands still until then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds import root
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import code

pytestmark = [pytest.mark.anyio, pytest.mark.ordinary]
BOUND_S = 60
CLONE_S = 3
_KEEPER = (
    "skillyard.sandbox.native.grounds.namespaces import form, table; import os; "
    "from skillyard.sandbox.native.keeper.zygotes import process; process.CLONE_S = {seconds}; "
    "from skillyard.sandbox.native.linux.syscall_numbers import NUMBERS; "
    "hangs = form.encode(form.Step('hangs', NUMBERS['ppoll'], (0, 0, 0, 0, 0))); real = table.order; "
    "asked = lambda: os.path.exists({flag!r}) and not os.unlink({flag!r}); "
    "table.order = lambda *of: (hangs if asked() else b'') + real(*of); from {program}"
)
"""Its first step waits for nothing, once for each time that the flag is there."""


class Hanging(NativeBackend):
    """Its keeper gives one clone a step that never ends, when it finds the flag."""

    def __init__(self, home: Path) -> None:
        super().__init__(home / "run", NativeSettings(ready=0))
        self.flag = home / "hangs"
        told = {"seconds": CLONE_S, "flag": str(self.flag), "program": NativeBackend.program}
        self.program = _KEEPER.format(**told)


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    if root.compiled_part() is None:
        pytest.skip("the compiled part was not built here: python hatch_build.py")
    backend = Hanging(tmp_path)
    if not (found := await backend.probe()).ready:
        pytest.skip(found.facts["why"])
    yield Ground(backend, tmp_path)
    await backend.close()


def held(home: Path) -> set[int]:
    """Returns the pids of a keeper's zygotes and sandboxes."""
    found: set[int] = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if str(home).encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                found.update(map(int, Path(f"/proc/{entry}/task/{entry}/children").read_text().split()))
    return found


async def test_it_ends_with_its_zygote_and_another_makes_the_sandbox(ground: Ground) -> None:
    backend = ground.backend
    assert isinstance(backend, Hanging)
    program = code("def main(args): return {'sum': 3}")
    assert (await ground.run(program, single=True)).ending.outcome is Outcome.EXIT
    before = held(ground.scratch)
    backend.flag.touch()
    making = asyncio.create_task(ground.run(program, single=True))
    async with asyncio.timeout(BOUND_S):
        while backend.flag.exists() or not (hung := held(ground.scratch) - before):
            await asyncio.sleep(0.01)
        assert b'"sum":3' in (await making).channel
        while hung & held(ground.scratch):
            await asyncio.sleep(0.05)
    assert before - held(ground.scratch), "the zygote that was held is gone"
