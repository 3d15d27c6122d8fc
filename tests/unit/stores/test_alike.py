"""Records whose walls are alike are written from one text."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.records import SqliteRecords
from skillyard.testing.records_suite import running

pytestmark = pytest.mark.anyio


async def test_what_becomes_of_a_records_values_changes_no_other_record(tmp_path: Path) -> None:
    walls, guarantees = {"seccomp": "kernel"}, {"network": {"attestor": "kernel", "evidence": ["net_namespace"]}}
    database = await Database.open(tmp_path / "skillyard.db")
    try:
        store = SqliteRecords(database)
        for number in (1, 2):
            await store.insert(running(number, enforced=walls, guarantees=guarantees))
        walls["seccomp"] = "missing"
        guarantees["network"]["evidence"].append("seccomp")  # type: ignore[attr-defined]
        await store.insert(running(3, enforced=walls, guarantees=guarantees))
        found = [await store.get(f"run_{number}") for number in (1, 2, 3)]
    finally:
        await database.close()
    kept = [record for record in found if record is not None]
    assert [record.enforced["seccomp"] for record in kept] == ["kernel", "kernel", "missing"]
    assert [len(record.guarantees["network"]["evidence"]) for record in kept] == [1, 1, 2]
