"""The file: opened when it is whole and of the right kind, else made anew. All of it blocks.

Two connections: ``near`` answers on the event loop's thread and only reads; ``far`` belongs to whoever changes the
index, one at a time. Commits survive the death of the process; SQLite's log keeps the file whole whatever happens.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from skillyard.domain.errors import StoreFault
from skillyard.stores.files.state_file import give_to_owner
from skillyard.stores.skills.catalogue.index.schema import SCHEMA, SCHEMA_VERSION
from skillyard.stores.skills.catalogue.index.seal import Damaged, sealed
from skillyard.stores.sqlite.faults import as_fault, primary_code

APPLICATION_ID = 0x736B7963
"""``skyc`` in ASCII."""

_OF_THE_HOST = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_NOMEM,
    }
)


BROKEN = (sqlite3.Error, Damaged, UnicodeDecodeError)
"""What is raised by an index that is damaged; the last by Python's own module, for names that are no text."""


def is_damage(error: Exception) -> bool:
    """Whether a new file may help: the host's faults stay whatever the file is."""
    return not isinstance(error, sqlite3.Error) or primary_code(error) not in _OF_THE_HOST


@dataclass(frozen=True, slots=True)
class IndexFile:
    near: sqlite3.Connection
    far: sqlite3.Connection

    @classmethod
    def open(cls, path: Path, mark: str) -> IndexFile:
        """The index at ``path``, an empty one when it is damaged or was made with another ``mark``.
        Raises StoreFault."""
        try:
            if path.exists() and (found := _existing(path, mark)):
                return found
            remove(path)
            return _made(path, mark)
        except OSError as error:
            raise StoreFault(f"the catalogue's index {path} cannot be made: {error.strerror}") from error
        except sqlite3.Error as error:
            raise as_fault(error, str(path)) from error

    def close(self) -> None:
        self.near.close()
        self.far.close()


def remove(path: Path) -> None:
    """Raises OSError."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _existing(path: Path, mark: str) -> IndexFile | None:
    """None when the file cannot be used."""
    opened: list[sqlite3.Connection] = []
    try:
        far = _connect(path, opened)
        _check(far, mark)
        return IndexFile(_connect(path, opened, reads_only=True), far)
    except BROKEN as error:
        for connection in opened:
            connection.close()
        if not is_damage(error):
            raise
        return None


def _check(connection: sqlite3.Connection, mark: str) -> None:
    """Raises Damaged for a file of another kind, sqlite3.Error for one that is none."""
    kind = (_pragma(connection, "application_id"), _pragma(connection, "user_version"))
    if kind != (APPLICATION_ID, SCHEMA_VERSION):
        raise Damaged("another kind of file")
    if connection.execute("SELECT key, value, seal FROM facts WHERE key = 'mark'").fetchall() != [_mark_row(mark)]:
        raise Damaged("made with other rules")
    if _pragma(connection, "quick_check(1)") != "ok":
        raise Damaged("its pages do not fit together")


def _made(path: Path, mark: str) -> IndexFile:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        give_to_owner(descriptor, path.parent)
    finally:
        os.close(descriptor)
    opened: list[sqlite3.Connection] = []
    try:
        far = _connect(path, opened)
        far.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            far.execute(statement)
        far.execute("INSERT INTO facts (key, value, seal) VALUES (?, ?, ?)", _mark_row(mark))
        far.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        far.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        far.execute("COMMIT")
        return IndexFile(_connect(path, opened, reads_only=True), far)
    except BaseException:
        for connection in opened:
            connection.close()
        raise


def _connect(path: Path, opened: list[sqlite3.Connection], *, reads_only: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    opened.append(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA journal_size_limit = 16777216")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute(f"PRAGMA query_only = {'ON' if reads_only else 'OFF'}")
    return connection


def _mark_row(mark: str) -> tuple[object, ...]:
    return sealed(("mark", mark))


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
