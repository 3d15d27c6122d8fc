"""Snapshots of content at an OpenSandbox server: when one is made, and how long it serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Mount, SandboxSpec
from skillyard.sandbox.opensandbox.kept import KeptContent
from skillyard.sandbox.opensandbox.server import Remote, Server, Snapshot

pytestmark = pytest.mark.anyio
HOME, DAY_S = "0" * 32, 24 * 3600.0


class Snapshots:
    """A server that lists snapshots."""

    def __init__(self) -> None:
        self.there: dict[str, Snapshot] = {}
        self.open = asyncio.Event()
        self.at_work = self.most = self.made = 0

    async def list(self, metadata: Mapping[str, str]) -> AsyncIterator[Remote]:
        none: tuple[Remote, ...] = ()
        for one in none:
            yield one

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        for one in tuple(self.there.values()):
            yield one

    async def forget(self, id: str) -> None:
        del self.there[id]

    async def fill(self, spec: SandboxSpec, image: str, name: str) -> str:
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        await self.open.wait()
        self.at_work -= 1
        self.made += 1
        id = f"snapshot-{self.made}"
        self.there[id] = Snapshot(id, name, "ready", time.time())
        return id


def spec(place: Path, digest: str) -> SandboxSpec:
    (place / digest).write_text(digest)
    return SandboxSpec(mounts=(Mount(Content(digest, place / digest), "/skills/s"),))


def kept_at(server: Snapshots) -> KeptContent:
    return KeptContent(cast(Server, server), lambda: HOME, 64 << 20, server.fill)


async def settled(kept: KeptContent) -> None:
    async with asyncio.timeout(60):
        while kept._making:
            await asyncio.gather(*kept._making.values())


async def test_one_is_made_at_a_time(tmp_path: Path) -> None:
    """Each takes a sandbox beside those of runs, which nobody counts, and callers choose contents without end."""
    server = Snapshots()
    kept = kept_at(server)
    specs = [spec(tmp_path, str(number)) for number in range(8)]
    for one in specs * 3:
        assert await kept.find(one, "image") is None
    async with asyncio.timeout(60):
        while not server.at_work:
            await asyncio.sleep(0)
    server.open.set()
    await settled(kept)
    assert (server.most, len(server.there)) == (1, 1)
    for one in specs:
        await kept.find(one, "image")
        await settled(kept)
    assert (server.most, len(server.there)) == (1, len(specs)), "the others are made when they are wanted again"


@pytest.mark.parametrize(("age_s", "serves"), [(DAY_S - 60, True), (DAY_S + 1, False)])
async def test_one_serves_for_a_day(tmp_path: Path, age_s: float, serves: bool) -> None:
    """The name of its image may mean a newer one by then."""
    server, wanted = Snapshots(), spec(tmp_path, "1")
    server.open.set()
    before = kept_at(server)
    for _ in range(2):
        await before.find(wanted, "image")
    await settled(before)
    [(id, made)] = server.there.items()
    for kept in (before, kept_at(server)):  # the next server, too
        server.there = {id: Snapshot(id, made.name, made.state, time.time() - age_s)}
        await kept.sweep()
        found = await kept.find(wanted, "image")
        await settled(kept)
        assert (found is not None and found.id == id) == serves == (id in server.there)
