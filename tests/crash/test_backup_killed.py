"""kill -9 at each step of a backup and of a restore: a whole one or none, and the next one works."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skillyard.config.settings import load_settings
from skillyard.data_dir import DataDir, DataDirUnusable
from skillyard.domain.principal import OWNER
from skillyard.ports.secrets import SecretStore
from skillyard.stores.clock import SystemClock, SystemIds
from skillyard.stores.files.blobs import LocalBlobs
from skillyard.stores.files.tokens import FileTokens
from skillyard.stores.sqlite.database import Database
from skillyard.wiring import back_up, make_sealed_stores, restore
from tests.crash import dies_backing_up

SCRIPT = Path(dies_backing_up.__file__)
ROOT = SCRIPT.parents[2]
SHORT = 12
"""Kills of the short form, from the first to the last step; the long one takes each."""
CONTENT = b"0123456789abcdef" * 8192


def secrets_of(home: Path) -> SecretStore:
    return make_sealed_stores(load_settings(data_dir=home).secrets, DataDir(home))[0]


async def filled(home: Path) -> None:
    places = DataDir(home)
    with places.owned():
        database = await Database.open(places.database)
        blobs = LocalBlobs(database, places.blobs, SystemClock(), SystemIds())
        await blobs.prepare()
        await blobs.create("ann", "text/plain", CONTENT)
        await database.close()
    await secrets_of(home).set("KEY", "a secret value")
    await FileTokens(places.tokens, SystemClock()).create(OWNER)
    (places.skills / "deep").mkdir()
    (places.skills / "deep" / "run.sh").write_text("echo\n")


async def is_whole(home: Path) -> bool:
    """Returns whether a server would take the directory for one that was used; then all of it is there."""
    if not home.exists() or not any(home.iterdir()):
        return False
    places = DataDir(home)
    try:
        with places.owned():
            database = await Database.open(places.database)
            blobs = LocalBlobs(database, places.blobs, SystemClock(), SystemIds())
            await blobs.prepare()
            [info] = await blobs.list(None)
            assert b"".join([piece async for piece in blobs.read(info.blob_id)]) == CONTENT
            await database.close()
    except DataDirUnusable:
        return False
    found = await secrets_of(home).find("KEY", "default", "any")
    assert found is not None
    assert found.value == "a secret value"
    assert [info.principal for info in await FileTokens(places.tokens, SystemClock()).list()] == [OWNER]
    assert (places.skills / "deep" / "run.sh").read_text() == "echo\n"
    return True


def killed(what: str, source: Path, home: Path, steps: list[int]) -> dict[int, str]:
    home.mkdir(exist_ok=True)
    command = [sys.executable, str(SCRIPT), what, str(source), str(home), *map(str, steps)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {int(step): rest for step, rest in (line.split(" ", 1) for line in done.stdout.splitlines())}


def steps_of(what: str, source: Path, home: Path) -> int:
    told = killed(what, source, home / "counted", [0])[0]
    assert told.startswith("survived ")
    return int(told.split()[1])


def chosen(count: int, *, every: bool) -> list[int]:
    return list(range(1, count + 1)) if every else [1 + (count - 1) * at // (SHORT - 1) for at in range(SHORT)]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_backup(tmp_path: Path, every: bool) -> None:
    source = tmp_path / "source"
    asyncio.run(filled(source))
    steps = chosen(steps_of("backup", source, tmp_path), every=every)
    ended = killed("backup", source, tmp_path / "killed", steps)
    assert sum(how == str(-signal.SIGKILL) for how in ended.values()) > len(steps) // 2
    for step in steps:
        place = tmp_path / "killed" / str(step)
        if not (place / "backup.tar").exists():
            (place / "keys").unlink(missing_ok=True)
            asyncio.run(back_up(load_settings(data_dir=source), DataDir(source), place / "backup.tar", place / "keys"))
            assert sorted(path.name for path in place.iterdir()) == ["backup.tar", "keys"]
        asyncio.run(restore(DataDir(place / "data"), place / "backup.tar", place / "keys"))
        assert asyncio.run(is_whole(place / "data"))
    assert asyncio.run(is_whole(source))


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_restore(tmp_path: Path, every: bool) -> None:
    source, held = tmp_path / "source", tmp_path / "held"
    asyncio.run(filled(source))
    held.mkdir()
    asyncio.run(back_up(load_settings(data_dir=source), DataDir(source), held / "backup.tar", held / "keys"))
    steps = chosen(steps_of("restore", held, tmp_path), every=every)
    ended = killed("restore", held, tmp_path / "killed", steps)
    assert sum(how == str(-signal.SIGKILL) for how in ended.values()) > len(steps) // 2
    left = [step for step in steps if asyncio.run(is_whole(tmp_path / "killed" / str(step) / "data"))]
    assert left == [step for step in steps if step >= min(left, default=steps[-1] + 1)], "whole once, whole ever after"
    place = tmp_path / "killed" / str(steps[0])
    asyncio.run(restore(DataDir(place / "again"), held / "backup.tar", held / "keys"))
    assert asyncio.run(is_whole(place / "again"))
