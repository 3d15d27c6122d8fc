"""Changes of the index: one at a time, whole or not at all. All of it blocks."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

from skillyard.stores.skills.catalogue.index.reads import COLUMNS, Reads, Withdrawal
from skillyard.stores.skills.catalogue.index.rows import PUBLISHED, UNPLACED, Entry, Name, folder_row, key_of, name_of
from skillyard.stores.skills.catalogue.index.seal import sealed
from skillyard.stores.skills.layout import Folder

_NEW = ", ".join(f"{field.name} = excluded.{field.name}" for field in fields(Entry) if field.name != "path")
_PUT = f"""
    INSERT INTO bundles ({COLUMNS}) VALUES ({", ".join("?" for _ in (*fields(Entry), "seal"))})
    ON CONFLICT (path) DO UPDATE SET {_NEW}, seal = excluded.seal, refusal = ''"""  # noqa: S608 - fixed texts
_OF_NAME = f"SELECT id, {COLUMNS} FROM bundles WHERE name = ? ORDER BY rank, place"  # noqa: S608


class Writes:
    """For one caller at a time. Raises sqlite3.Error and Damaged."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def put_fact(self, key: str, value: str) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO facts (key, value, seal) VALUES (?, ?, ?)", sealed((key, value))
        )

    def put(self, entry: Entry) -> None:
        """In the place of what is at its path. What is served has to be arranged again."""
        self._connection.execute(_PUT, entry.row())

    def drop(self, path: bytes, rank: int) -> str | None:
        """The bundle at ``path``, unless it was found at another rank since. The name that it had."""
        sql = "DELETE FROM bundles WHERE path = ? AND rank = ? RETURNING name"
        rows = self._connection.execute(sql, (path, rank)).fetchall()
        return rows[0][0] if rows else None

    def unplace(self) -> None:
        """Every bundle of a directory has to be found again."""
        reads, last = Reads(self._connection), 0
        while found := reads.slice(last, 500):
            last = found[-1][0]
            for _, entry in found:
                self.put(replace(entry, rank=UNPLACED))
        self._connection.execute("DELETE FROM folders")

    def unfound(self) -> list[bytes]:
        """Paths of bundles that were not found again."""
        rows = self._connection.execute("SELECT path FROM bundles WHERE rank = ?", (UNPLACED,))
        return [row[0] for row in rows.fetchall()]

    def of_name(self, name: str) -> list[tuple[int, Entry]]:
        """Every bundle that says to be ``name``, in the order in which they are found."""
        return [(row[0], Entry.of(row[1:])) for row in self._connection.execute(_OF_NAME, (name,)).fetchall()]

    def published_names(self) -> set[str]:
        """Of which anything is known to have been published or pinned."""
        keys = self._connection.execute("SELECT path FROM bundles WHERE rank = ?", (PUBLISHED,))
        said = self._connection.execute("SELECT name FROM withdrawn UNION SELECT name FROM pins")
        return {name_of(row[0]) for row in keys} | {row[0] for row in said}

    def published_keys(self, name: str) -> list[bytes]:
        """Keys of the published versions of a name."""
        sql = "SELECT path FROM bundles WHERE path >= ? AND path < ?"  # '@' is followed by 'A'
        return [row[0] for row in self._connection.execute(sql, (key_of(name, ""), f"{name}A".encode())).fetchall()]

    def broken_names(self) -> set[str]:
        """Of published versions that have errors."""
        sql = "SELECT path FROM bundles WHERE rank = ? AND (errors <> '' OR refusal <> '')"
        return {name_of(row[0]) for row in self._connection.execute(sql, (PUBLISHED,))}

    def refuse(self, bundle: int, finding: str) -> None:
        sql = "UPDATE bundles SET refusal = ? WHERE id = ? AND refusal <> ?"
        self._connection.execute(sql, (finding, bundle, finding))

    def put_name(self, name: Name) -> None:
        sql = "INSERT OR REPLACE INTO names (name, latest, line, versions, seal) VALUES (?, ?, ?, ?, ?)"
        self._connection.execute(sql, name.row())

    def drop_name(self, name: str) -> None:
        self._connection.execute("DELETE FROM names WHERE name = ?", (name,))

    def put_folder(self, root: int, path: str, folder: Folder) -> None:
        sql = "INSERT OR REPLACE INTO folders (root, path, stamp, listing, seal) VALUES (?, ?, ?, ?, ?)"
        self._connection.execute(sql, folder_row(root, path, folder))

    def drop_folder(self, root: int, path: str) -> None:
        self._connection.execute("DELETE FROM folders WHERE root = ? AND path = ?", (root, os.fsencode(path)))

    def put_withdrawn(self, name: str, found: Iterable[tuple[str, Withdrawal]]) -> None:
        """All withdrawals of a name, by the version without build metadata."""
        self._connection.execute("DELETE FROM withdrawn WHERE name = ?", (name,))
        rows = [(name, place, what.version, what.at, what.reason) for place, what in found]
        sql = "INSERT INTO withdrawn (name, place, version, at, reason) VALUES (?, ?, ?, ?, ?)"
        self._connection.executemany(sql, rows)

    def withdrawn(self, name: str) -> dict[str, Withdrawal]:
        """By the version without build metadata."""
        sql = "SELECT place, version, at, reason FROM withdrawn WHERE name = ?"
        return {row[0]: Withdrawal(*row[1:]) for row in self._connection.execute(sql, (name,)).fetchall()}

    def put_pin(self, name: str, version: str | None) -> None:
        if version is None:
            self._connection.execute("DELETE FROM pins WHERE name = ?", (name,))
        else:
            self._connection.execute("INSERT OR REPLACE INTO pins (name, version) VALUES (?, ?)", (name, version))
