"""A server that is killed while it writes its catalogue's index: the next start goes on from there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.made_skills import write_skills
from skillyard.stores.skills.catalogue import Catalogue
from skillyard.stores.skills.tree import Caps, read_tree

pytestmark = pytest.mark.anyio

BUNDLES = 150
READER = """
import asyncio, sys
from contextlib import contextmanager
from pathlib import Path
from skillyard.stores.skills.catalogue import Catalogue
from skillyard.stores.skills.catalogue import upkeep
from skillyard.stores.skills.catalogue.table import Table

changes = Table.changes

@contextmanager
def told(self):
    with changes(self) as names:
        yield names
    print(self.sizes()[0], flush=True)

Table.changes = told
upkeep.BATCH = 10
home = Path(sys.argv[1])
asyncio.run(Catalogue([home / "skills"], home / "snapshots", guide=None).start())
"""


def killed_after(home: Path, commits: int) -> int:
    """How many bundles a reader said to have written when it was killed, without any warning."""
    reader = subprocess.Popen([sys.executable, "-c", READER, str(home)], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    said = 0
    try:
        for _ in range(commits):
            said = int(reader.stdout.readline())
    finally:
        reader.send_signal(signal.SIGKILL)
        reader.communicate(timeout=30)
    assert reader.returncode == -signal.SIGKILL
    return said


async def served(skills: Catalogue) -> dict[str, Any]:
    await skills.start()
    lines = list(await skills.page(None, 1000))
    versions = {line.name: await skills.versions(line.name) for line in lines}
    return {"lines": lines, "versions": versions, "at": await skills.revision(), "why": await skills.problems()}


@pytest.mark.parametrize("commits", [1, 4, 13])
async def test_the_next_start_goes_on(tmp_path: Path, commits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    assert len(list(write_skills(home / "skills", BUNDLES // 3, 3))) == BUNDLES // 3
    said = killed_after(home, commits)
    assert 0 < said < BUNDLES
    read: set[str] = set()

    def counted(path: Path, caps: Caps) -> Any:
        read.add(str(path))
        return read_tree(path, caps)

    monkeypatch.setattr("skillyard.stores.skills.catalogue.loading.read_tree", counted)
    kept = Catalogue([home / "skills"], home / "snapshots", guide=None)
    fresh = Catalogue([home / "skills"], home / "snapshots", guide=None, index=tmp_path / "fresh.db")
    try:
        found = await served(kept)
        assert len(read) <= BUNDLES - said + 10, "what was committed is not read again"
        assert found == await served(fresh)
    finally:
        await kept.close()
        await fresh.close()
