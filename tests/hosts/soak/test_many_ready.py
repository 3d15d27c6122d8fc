"""Many sandboxes that wait at once: each costs little memory of its own, all can be used, none is left."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.sandbox.spec import Guest, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.native.backend import NativeBackend
from tests.crash.leftovers import Footprint, Snapshot, gone
from tests.hosts.soak.weigh import MIB, unshared

pytestmark = pytest.mark.anyio
UNSHARED_BYTES = 4 * MIB
SPEC = SandboxSpec(Limits(memory_mb=64, disk_mb=16, pids=32), single=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [32, pytest.param(1000, marks=pytest.mark.long)])
async def test_ready_at_once(tmp_path: Path, count: int) -> None:
    footprint = Footprint(tmp_path)
    backend = NativeBackend(tmp_path / "run", NativeSettings(ready=count, tenant_pids=512 + 8 * count))
    try:
        started = time.monotonic()
        await backend.prepare(SPEC)
        await _until_ready(backend, count)
        print(f"\n{count} ready after {time.monotonic() - started:.1f} s")
        costs = _unshared_by_sandbox(footprint.look())
        print(
            f"unshared memory of one: median {statistics.median(costs) / MIB:.2f} MiB, "
            f"most {max(costs) / MIB:.2f} MiB; of all {sum(costs) / MIB:.0f} MiB"
        )
        assert len(costs) >= count
        assert max(costs) <= UNSHARED_BYTES
        await _all_work(backend, count)
    finally:
        await backend.close()
    gone(footprint, 30)


async def _until_ready(backend: NativeBackend, count: int) -> None:
    async with asyncio.timeout(30 + count / 10):
        while (await backend.stats())["ready"] < count:
            await asyncio.sleep(0.05)


def _unshared_by_sandbox(now: Snapshot) -> list[int]:
    """Bytes of each sandbox's init and all below it."""
    inside = {process.pid: process for process in now.sandboxed}
    costs: dict[int, int] = {}
    for process in inside.values():
        top = process
        while top.parent in inside:
            top = inside[top.parent]
        costs[top.pid] = costs.get(top.pid, 0) + unshared(process.pid)
    return list(costs.values())


async def _all_work(backend: NativeBackend, count: int) -> None:
    """All are lent at once, then each runs something."""
    started = time.monotonic()
    sandboxes = await asyncio.gather(*(backend.create(SPEC, f"run-{number}") for number in range(count)))
    assert len({sandbox.handle for sandbox in sandboxes}) == count
    request = {"code": "def main(args):\n    return args\n", "entrypoint": "main", "args": {}}
    processes = await asyncio.gather(*(sandbox.start(Guest(request), id="work") for sandbox in sandboxes))
    endings = await asyncio.gather(*(process.wait() for process in processes))
    assert [ending.outcome for ending in endings] == [Outcome.EXIT] * count
    await asyncio.gather(*(backend.destroy(sandbox.handle) for sandbox in sandboxes))
    print(f"all {count} lent, run and destroyed in {time.monotonic() - started:.1f} s")
