"""The tables of the catalogue's index: bundles, the directories that were searched, and a few facts.

Questions take well under a millisecond, unless they say otherwise. All of it blocks and raises sqlite3.Error and
Damaged.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from skillyard.domain.skill.skill import Finding, SkillLine
from skillyard.stores.skills.catalogue.directories import Folder
from skillyard.stores.skills.catalogue.rows import (
    COLUMNS,
    PUBLISHED,
    UNPLACED,
    Entry,
    Name,
    added,
    findings_of,
    folder_of,
    folder_row,
    key_of,
    line_of,
    name_of,
    opened,
    sealed,
)

SCHEMA_VERSION = 2
"""A change of the tables raises it: there are no migrations of a cache."""

SCHEMA = (
    "CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL, seal BLOB NOT NULL) STRICT, WITHOUT ROWID",
    # A directory that was searched: what it looked like, and which of its entries are searched on or are bundles.
    """
    CREATE TABLE folders (
        root    INTEGER NOT NULL,
        path    BLOB NOT NULL,
        stamp   BLOB NOT NULL,
        listing TEXT NOT NULL,
        seal    BLOB NOT NULL,
        PRIMARY KEY (root, path)
    ) STRICT, WITHOUT ROWID""",
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


class Table:
    """One connection to the index. Each is for one thread at a time; changes are made by one of them, and it sees what
    it has not committed. ``revision`` is the catalogue's, for the one that changes it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.revision = 0

    def load_revision(self) -> None:
        self.revision = int(self.fact("revision") or "0", 16)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        before = self.revision
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            if self.revision != before:
                self.put_fact("revision", f"{self.revision:x}")
            self._connection.execute("COMMIT")
        except BaseException:
            self.revision = before
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def fact(self, key: str) -> str | None:
        row = self._connection.execute("SELECT key, value, seal FROM facts WHERE key = ?", (key,)).fetchone()
        return str(opened(row)[1]) if row else None

    def put_fact(self, key: str, value: str) -> None:
        sql = "INSERT OR REPLACE INTO facts (key, value, seal) VALUES (?, ?, ?)"
        self._connection.execute(sql, sealed((key, value)))

    def page(self, after: str | None, limit: int, namespace: str | None) -> list[SkillLine]:
        """``namespace`` ends at a dot: what is below it sorts from ``namespace.`` up to ``namespace/``."""
        values = (after or "", namespace, namespace, f"{namespace}.", f"{namespace}/", limit)
        return [line_of(row) for row in self._connection.execute(_PAGE, values)]

    def of_name(self, name: str) -> list[Entry]:
        """Returns every entry that says to be ``name``, in the order in which they are found."""
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

    def put(self, entry: Entry) -> None:
        """Stores an entry in the place of the one at its path."""
        self.revision = added(self.revision, self.at(entry.path), entry)
        self._connection.execute(_PUT, entry.row())

    def drop(self, path: bytes, rank: int) -> str | None:
        """Removes the bundle at ``path``, unless it was found at another rank since; returns the name that it had."""
        before = self.at(path)
        if before is None or before.rank != rank:
            return None
        self.revision = added(self.revision, before, None)
        self._connection.execute("DELETE FROM bundles WHERE path = ?", (path,))
        return before.name

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
        """Returns what is known of a name's publications: served, withdrawn and pinned ones."""
        sql = f"SELECT {_ALL} FROM bundles WHERE path >= ? AND path < ?"  # noqa: S608 - '@' is followed by 'A'
        rows = self._connection.execute(sql, (key_of(name, ""), f"{name}A".encode())).fetchall()
        return [Entry.of(row) for row in rows]

    def published_names(self, *, broken: bool = False) -> set[str]:
        """Returns the names of which anything was published or pinned; with ``broken`` those with problems."""
        sql = f"SELECT path FROM bundles WHERE rank >= ? AND ({_PROBLEM} OR NOT ?)"  # noqa: S608
        return {name_of(row[0]) for row in self._connection.execute(sql, (PUBLISHED, broken))}

    def unplace(self) -> None:
        """Marks every bundle of a directory as one that has to be found again."""
        last = 0
        while found := self.slice(last, 500):
            last = found[-1][0]
            for _, entry in found:
                self.put(replace(entry, rank=UNPLACED))
        self._connection.execute("DELETE FROM folders")

    def unfound(self) -> list[bytes]:
        """Returns the paths of bundles that were not found again."""
        rows = self._connection.execute("SELECT path FROM bundles WHERE rank = ?", (UNPLACED,))
        return [row[0] for row in rows.fetchall()]

    def folders(self, root: int) -> dict[str, Folder]:
        """Returns every directory that was searched below a root. Long when they are many."""
        sql = "SELECT root, path, stamp, listing, seal FROM folders WHERE root = ?"
        return dict(folder_of(row) for row in self._connection.execute(sql, (root,)))

    def put_folder(self, root: int, path: str, folder: Folder | None) -> None:
        """Stores a directory; None removes it."""
        if folder is None:
            self._connection.execute("DELETE FROM folders WHERE root = ? AND path = ?", (root, os.fsencode(path)))
        else:
            sql = "INSERT OR REPLACE INTO folders (root, path, stamp, listing, seal) VALUES (?, ?, ?, ?, ?)"
            self._connection.execute(sql, folder_row(root, path, folder))

    def tops(self, rank: int, starts: Collection[str]) -> tuple[str, ...]:
        """Returns those of ``starts`` that are bundles themselves."""
        found = ((start, self.at(os.fsencode(start))) for start in starts)
        return tuple(start for start, entry in found if entry and entry.rank == rank)
