"""The tables of the catalogue's index: bundles, and a few facts. All of it blocks, raises sqlite3.Error and Damaged.

Questions take well under a millisecond, unless they say otherwise.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Set
from contextlib import contextmanager

from skillyard.domain.skill.skill import Finding, SkillLine
from skillyard.stores.skills.catalogue.names import Name, arranged
from skillyard.stores.skills.catalogue.rows import (
    COLUMNS,
    PUBLISHED,
    Entry,
    Place,
    findings_of,
    key_of,
    line_of,
    name_of,
    opened,
    sealed,
)

SCHEMA_VERSION = 3
"""A change of the tables raises it: a cache has no migrations."""

SCHEMA = (
    "CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL, seal BLOB NOT NULL) STRICT, WITHOUT ROWID",
    # The columns are the fields of Entry.
    """
    CREATE TABLE bundles (
        id      INTEGER PRIMARY KEY,
        path    BLOB NOT NULL UNIQUE,
        rank    INTEGER NOT NULL,
        place   BLOB NOT NULL,
        stamp   BLOB NOT NULL,
        watched TEXT NOT NULL,
        paths   INTEGER NOT NULL,
        name    TEXT,
        version TEXT,
        digest  TEXT,
        line    TEXT NOT NULL,
        errors  TEXT NOT NULL,
        state   TEXT NOT NULL,
        refusal TEXT NOT NULL,
        seal    BLOB NOT NULL
    ) STRICT""",
    "CREATE INDEX bundles_of_name ON bundles (name) WHERE name IS NOT NULL",
    "CREATE INDEX latest_bundles ON bundles (name) WHERE state = 'latest'",
    "CREATE INDEX bundles_of_digest ON bundles (digest) WHERE digest IS NOT NULL",
    "CREATE INDEX bundles_by_rank ON bundles (rank, paths)",
    "CREATE INDEX bundles_with_problems ON bundles (rank, place) WHERE errors <> '' OR refusal <> ''",
)

_ALL = ", ".join((*COLUMNS, "seal"))
_PAGE = f"""
    SELECT {_ALL} FROM bundles
    WHERE state = 'latest' AND name > ? AND (? IS NULL OR name = ? OR (name >= ? AND name < ?))
    ORDER BY name LIMIT ?"""  # noqa: S608 - fixed texts
_AT = f"SELECT {_ALL} FROM bundles WHERE path = ?"  # noqa: S608
_OF_NAME = f"SELECT {_ALL} FROM bundles WHERE name = ? ORDER BY rank, place"  # noqa: S608
_SLICE = f"SELECT id, {_ALL} FROM bundles WHERE id > ? AND rank < ? ORDER BY id LIMIT ?"  # noqa: S608
_PROBLEM = "(errors <> '' OR refusal <> '')"
_PROBLEMS = f"SELECT errors, refusal FROM bundles WHERE {_PROBLEM} ORDER BY rank, place LIMIT ?"  # noqa: S608
_SIZES = "SELECT count(*), coalesce(sum(paths), 0) FROM bundles WHERE rank BETWEEN 0 AND ?"
_PUT = f"""
    INSERT INTO bundles ({_ALL}) VALUES ({", ".join("?" for _ in (*COLUMNS, "seal"))})
    ON CONFLICT (path) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in (*COLUMNS[1:], "seal"))}
"""  # noqa: S608
_SUM = 1 << 128


class Table:
    """One connection to the index, for one thread at a time. One of them changes it, within :meth:`changes`, and sees
    what it has not committed; ``revision`` is the catalogue's, true for that one."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._changed: set[str] = set()
        self.revision = 0

    def load_revision(self) -> None:
        self.revision = int(self.fact("revision") or "0", 16)

    @contextmanager
    def changes(self) -> Iterator[Set[str]]:
        """A transaction. At its end the names whose bundles changed are arranged anew; yields these names."""
        before, self._changed = self.revision, set()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._changed
            for name in tuple(self._changed):
                entries = self.of_name(name)
                for old, new in zip(entries, arranged(entries), strict=True):
                    if old != new:
                        self.put(new)
            if self.revision != before:
                self.put_fact("revision", f"{self.revision:x}")
            self._connection.execute("COMMIT")
        except BaseException:
            self.revision = before
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def put(self, entry: Entry) -> None:
        """Stores an entry in the place of the one at its path."""
        self._count(self.at(entry.path), entry)
        self._connection.execute(_PUT, entry.row())

    def drop(self, path: bytes) -> None:
        self._count(self.at(path), None)
        self._connection.execute("DELETE FROM bundles WHERE path = ?", (path,))

    def _count(self, before: Entry | None, after: Entry | None) -> None:
        weights = (after.weight() if after else 0) - (before.weight() if before else 0)
        self.revision = (self.revision + weights) % _SUM
        self._changed.update(entry.name for entry in (before, after) if entry and entry.name)

    def fact(self, key: str) -> str | None:
        row = self._connection.execute("SELECT key, value, seal FROM facts WHERE key = ?", (key,)).fetchone()
        return str(opened(row)[1]) if row else None

    def put_fact(self, key: str, value: str) -> None:
        sql = "INSERT OR REPLACE INTO facts (key, value, seal) VALUES (?, ?, ?)"
        self._connection.execute(sql, sealed((key, value)))

    def page(self, after: str | None, limit: int, namespace: str | None) -> list[SkillLine]:
        """Returns the lines of the names behind ``after``. Names in ``namespace`` sort from ``namespace.`` up to
        ``namespace/``."""
        values = (after or "", namespace, namespace, f"{namespace}.", f"{namespace}/", limit)
        return [line_of(row) for row in self._connection.execute(_PAGE, values)]

    def of_name(self, name: str) -> list[Entry]:
        """Returns every entry that claims ``name``, in the order in which a search finds them."""
        return [Entry.of(row) for row in self._connection.execute(_OF_NAME, (name,)).fetchall()]

    def name(self, name: str) -> Name | None:
        return Name.of(self.of_name(name))

    def at(self, path: bytes) -> Entry | None:
        row = self._connection.execute(_AT, (path,)).fetchone()
        return Entry.of(row) if row else None

    def slice(self, after: int, limit: int) -> list[tuple[int, Entry]]:
        """Returns at most ``limit`` bundles of directories whose ids are above ``after``, by id."""
        rows = self._connection.execute(_SLICE, (after, PUBLISHED, limit))
        return [(row[0], Entry.of(row[1:])) for row in rows]

    def places(self) -> Iterator[Place]:
        """Yields the place of every bundle of a directory. Long when they are many; checksums are not compared."""
        sql = "SELECT path, rank, place FROM bundles WHERE rank < ?"
        for path, rank, place in self._connection.execute(sql, (PUBLISHED,)):
            yield Place(os.fsdecode(path), rank, place)

    def sizes(self) -> tuple[int, int]:
        """Returns the number of bundles of directories, and of the paths that are watched for them. Takes milliseconds
        when they are many."""
        bundles, paths = self._connection.execute(_SIZES, (PUBLISHED - 1,)).fetchone()
        return int(bundles), int(paths)

    def digests(self) -> Iterator[str]:
        """Yields the digest of every bundle that is a skill. Long when they are many."""
        for (digest,) in self._connection.execute("SELECT digest FROM bundles WHERE digest IS NOT NULL"):
            yield digest

    def problems(self, limit: int) -> list[Finding]:
        found: list[Finding] = []
        for errors, refusal in self._connection.execute(_PROBLEMS, (limit,)):
            found += findings_of(errors)
            found += findings_of(refusal)
        return found

    def problem_count(self) -> int:
        """Returns the number of bundles with problems."""
        return int(self._connection.execute(f"SELECT count(*) FROM bundles WHERE {_PROBLEM}").fetchone()[0])  # noqa: S608

    def publications(self, name: str) -> list[Entry]:
        """Returns the entries of a name's publications: served, withdrawn and pinned ones."""
        sql = f"SELECT {_ALL} FROM bundles WHERE path >= ? AND path < ?"  # noqa: S608 - '@' is followed by 'A'
        rows = self._connection.execute(sql, (key_of(name, ""), f"{name}A".encode())).fetchall()
        return [Entry.of(row) for row in rows]

    def published_names(self, *, broken: bool = False) -> set[str]:
        """Returns the names with publications or a pin; with ``broken`` those with problems."""
        sql = f"SELECT path FROM bundles WHERE rank >= ? AND ({_PROBLEM} OR NOT ?)"  # noqa: S608
        return {name_of(row[0]) for row in self._connection.execute(sql, (PUBLISHED, broken))}
