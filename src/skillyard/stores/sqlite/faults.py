"""Errors of SQLite as faults that name the cause and the remedy."""

from __future__ import annotations

import sqlite3

from skillyard.domain.errors import StoreFault

_CAUSES = {
    sqlite3.SQLITE_BUSY: "is locked by another process; end that process or try again",
    sqlite3.SQLITE_LOCKED: "is locked by another connection; try again",
    sqlite3.SQLITE_READONLY: "cannot be written; check the owner and mode of the file and of its directory",
    sqlite3.SQLITE_PERM: "may not be opened; check the owner and mode of the file",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that its directory exists and is writable",
    sqlite3.SQLITE_FULL: "has no room left on its disk; free some space",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup",
    sqlite3.SQLITE_NOTADB: "is no SQLite database; move the file away or restore it from a backup",
}


def primary_code(error: sqlite3.Error) -> int:
    """Returns the low byte of the result code, 0 for errors of the Python module."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def as_fault(error: sqlite3.Error, name: str) -> StoreFault:
    """Returns a StoreFault for ``error`` about the database that the operator knows as ``name``."""
    cause = _CAUSES.get(primary_code(error), f"refused a statement ({error})")
    return StoreFault(f"the database {name} {cause}")
