"""The file of the catalogue's index, made anew when it is damaged or of another kind. All of it blocks.

Two connections: ``near`` answers on the event loop's thread and only reads; ``far`` changes the index, for
one thread at a time. Commits survive the death of the process; SQLite's log keeps the file whole whatever happens.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from skillyard.domain.errors import StoreFault
from skillyard.stores.disk import give_to_owner
from skillyard.stores.skills import tree
from skillyard.stores.skills.catalogue.rows import Damaged, sealed
from skillyard.stores.skills.catalogue.table import SCHEMA, SCHEMA_VERSION, Table
from skillyard.stores.skills.tree import Caps
from skillyard.stores.sqlite.faults import as_fault, primary_code

APPLICATION_ID = 0x736B7963
"""``skyc`` in ASCII."""

_RULES = ("domain", "stores/skills")
_LIBRARIES = ("jsonschema-rs", "pyyaml")
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
"""Errors of a damaged index; Python's own module raises the last for a name that is not text."""

Connections = tuple[sqlite3.Connection, sqlite3.Connection]
"""Near and far."""


def is_damage(error: Exception) -> bool:
    """Returns whether a new file may help: the host's faults stay whatever the file is."""
    return not isinstance(error, sqlite3.Error) or primary_code(error) not in _OF_THE_HOST


class Index:
    """``near`` answers on the event loop's thread. ``table`` is for one thread at a time, and sees
    what it has not committed. All methods block and raise StoreFault."""

    def __init__(self, path: Path, mark: str) -> None:
        """Opens the index at ``path``, an empty one when it is damaged or has another ``mark``."""
        self._path = path
        self._mark = mark
        self._open()

    def renew(self) -> None:
        """Puts an empty one in its place."""
        self.close()
        _remove(self._path)
        self._open()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _open(self) -> None:
        path, mark = self._path, self._mark
        try:
            connections = _existing(path, mark) if path.exists() else None
            if connections is None:
                _remove(path)
                connections = _made(path, mark)
        except OSError as error:
            raise StoreFault(f"the catalogue's index {path} cannot be made: {error.strerror}") from error
        except sqlite3.Error as error:
            raise as_fault(error, str(path)) from error
        self._connections = connections
        self.near, self.table = (Table(connection) for connection in connections)


def _remove(path: Path) -> None:
    """Raises OSError."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _existing(path: Path, mark: str) -> Connections | None:
    """Returns None when the file cannot be used."""
    opened: list[sqlite3.Connection] = []
    try:
        far = _connect(path, opened)
        _check(far, mark)
        return _connect(path, opened, reads_only=True), far
    except BROKEN as error:
        for connection in opened:
            connection.close()
        if not is_damage(error):
            raise
        return None


def _check(connection: sqlite3.Connection, mark: str) -> None:
    """Raises Damaged for a file of another kind, sqlite3.Error for one that is not a database."""
    kind = (_pragma(connection, "application_id"), _pragma(connection, "user_version"))
    if kind != (APPLICATION_ID, SCHEMA_VERSION):
        raise Damaged("another kind of file")
    if connection.execute("SELECT key, value, seal FROM facts WHERE key = 'mark'").fetchall() != [_mark_row(mark)]:
        raise Damaged("made with other rules")
    if _pragma(connection, "quick_check(1)") != "ok":
        raise Damaged("its pages do not fit together")


def _made(path: Path, mark: str) -> Connections:
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
        return _connect(path, opened, reads_only=True), far
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


def mark_of(caps: Caps, *, lenient: bool) -> str:
    """Returns a text that differs for other rules, caps or libraries, which may judge otherwise."""
    return f"{rules_digest()} {caps} {'lenient' if lenient else 'strict'}"


@cache
def rules_digest() -> str:
    """Returns a digest of the modules that hold the rules, which nobody has to raise."""
    whole = hashlib.sha256(f"{sys.version_info[:3]}{[version(name) for name in _LIBRARIES]}".encode())
    home = Path(tree.__file__).parents[2]
    for file in sorted(file for part in _RULES for file in (home / part).rglob("*.py")):
        whole.update(f"\n{file.relative_to(home)}\n".encode())
        whole.update(file.read_bytes())
    return whole.hexdigest()[:32]
