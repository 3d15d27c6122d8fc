"""The schema as numbered SQL files, applied in order inside one write lock.

``PRAGMA user_version`` counts what was applied, ``PRAGMA application_id`` says that the file is ours.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib import resources
from typing import NamedTuple

from skillyard.domain.errors import StoreFault

APPLICATION_ID = 0x736B7964
"""``skyd`` in ASCII."""


class Migration(NamedTuple):
    """One numbered file; numbers count from 1 without a gap."""

    number: int
    name: str
    sql: str


def known() -> list[Migration]:
    """The migrations of this version of skillyard, in order."""
    files = (entry for entry in resources.files(__name__).iterdir() if entry.name.endswith(".sql"))
    found = sorted(Migration(int(f.name.split("_")[0]), f.name, f.read_text("utf-8")) for f in files)
    assert [m.number for m in found] == list(range(1, len(found) + 1)), "migrations are numbered without a gap"
    return found


def migrate(connection: sqlite3.Connection, name: str, migrations: Sequence[Migration]) -> None:
    """Bring the database up to date; several processes may try at once.

    Raises StoreFault for a file of another application or of a newer skillyard, and for one that lacks what it says
    to have. Nothing is changed then.
    """
    if _version(connection, name, migrations) == len(migrations):
        _check_whole(connection, name, migrations)
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for migration in migrations[_version(connection, name, migrations) :]:
            for statement in _statements(migration.sql):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, name: str, migrations: Sequence[Migration]) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    owner: int = connection.execute("PRAGMA application_id").fetchone()[0]
    if owner != APPLICATION_ID and (version or tables):
        raise StoreFault(f"the database {name} belongs to another application; choose another data directory")
    if version > len(migrations):
        raise StoreFault(
            f"the database {name} was written by a newer skillyard (its schema is {version}, this one knows"
            f" {len(migrations)}); upgrade skillyard"
        )
    return version


def _check_whole(connection: sqlite3.Connection, name: str, migrations: Sequence[Migration]) -> None:
    """Every table and index is there. Without one, records are gone too: making it anew would hide that."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        for migration in migrations:
            fresh.executescript(migration.sql)
        lacks = sorted(_things(fresh) - _things(connection))
    if lacks:
        missing = ", ".join([thing for thing in lacks if thing.startswith("table ")] or lacks)
        raise StoreFault(f"the database {name} lacks {missing}: something else changed it; restore it from a backup")


def _things(connection: sqlite3.Connection) -> set[str]:
    """``table runs`` and the like."""
    rows = connection.execute("SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'")
    return {f"{kind} {name}" for kind, name in rows}


def _statements(sql: str) -> Iterator[str]:
    """Split a script at its statements' ends; ``executescript`` would commit on its own."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), "a migration ends with a semicolon"
