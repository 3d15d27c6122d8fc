"""A data directory as the version before contents had owners and approvals had locks left it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.skill.trust import Approval, ApprovedPackages
from skillyard.domain.work.record import RunStatus
from skillyard.stores.clock import SystemClock, SystemIds
from skillyard.stores.files.blobs import LocalBlobs
from skillyard.stores.sqlite import migrations
from skillyard.stores.sqlite.approvals import SqliteApprovals
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.records import SqliteRecords

pytestmark = pytest.mark.anyio

BEFORE = 7
"""Migrations that it had."""
BIG, SMALL = b"0123456789abcdef" * 65536, b"small"
BLOBS = {f"blob:{owner}-{name}": (owner, data) for owner in ("ann", "bob") for name, data in (("b", BIG), ("s", SMALL))}
RECORD: dict[str, Any] = {
    **{"run_id": "run_1", "kind": "run_code", "principal": "ann", "status": "completed", "created_at": 1.0},
    **{"project": "", "environment": "base", "outcome": "exit", "ended_at": 2.0, "output": {"a": 1}},
    **{"output_blobs": ["blob:ann-b"], "idempotency_key": "k", "request_digest": "d", "limits": {}, "digests": {}},
}
APPROVAL = Approval("acme.look", "1.0.0", "digest", 1.0, "root", "seen", needs=1)
"""It covers no tools: its operator was shown none."""


def leave(home: Path) -> None:
    """As the statements of that version did it: a file by its content's digest, which two owners share."""
    digest = hashlib.sha256(BIG).hexdigest()
    file = home / "blobs" / "sha256" / digest[:2] / digest
    file.parent.mkdir(parents=True)
    file.write_bytes(BIG)
    with closing(sqlite3.connect(home / "skillyard.db", isolation_level=None)) as connection:
        migrations.migrate(connection, "skillyard.db", migrations.known()[:BEFORE])
        for blob_id, (owner, data) in BLOBS.items():
            inline = data if data is SMALL else None
            connection.execute(
                "INSERT INTO blobs (blob_id, kind, size, sha256, owner, created_at, expires_at, run_id, content)"
                " VALUES (?, 'text/plain', ?, ?, ?, 1.0, NULL, NULL, ?)",
                (blob_id, len(data), hashlib.sha256(data).hexdigest(), owner, inline),
            )
        connection.execute(
            "INSERT INTO runs (run_id, principal, status, created_at, ended_at, idempotency_key, request_digest,"
            " record) VALUES ('run_1', 'ann', 'completed', 1.0, 2.0, 'k', 'd', ?)",
            (json.dumps(RECORD),),
        )
        connection.execute("INSERT INTO approvals VALUES ('acme.look', '1.0.0', 'digest', 1.0, 'root', 'seen')")


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    leave(tmp_path)
    database = await Database.open(tmp_path / "skillyard.db")
    yield database
    await database.close()


@pytest.fixture
async def blobs(database: Database, tmp_path: Path) -> LocalBlobs:
    blobs = LocalBlobs(database, tmp_path / "blobs", SystemClock(), SystemIds())
    await blobs.prepare()
    return blobs


async def content(blobs: LocalBlobs, blob_id: str) -> bytes:
    return b"".join([piece async for piece in blobs.read(blob_id)])


async def test_its_blobs_are_there_and_stay_with_the_other_owner(blobs: LocalBlobs) -> None:
    assert await blobs.sweep() == 0
    for blob_id, (_, data) in BLOBS.items():
        assert await content(blobs, blob_id) == data
        assert (await blobs.path(blob_id)).read_bytes() == data
    for name in ("b", "s"):
        assert await blobs.delete(f"blob:ann-{name}")
    await blobs.sweep()
    for name, data in (("b", BIG), ("s", SMALL)):
        assert await content(blobs, f"blob:bob-{name}") == (await blobs.path(f"blob:bob-{name}")).read_bytes() == data


async def test_new_contents_are_apart_from_its_own(blobs: LocalBlobs, tmp_path: Path) -> None:
    made = await blobs.create("ann", "text/plain", BIG)
    assert await blobs.path(made.blob_id) != await blobs.path("blob:ann-b")
    for blob_id in BLOBS:
        await blobs.delete(blob_id)
    await blobs.sweep()
    assert await content(blobs, made.blob_id) == BIG
    assert [file for file in (tmp_path / "blobs").rglob("*") if file.is_file()] == [await blobs.path(made.blob_id)]


async def test_its_records_are_there(database: Database) -> None:
    records = SqliteRecords(database)
    record = await records.by_key("ann", "k")
    assert record == await records.get("run_1")
    assert record is not None
    assert (record.status, record.output, record.output_blobs) == (RunStatus.COMPLETED, {"a": 1}, ("blob:ann-b",))
    assert (record.files, record.notes, record.guarantees) == ((), (), {})


async def test_its_approvals_hold_and_are_bound_by_the_next_run(database: Database) -> None:
    approvals = SqliteApprovals(database)
    key = ("acme.look", "1.0.0", "digest")
    assert await approvals.find(*key) == APPROVAL
    assert list(await approvals.locks(*key)) == []
    assert await approvals.bind(*key, "wanted", "lock") == "lock"
    assert await approvals.bind(*key, "wanted", "another") == "lock"
    assert await approvals.packages(*key) is None
    packages = ApprovedPackages("wanted", "lock")
    assert await approvals.bind_packages(*key, packages) == packages
