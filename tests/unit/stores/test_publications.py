"""The database itself keeps what was published: no statement of anybody's changes or forgets a version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from skillyard.domain.errors import StoreFault
from skillyard.domain.skill.publication import Publication
from skillyard.stores.sqlite.publications import SqlitePublications
from tests.unit.stores.conftest import Opener

pytestmark = pytest.mark.anyio

ONE = Publication("a.b", "1.0.0", "digest", 1.0, "ann", "crm", 9, 2)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM publications",
        "UPDATE publications SET digest = 'other'",
        "UPDATE publications SET version = '2.0.0'",
        "UPDATE publications SET project = 'hr'",
        "UPDATE publication_history SET principal = 'nobody'",
        "DELETE FROM publication_history",
    ],
)
async def test_what_was_published_stays(tmp_path: Path, open_database: Opener, statement: str) -> None:
    async with open_database(tmp_path) as database:
        store = SqlitePublications(database)
        await store.insert(ONE)
        with pytest.raises(StoreFault):
            await database.write(lambda connection: connection.execute(statement).rowcount)
        assert await store.find("a.b", "1.0.0") == ONE
        assert len(await store.history("a.b")) == 1


async def test_all_of_it_is_there_after_a_restart(tmp_path: Path, open_database: Opener) -> None:
    async with open_database(tmp_path) as database:
        store = SqlitePublications(database)
        await store.insert(ONE)
        await store.withdraw("a.b", "1.0.0", at=2.0, by="bob", reason="leaks")
    async with open_database(tmp_path) as database:
        found = await SqlitePublications(database).find("a.b", "1.0.0")
    assert found is not None
    assert (found.withdrawn_at, found.withdrawn_by, found.reason) == (2.0, "bob", "leaks")
    with sqlite3.connect(tmp_path / "state.db") as connection:
        assert connection.execute("SELECT count(*) FROM publication_history").fetchone() == (2,)
