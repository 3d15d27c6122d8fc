"""Questions to the index: each takes well under a millisecond, unless it says otherwise."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields

from skillyard.domain.skill.skill import Finding, SkillLine
from skillyard.stores.skills.catalogue.index.rows import PUBLISHED, Entry, Name, findings_of, folder_of, line_of
from skillyard.stores.skills.catalogue.index.seal import Damaged, opened
from skillyard.stores.skills.layout import Folder

COLUMNS = ", ".join((*(field.name for field in fields(Entry)), "seal"))

_NAME = "SELECT name, latest, line, versions, seal FROM names WHERE name = ?"
_PAGE = """
    SELECT name, latest, line, versions, seal FROM names
    WHERE name > ? AND (? IS NULL OR name = ? OR (name >= ? AND name < ?))
    ORDER BY name LIMIT ?"""
_BUNDLE = f"SELECT {COLUMNS} FROM bundles WHERE id = ?"  # noqa: S608 - fixed texts
_AT = f"SELECT {COLUMNS} FROM bundles WHERE path = ?"  # noqa: S608
_SLICE = f"SELECT id, {COLUMNS} FROM bundles WHERE id > ? AND rank < ? ORDER BY id LIMIT ?"  # noqa: S608
_PROBLEMS = """
    SELECT errors, refusal FROM bundles WHERE errors <> '' OR refusal <> '' ORDER BY rank, place LIMIT ?"""
_PROBLEM_COUNT = "SELECT count(*) FROM bundles WHERE errors <> '' OR refusal <> ''"
_SIZES = "SELECT count(*), coalesce(sum(paths), 0) FROM bundles WHERE rank < ?"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    version: str
    at: float
    reason: str


class Reads:
    """Raises sqlite3.Error and Damaged."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def fact(self, key: str) -> str | None:
        row = self._connection.execute("SELECT key, value, seal FROM facts WHERE key = ?", (key,)).fetchone()
        return str(opened(row)[1]) if row else None

    def name(self, name: str) -> Name | None:
        row = self._connection.execute(_NAME, (name,)).fetchone()
        return Name.of(row) if row else None

    def page(self, after: str | None, limit: int, namespace: str | None) -> list[SkillLine]:
        """``namespace`` ends at a dot: what is below it sorts from ``namespace.`` up to ``namespace/``."""
        values = (after or "", namespace, namespace, f"{namespace}.", f"{namespace}/", limit)
        return [line_of(row) for row in self._connection.execute(_PAGE, values)]

    def bundle(self, bundle: int) -> Entry:
        row = self._connection.execute(_BUNDLE, (bundle,)).fetchone()
        if row is None:
            raise Damaged("a version is served from a bundle that is not there")
        return Entry.of(row)

    def at(self, path: bytes) -> Entry | None:
        row = self._connection.execute(_AT, (path,)).fetchone()
        return Entry.of(row) if row else None

    def slice(self, after: int, limit: int) -> list[tuple[int, Entry]]:
        """At most ``limit`` bundles of directories whose ids are above ``after``, by id."""
        rows = self._connection.execute(_SLICE, (after, PUBLISHED, limit))
        return [(row[0], Entry.of(row[1:])) for row in rows]

    def problems(self, limit: int) -> list[Finding]:
        found: list[Finding] = []
        for errors, refusal in self._connection.execute(_PROBLEMS, (limit,)):
            found += findings_of(errors)
            found += findings_of(refusal)
        return found

    def problem_count(self) -> int:
        """Bundles with problems."""
        return int(self._connection.execute(_PROBLEM_COUNT).fetchone()[0])

    def sizes(self) -> tuple[int, int]:
        """Bundles of directories, and how many paths are watched for them. Milliseconds when they are many."""
        bundles, paths = self._connection.execute(_SIZES, (PUBLISHED,)).fetchone()
        return int(bundles), int(paths)

    def withdrawal(self, name: str, place: str) -> Withdrawal | None:
        sql = "SELECT version, at, reason FROM withdrawn WHERE name = ? AND place = ?"
        row = self._connection.execute(sql, (name, place)).fetchone()
        return Withdrawal(*row) if row else None

    def withdrawals(self, name: str) -> list[Withdrawal]:
        """In no order."""
        rows = self._connection.execute("SELECT version, at, reason FROM withdrawn WHERE name = ?", (name,))
        return [Withdrawal(*row) for row in rows]

    def pin(self, name: str) -> str | None:
        row = self._connection.execute("SELECT version FROM pins WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    def digests(self) -> Iterator[str]:
        """Of every bundle that is a skill. Long when they are many."""
        for (digest,) in self._connection.execute("SELECT digest FROM bundles WHERE digest IS NOT NULL"):
            yield digest

    def folders(self, root: int) -> dict[str, Folder]:
        """Every directory that was searched below a root. Long when they are many. Raises Damaged."""
        sql = "SELECT root, path, stamp, listing, seal FROM folders WHERE root = ?"
        return dict(folder_of(row) for row in self._connection.execute(sql, (root,)))

    def tops(self, rank: int, starts: Collection[str]) -> tuple[str, ...]:
        """Those of ``starts`` that are bundles themselves."""
        found = ((start, self.at(os.fsencode(start))) for start in starts)
        return tuple(start for start, entry in found if entry and entry.rank == rank)
