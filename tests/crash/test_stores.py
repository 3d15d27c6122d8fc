"""kill -9 at any step loses nothing that was reported and leaves nothing that a sweep does not take."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skillyard.domain.work.record import RunStatus
from skillyard.stores.files.blobs import LocalBlobs
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.records import SqliteRecords
from skillyard.testing.blobs_suite import pattern, whole
from tests.crash.stores_yard import STEPS, filed, files, yard

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).with_name("stores_yard.py")


def start(directory: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(directory), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def check_swept(directory: Path, database: Database) -> None:
    named = {row[0] for row in await database.fetch("SELECT content_key FROM blobs")}
    assert await filed(database) <= files(directory) <= named
    assert not list((directory / "blobs" / "tmp").iterdir())


@pytest.mark.parametrize("step", sorted(STEPS))
async def test_a_kill_at_a_step_leaves_at_most_strays(tmp_path: Path, step: str) -> None:
    process = start(tmp_path, step)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    async with yard(tmp_path) as (blobs, _, database):
        assert files(tmp_path) >= await filed(database), "every row's content is there"
        for info in await blobs.list(None):
            assert await whole(blobs, info.blob_id) == pattern(info.size)
        assert await whole(blobs, output.strip()) == pattern(9000)
        assert await blobs.sweep() <= 1
        assert await blobs.sweep() == 0
        await check_swept(tmp_path, database)


async def test_kills_in_the_middle_of_work_lose_nothing(tmp_path: Path) -> None:
    told: list[list[str]] = []
    for lines in (5, 60, 150):
        process = start(tmp_path, "work")
        assert process.stdout is not None
        told += [process.stdout.readline().split() for _ in range(lines)]
        process.kill()
        told += [line.split() for line in whole_lines(process.communicate(timeout=60)[0])]
        async with yard(tmp_path) as (blobs, records, database):
            await check_told(told, blobs, records)
            assert files(tmp_path) >= await filed(database), "every row's content is there"
            await blobs.sweep()
            await check_told(told, blobs, records)
            await check_swept(tmp_path, database)


def whole_lines(output: str) -> list[str]:
    """A kill may cut the last one."""
    return output[: output.rfind("\n") + 1].splitlines()


async def check_told(told: list[list[str]], blobs: LocalBlobs, records: SqliteRecords) -> None:
    deleted = {words[1] for words in told if words[0] == "deleted"}
    ended = {words[1] for words in told if words[0] == "ended"}
    for what, ident, *digest in told:
        if what == "blob":
            info = await blobs.stat(ident)
            assert info is not None
            assert info.sha256 == digest[0]
            assert len(await whole(blobs, ident)) == info.size
        elif what == "doomed" and ident in deleted:
            assert await blobs.stat(ident) is None
        elif what == "begun":
            record = await records.get(ident)
            assert record is not None
            assert record.status is RunStatus.COMPLETED or ident not in ended


async def test_processes_that_share_contents_do_not_harm_each_other(tmp_path: Path) -> None:
    processes = [start(tmp_path, "busy", str(seed)) for seed in (1, 2)]
    for process in processes:
        _, errors = await asyncio.to_thread(process.communicate, timeout=100)
        assert process.returncode == 0, errors
    async with yard(tmp_path) as (blobs, _, database):
        for info in await blobs.list(None, limit=1000):
            assert await whole(blobs, info.blob_id) == pattern(info.size)
        await blobs.sweep()
        await check_swept(tmp_path, database)
