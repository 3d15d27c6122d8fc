"""What a data directory holds, and a program that works in one: run as a script, until it is killed or done.

python yard.py DIRECTORY work         create, read, delete and record without end; print what was stored
python yard.py DIRECTORY busy SEED    200 calls at once on few contents beside other processes; check them
python yard.py DIRECTORY STEP         one create and one delete, killed -9 at the named step
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skillyard.stores.clock import SystemClock, SystemIds
from skillyard.stores.files import blob_files, blobs
from skillyard.stores.files.blobs import Collector, LocalBlobs
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.records import SqliteRecords
from skillyard.testing.blobs_suite import pattern, streamed, whole
from skillyard.testing.records_suite import ended, running

STEPS: dict[str, tuple[type, str, str]] = {
    "file-staged": (blob_files.StagedFile, "__init__", "after"),
    "file-written": (blob_files.StagedFile, "write", "after"),
    "file-sealed": (blob_files.BlobFiles, "seal", "after"),
    "row-inserted": (blob_files.BlobFiles, "place", "before"),
    "file-placed": (blob_files.BlobFiles, "place", "after"),
    "not-committed": (blobs.Publication, "store", "after"),
    "row-deleted": (Collector, "collect", "before"),
    "file-unused": (blob_files.BlobFiles, "trash", "before"),
    "file-trashed": (blob_files.BlobFiles, "trash", "after"),
    "trash-committed": (blob_files.BlobFiles, "remove", "before"),
}


@asynccontextmanager
async def yard(directory: Path) -> AsyncIterator[tuple[LocalBlobs, SqliteRecords, Database]]:
    database = await Database.open(directory / "state.db")
    try:
        blobs = LocalBlobs(database, directory / "blobs", SystemClock(), SystemIds())
        await blobs.prepare()
        yield blobs, SqliteRecords(database), database
    finally:
        await database.close()


def files(directory: Path) -> set[str]:
    return {path.name for path in (directory / "blobs" / "sha256").glob("*/*")}


async def filed(database: Database) -> set[str]:
    return {row[0] for row in await database.fetch("SELECT content_key FROM blobs WHERE content IS NULL")}


def die_at(step: str) -> None:
    owner, name, when = STEPS[step]
    original: Callable[..., Any] = getattr(owner, name)

    def patched(*args: Any, **values: Any) -> Any:
        if when == "after":
            original(*args, **values)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, patched)


def tell(*words: object) -> None:
    print(*words, flush=True)


async def one(directory: Path, step: str) -> None:
    async with yard(directory) as (blobs, _, _):
        kept = await blobs.create("a", "text/plain", pattern(9000))
        tell(kept.blob_id)
        die_at(step)
        info = await blobs.create("a", "text/plain", pattern(50_000))
        await blobs.delete(info.blob_id)


async def work(directory: Path) -> None:
    async with yard(directory) as (blobs, records, _):
        await asyncio.gather(*(store(blobs, number) for number in range(4)), record(records))


async def store(blobs: LocalBlobs, number: int) -> None:
    while True:
        for size in (3_000_000, 20_000, 500):
            content = os.urandom(8) + pattern(size)
            info = await blobs.create("a", "text/plain", streamed(content))
            tell("blob", info.blob_id, hashlib.sha256(content).hexdigest())
            doomed = await blobs.create("a", "text/plain", content)
            tell("doomed", doomed.blob_id)
            await blobs.delete(doomed.blob_id)
            tell("deleted", doomed.blob_id)


async def record(records: SqliteRecords) -> None:
    ids = SystemIds()
    while True:
        begun = running(0, run_id=ids.run())
        await records.insert(begun)
        tell("begun", begun.run_id)
        await records.finish(ended(begun))
        tell("ended", begun.run_id)


async def busy(directory: Path, seed: int) -> None:
    async with yard(directory) as (blobs, _, _):
        await asyncio.gather(*(hurry(blobs, random.Random(seed * 100 + number)) for number in range(8)))
        await blobs.sweep()


async def hurry(blobs: LocalBlobs, choose: random.Random) -> None:
    for _ in range(25):
        content = pattern(choose.choice([200, 5000, 5001]))
        info = await blobs.create("a", "text/plain", content)
        what = choose.random()
        if what < 0.3:
            assert (await blobs.path(info.blob_id)).read_bytes() == content
        elif what < 0.4:
            await blobs.sweep()
        assert await whole(blobs, info.blob_id) == content
        if what < 0.9:
            assert await blobs.delete(info.blob_id)


def main() -> None:
    directory, what, *rest = sys.argv[1:]
    match what:
        case "work":
            asyncio.run(work(Path(directory)))
        case "busy":
            asyncio.run(busy(Path(directory), int(rest[0])))
        case step:
            asyncio.run(one(Path(directory), step))


if __name__ == "__main__":
    main()
