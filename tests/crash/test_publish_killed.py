"""kill -9 at each step of publishing: a version is there whole or not at all, and what was there before stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillyard.client.errors import ClientError
from skillyard.domain.errors import SkillNotFound
from skillyard.stores.skills.tree import Caps, read_tree
from tests.crash import dies_publishing
from tests.crash.dies_publishing import NAME, Yard, bundle, yard
from tests.crash.server import Server

pytestmark = pytest.mark.anyio
SCRIPT = Path(dies_publishing.__file__)
ROOT = SCRIPT.parents[2]
STEPS = (1, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44)
"""Of some fifty; the long form takes each."""
STORED = {"insert-before": False, "insert-after": True, "refresh-before": True, "refresh-after": True}


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The directory in which a data directory is left for each step, and how each process ended."""
    home = tmp_path_factory.mktemp("dead")
    return home, killed_at(home, ["0", *map(str, STEPS), *STORED])


async def test_every_step_is_counted(dead: tuple[Path, dict[str, int]]) -> None:
    """So that STEPS reach from the first to nearly the last of them."""
    assert STEPS[-1] < dead[1]["0"] < 2 * STEPS[-1]


@pytest.mark.parametrize("step", [*map(str, STEPS), *STORED])
async def test_killed(dead: tuple[Path, dict[str, int]], step: str) -> None:
    home, ended = dead
    assert ended[step] == -signal.SIGKILL
    there = await settled(home / step)
    assert ("2.0.0" in there) == STORED.get(step, "2.0.0" in there)


@pytest.mark.long
async def test_killed_at_each(tmp_path: Path) -> None:
    steps = [str(n) for n in range(1, 2 * STEPS[-1])]
    ended = killed_at(tmp_path, steps)
    assert sum(code == -signal.SIGKILL for code in ended.values()) > STEPS[-1]
    for step in steps:
        await settled(tmp_path / step)


async def settled(data_dir: Path) -> list[str]:
    """Versions that are there after a kill, once all was looked at."""
    async with yard(data_dir) as here:
        there = await versions(here)
        assert there in (["1.0.0"], ["2.0.0", "1.0.0"])
        await whole(here, data_dir)
        again = await here.publish(bundle("2.0.0"))
        assert again.created == ("2.0.0" not in there)
        assert await versions(here) == ["2.0.0", "1.0.0"]
        await whole(here, data_dir)
    return there


def killed_at(home: Path, steps: list[str]) -> dict[str, int]:
    command = [sys.executable, str(SCRIPT), str(home), *steps]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {step: int(code) for step, code in map(str.split, done.stdout.splitlines())}


async def whole(here: Yard, data_dir: Path) -> None:
    """What is served is what was published, byte for byte, and nothing else lies there."""
    published = {told.digest for told in await here.stores.publications.every()}
    served = {(await here.stores.skills.get(NAME, version)).digest for version in await versions(here)}
    assert served == published
    for digest in published:
        tree, _ = read_tree(data_dir / "snapshots" / digest, Caps())
        assert tree is not None
        assert tree.digest == digest
    others = [line.name for line in await here.stores.skills.page(None, 100) if line.name != NAME]
    guide = {(await here.stores.skills.get(name)).digest for name in others}
    assert set(os.listdir(data_dir / "snapshots")) == published | guide
    assert os.listdir(data_dir / "uploads") == []


async def versions(here: Yard) -> list[str]:
    try:
        return list(await here.stores.skills.versions(NAME))
    except SkillNotFound:
        return []


class Flow:
    """A client that publishes one version after the other until its server is gone."""

    def __init__(self, server: Server, numbers: Iterator[int]) -> None:
        self.told: dict[str, str] = {}
        self._server = server
        self._numbers = numbers
        self.thread = threading.Thread(target=self._flow, daemon=True)
        self.thread.start()

    def _flow(self) -> None:
        try:
            with self._server.client() as client:
                for number in self._numbers:
                    done = client.publish_skill(bundle(f"{number}.0.0"))
                    assert done.created
                    self.told[done.version] = done.digest
        except ClientError:
            return


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.long)])
def test_a_server_that_is_killed_while_many_versions_come(tmp_path: Path, kills: int) -> None:
    data_dir, told = tmp_path / "data", dict[str, str]()
    numbers = iter(range(1, 1_000_000))
    for kill in range(kills):
        server = Server(data_dir)
        flow = Flow(server, numbers)
        until_told(flow, 3 + kill % 5)
        server.kill()
        flow.thread.join(60)
        assert not flow.thread.is_alive()
        told |= flow.told
    with Server(data_dir) as server, server.client() as client:
        there = {v["version"]: v for v in client.skill_versions(NAME)["versions"]}
        assert {version: there[version]["digest"] for version in told} == told, "what was told is there"
        assert len(there) <= len(told) + kills, "and at most one more for each kill"
        for version, facts in there.items():
            archive = tmp_path / f"{version}.tar.gz"
            assert client.export_skill(NAME, archive, version=version).digest == facts["digest"]
            assert not client.publish_skill(archive).created, "the same bytes are the same version"
        assert client.execute_skill(NAME, {}).status == "completed"
        assert set(os.listdir(data_dir / "uploads")) == set()
        digests = {facts["digest"] for facts in there.values()}
        assert len(set(os.listdir(data_dir / "snapshots")) - digests) <= 1, (
            "the guide's, and nothing that was half done"
        )


def until_told(flow: Flow, count: int) -> None:
    end = time.monotonic() + 60
    while len(flow.told) < count:
        assert flow.thread.is_alive(), "publishing failed"
        assert time.monotonic() < end
        time.sleep(0.001)
