"""Whether what a data directory stores agrees with itself."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path


def contradictions(data_dir: Path) -> list[str]:
    """One line for each: a damaged database, a run that nobody runs, a blob without bytes, bytes without a blob.

    For a data directory whose server is idle.
    """
    with closing(sqlite3.connect(f"file:{data_dir / 'skillyard.db'}?mode=ro", uri=True)) as database:
        return [*_damage(database), *_running(database), *_blobs(database, data_dir / "blobs" / "sha256")]


def detached(data_dir: Path) -> set[str]:
    """Runs that outlive their server and have not ended. The callers of some went away before they were told."""
    with closing(sqlite3.connect(f"file:{data_dir / 'skillyard.db'}?mode=ro", uri=True, timeout=30)) as database:
        return {run_id for (run_id,) in database.execute("SELECT run_id FROM runs WHERE request IS NOT NULL")}


def _damage(database: sqlite3.Connection) -> Iterator[str]:
    for (said,) in database.execute("PRAGMA integrity_check"):
        if said != "ok":
            yield f"database: {said}"


def _running(database: sqlite3.Connection) -> Iterator[str]:
    query = "SELECT run_id FROM runs WHERE ended_at IS NULL OR status NOT IN ('completed', 'failed')"
    for (run_id,) in database.execute(query):
        yield f"run {run_id} is running on"


def _blobs(database: sqlite3.Connection, contents: Path) -> Iterator[str]:
    named: set[str] = set()
    for blob_id, digest, key, content in database.execute("SELECT blob_id, sha256, content_key, content FROM blobs"):
        named.add(key)  # a small one that a run was shown is in its row and in a file
        file = contents / key[:2] / key
        data = content
        if content is None:
            data = file.read_bytes() if file.exists() else b"\0missing"
        if hashlib.sha256(data).hexdigest() != digest:
            yield f"blob {blob_id} does not have the bytes of {digest}"
    for file in contents.glob("??/*"):
        if file.name not in named:
            yield f"content {file.name} belongs to no blob"
    yield from _quota(database)


def _quota(database: sqlite3.Connection) -> Iterator[str]:
    counted = database.execute("SELECT owner, count, bytes FROM blob_owners ORDER BY owner").fetchall()
    true = database.execute("SELECT owner, count(*), sum(size) FROM blobs GROUP BY owner ORDER BY owner").fetchall()
    if counted != true:
        yield f"owners are said to store {counted} and store {true}"
