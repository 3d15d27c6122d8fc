"""What the local blob store promises beyond its port."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from skillyard.domain.blob import BlobLimits
from skillyard.domain.errors import QuotaExceeded, StoreFault
from skillyard.stores.clock import SystemClock, SystemIds
from skillyard.stores.files.blob_files import BlobFiles
from skillyard.stores.files.blobs import LocalBlobs
from skillyard.stores.sqlite import migrations
from skillyard.stores.sqlite.blob_rows import content_key
from skillyard.testing.blobs_suite import pattern, streamed, whole
from tests.crash.stores_yard import files, yard

pytestmark = pytest.mark.anyio


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[LocalBlobs]:
    async with yard(tmp_path) as (blobs, _, _):
        yield blobs


def temporary(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "blobs" / "tmp").iterdir())


async def test_ids_are_unguessable(blobs: LocalBlobs) -> None:
    ids = {(await blobs.create("a", "text/plain", b"")).blob_id for _ in range(20)}
    assert len(ids) == 20
    assert all(re.fullmatch(r"blob:[0-9a-f]{32}", blob_id) for blob_id in ids)


async def test_directories_are_private(blobs: LocalBlobs, tmp_path: Path) -> None:
    info = await blobs.create("a", "text/plain", pattern(5000))
    path = await blobs.path(info.blob_id)
    key = content_key(info.owner, info.sha256)
    assert path == tmp_path / "blobs" / "sha256" / key[:2] / key
    for directory in (path.parent, path.parent.parent, tmp_path / "blobs" / "tmp", tmp_path / "blobs"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory


async def test_equal_contents_of_two_owners_are_two_files(blobs: LocalBlobs, tmp_path: Path) -> None:
    """Small ones too, which get a file when a run is shown them. That of one stays when the other's goes."""
    for size in (9000, 10):
        first, second = [await blobs.create(owner, "text/plain", pattern(size)) for owner in ("a", "b")]
        assert (await blobs.path(first.blob_id)).stat().st_ino != (await blobs.path(second.blob_id)).stat().st_ino
        await blobs.delete(first.blob_id)
        assert (await blobs.path(second.blob_id)).read_bytes() == pattern(size)
        await blobs.delete(second.blob_id)
        assert files(tmp_path) == set()


async def test_contents_that_an_older_version_stored_are_read_and_removed(tmp_path: Path) -> None:
    """Their files are named by the digest alone, and are shared by whoever stored them then."""
    content = pattern(9000)
    digest = hashlib.sha256(content).hexdigest()
    old = [migration for migration in migrations.known() if migration.number < 9]
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as database:
        migrations.migrate(database, "state.db", old)
        for number, owner in ((1, "a"), (2, "b")):
            values = (f"blob:{number:032x}", owner, digest)
            database.execute(
                "INSERT INTO blobs (blob_id, owner, kind, size, sha256, created_at) VALUES (?, ?, 'a/b', 9000, ?, 0)",
                values,
            )
    file = tmp_path / "blobs" / "sha256" / digest[:2] / digest
    file.parent.mkdir(parents=True, mode=0o700)
    file.write_bytes(content)
    async with yard(tmp_path) as (blobs, _, _):
        for number in (1, 2):
            blob_id = f"blob:{number:032x}"
            assert await whole(blobs, blob_id) == content
            assert await blobs.path(blob_id) == file
            await blobs.sweep()
            assert await blobs.delete(blob_id)
            assert file.exists() == (number == 1)


async def test_equal_contents_share_a_file(blobs: LocalBlobs, tmp_path: Path) -> None:
    made = [await blobs.create("a", "text/plain", streamed(pattern(9000))) for _ in range(5)]
    assert len(files(tmp_path)) == 1
    for info in made:
        assert len(files(tmp_path)) == 1
        await blobs.delete(info.blob_id)
    assert not files(tmp_path)
    assert not temporary(tmp_path)


async def test_small_contents_have_a_file_only_when_mounted(blobs: LocalBlobs, tmp_path: Path) -> None:
    info = await blobs.create("a", "text/plain", pattern(4096))
    assert not files(tmp_path)
    await asyncio.gather(*(blobs.path(info.blob_id) for _ in range(5)))
    assert files(tmp_path) == {content_key(info.owner, info.sha256)}
    await blobs.delete(info.blob_id)
    assert not files(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "cut"])
async def test_a_damaged_content_is_a_fault_not_a_short_answer(blobs: LocalBlobs, damage: str) -> None:
    info = await blobs.create("a", "text/plain", pattern(9000))
    path = await blobs.path(info.blob_id)
    path.unlink()
    if damage == "cut":
        path.write_bytes(pattern(8999))
    for asked in (whole(blobs, info.blob_id), blobs.path(info.blob_id)):
        with pytest.raises(StoreFault, match="missing or damaged"):
            await asked
    again = await blobs.create("a", "text/plain", pattern(9000))
    assert await whole(blobs, info.blob_id) == await whole(blobs, again.blob_id) == pattern(9000)


async def test_a_create_cancelled_at_any_moment_leaves_all_or_nothing(blobs: LocalBlobs, tmp_path: Path) -> None:
    for turns in range(0, 2000, 50):
        task = asyncio.ensure_future(blobs.create("a", "text/plain", streamed(pattern(1_200_000))))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        stored = await blobs.list("a")
        assert [info.blob_id for info in stored] == ([] if isinstance(result, BaseException) else [result.blob_id])
        for info in stored:
            await blobs.delete(info.blob_id)
    await blobs.sweep()
    assert not files(tmp_path)
    assert not temporary(tmp_path)


async def test_a_create_cancelled_while_it_is_stored_is_undone(
    blobs: LocalBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placing, cancelled = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    place = BlobFiles.place

    def late(self: BlobFiles, staged: Path, sha256: str, size: int) -> None:
        place(self, staged, sha256, size)
        loop.call_soon_threadsafe(placing.set)
        assert cancelled.wait(30)

    monkeypatch.setattr(BlobFiles, "place", late)
    task = asyncio.ensure_future(blobs.create("a", "text/plain", pattern(9000)))
    await placing.wait()
    task.cancel()
    await asyncio.sleep(0)
    cancelled.set()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError)
    assert await blobs.list("a") == []
    assert not files(tmp_path)
    assert not temporary(tmp_path)


async def test_a_sweep_leaves_what_is_being_written(blobs: LocalBlobs, tmp_path: Path) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield pattern(1_500_000)
        assert len(temporary(tmp_path)) == 1
        assert await blobs.sweep() == 0
        yield b"end"

    info = await blobs.create("a", "text/plain", slow())
    assert await whole(blobs, info.blob_id) == pattern(1_500_000) + b"end"


async def test_what_arrives_counts_against_the_quota(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def held() -> AsyncIterator[bytes]:
        yield pattern(6000)
        await gate.wait()

    async with yard(tmp_path) as (_, _, database):
        limits = BlobLimits(owner_bytes=10_000)
        blobs = LocalBlobs(database, tmp_path / "blobs", SystemClock(), SystemIds(), limits=limits)
        first = asyncio.ensure_future(blobs.create("a", "text/plain", held()))
        while not blobs._arriving["a"]:
            await asyncio.sleep(0)
        with pytest.raises(QuotaExceeded):
            await blobs.create("a", "text/plain", pattern(6000))
        await blobs.create("b", "text/plain", pattern(6000))
        gate.set()
        await first
        await blobs.delete((await first).blob_id)
        await blobs.create("a", "text/plain", pattern(10_000))


MEMORY = """
import asyncio, hashlib, resource, sys, tracemalloc
from pathlib import Path
from tests.crash.stores_yard import yard

SIZE, PIECE = 96 << 20, 64 << 10

async def source():
    piece = bytes(range(256)) * (PIECE // 256)
    for _ in range(SIZE // PIECE):
        yield piece

async def main():
    async with yard(Path(sys.argv[1])) as (blobs, _, _):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        tracemalloc.start()
        info = await blobs.create("a", "text/plain", source())
        digest = hashlib.sha256()
        async for piece in blobs.read(info.blob_id):
            digest.update(piece)
        assert (info.size, info.sha256) == (SIZE, digest.hexdigest())
        print(tracemalloc.get_traced_memory()[1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

asyncio.run(main())
"""


async def test_a_large_blob_passes_in_constant_memory(tmp_path: Path) -> None:
    output = await asyncio.to_thread(run, [sys.executable, "-c", MEMORY, str(tmp_path)])
    traced, grown_kb = (int(word) for word in output.split())
    assert traced < 8 << 20
    assert grown_kb < 24 << 10


DISK_FULL = """
import asyncio, os, subprocess, sys
from pathlib import Path
from skillyard.domain.errors import StoreFault
from skillyard.testing.blobs_suite import pattern, streamed, whole
from skillyard.testing.records_suite import running
from tests.crash.stores_yard import files, yard

async def fault(asked):
    try:
        await asked
    except StoreFault as error:
        return str(error)
    raise AssertionError("it fits")

async def main(directory):
    async with yard(directory) as (blobs, records, database):
        kept = await blobs.create("a", "text/plain", pattern(9000))
        for data in (pattern(9 << 20), streamed(pattern(9 << 20))):
            assert "disk is full" in await fault(blobs.create("a", "text/plain", data))
            assert len(files(directory)) == 1 and not os.listdir(directory / "blobs" / "tmp")
        with open(directory / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass
        number = 0
        async def fill():
            nonlocal number
            while True:
                number += 1
                await records.insert(running(number, summary="x" * 4000))
        message = await fault(fill())
        assert "no room left" in message or "disk reports an error" in message, message
        await fault(blobs.create("a", "text/plain", pattern(50_000)))
        os.unlink(directory / "filler")
        assert await records.get(f"run_{number}") is None
        await records.insert(running(number))
        assert await whole(blobs, kept.blob_id) == pattern(9000)
        assert [info.blob_id for info in await blobs.list(None)] == [kept.blob_id]
        assert len(files(directory)) == 1 and not os.listdir(directory / "blobs" / "tmp")

directory = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", directory], check=True)
asyncio.run(main(directory))
"""


def can_mount() -> bool:
    unshare = shutil.which("unshare")
    probe = [unshare or "", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return unshare is not None and subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs unprivileged user and mount namespaces")
async def test_a_full_disk_stores_nothing_and_harms_nothing(tmp_path: Path) -> None:
    await asyncio.to_thread(run, ["unshare", "-Urm", sys.executable, "-c", DISK_FULL, str(tmp_path)])


def run(command: list[str]) -> str:
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env=environment, check=False, cwd=root
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
