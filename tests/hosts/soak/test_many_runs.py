"""Many runs in a row on one server: it is as heavy afterwards as before."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from skillyard.client.run import Run
from skillyard.sandbox.native.groups.spares import KEPT_S
from tests.crash.leftovers import Footprint, gone, until
from tests.crash.server import Callers, Server
from tests.crash.store import contradictions
from tests.hosts.soak.weigh import MIB, Weight, weigh

pytestmark = pytest.mark.anyio

PLAIN = "def main(args):\n    return {'n': args['n']}\n"
KINDS: tuple[tuple[str, str], ...] = (
    ("completed", "def main(args):\n    print('x' * 300_000)\n    return {'n': args['n']}\n"),
    (
        "completed",
        "from runtime import blobs\ndef main(args):\n    blobs.write_text('one')\n    return {'n': args['n']}\n",
    ),
    ("completed", "import os\ndef main(args):\n    os.system('true')\n    return {'n': args['n']}\n"),
    ("failed", "def main(args):\n    raise ValueError(args['n'])\n"),
    ("failed", "import os, signal\ndef main(args):\n    os.kill(os.getpid(), signal.SIGKILL)\n"),
    ("failed", "def main(args):\n    return {'n': bytes(args['n'])}\n"),
)
"""Each turn of twenty has one of these; the others are plain."""

GROWTH = {
    "processes": 0,
    "cgroups": 0,
    "mounts": 0,
    "files": 0,
    "server_descriptors": 2,
    "server_threads": 4,
    "keeper_descriptors": 6,  # a control group that serves again keeps those by which processes join it
    "server_bytes": 8 * MIB,
    "keeper_bytes": 2 * MIB,
    "zygote_bytes": 1 * MIB,
}
"""What may be more after the runs than after the warm-up; memory has a bound because allocators keep some."""
WAL_BYTES = 32 * MIB
BYTES_A_RECORD = 8 * 1024


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("count", [120, pytest.param(100_000, marks=pytest.mark.long)])
async def test_nothing_grows(tmp_path: Path, count: int) -> None:
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Server(data_dir, ready=4, SKILLYARD_SERVER__LOG_LEVEL="warning") as server:
        async with server.callers() as callers:
            # At least so many that each control group served twice: from then on its descriptors stay open.
            await many(callers, max(count // 10, 100), 8)
            before = rested(footprint, server)
            print(f"\nbefore: {before}")
            for share, at_once in ((2, 1), (3, 2), (5, 8)):
                seconds = await many(callers, count * share // 10, at_once)
                print(f"{at_once} at once: {count * share // 10 / seconds:.0f} runs/s over HTTP")
            after = rested(footprint, server)
            print(f"after:  {after}")
        assert server.stop() == 0, server.log()
    gone(footprint)
    assert contradictions(data_dir) == []
    assert grown(before, after, count) == []


async def many(callers: Callers, count: int, at_once: int) -> float:
    """Seconds for ``count`` runs, ``at_once`` of them at a time; each ends as it must."""
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await _one(callers, number)

    started = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    return time.monotonic() - started


async def _one(callers: Callers, number: int) -> None:
    turn, place = divmod(number, 20)
    status, code = KINDS[turn % len(KINDS)] if place == 0 else ("completed", PLAIN)
    run: Run | None = await callers.run(code, {"n": number})
    assert run is not None
    assert run.status == status, dict(run)


def rested(footprint: Footprint, server: Server) -> Weight:
    """When the sandboxes that wait are made again and the groups of the used ones are gone."""
    seen: list[Weight] = []
    since = time.monotonic()

    def steady() -> bool:
        nonlocal since
        seen.append(weigh(footprint, server.pid, server.data_dir))
        if len(seen) < 2 or _counts(seen[-1]) != _counts(seen[-2]):
            since = time.monotonic()
        return time.monotonic() - since > KEPT_S + 1

    until(steady, 60, "the server comes to rest")
    return seen[-1]


def _counts(weight: Weight) -> tuple[Any, ...]:
    return (weight.processes, weight.cgroups, weight.mounts, weight.files, weight.keeper_descriptors)


def grown(before: Weight, after: Weight, count: int) -> list[str]:
    more = {name: getattr(after, name) - getattr(before, name) for name in GROWTH}
    found = [f"{name} grew by {more[name]}, at most {most}" for name, most in GROWTH.items() if more[name] > most]
    if after.wal_bytes > WAL_BYTES:
        found.append(f"the write-ahead log has {after.wal_bytes} bytes, at most {WAL_BYTES}")
    if after.database_bytes - before.database_bytes > count * BYTES_A_RECORD:
        found.append(f"the database grew by {after.database_bytes - before.database_bytes} bytes in {count} runs")
    return found
