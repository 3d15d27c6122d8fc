"""The table of blobs: statements, and rows as values.

Operations return a refusal rather than raise it: raising would undo the writes of others beside them.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from skillyard.domain.blob import BlobLimits
from skillyard.domain.errors import InvalidInput, QuotaExceeded, shown
from skillyard.ports.blobs import BlobInfo

INFO = "blob_id, kind, size, sha256, owner, created_at, expires_at, run_id"
STAT = f"SELECT {INFO} FROM blobs WHERE blob_id = ?"  # noqa: S608 - fixed texts
KEY = "SELECT content_key FROM blobs WHERE blob_id = ?"
CONTENT = "SELECT content FROM blobs WHERE blob_id = ?"
POSITION = "SELECT seq, owner FROM blobs WHERE blob_id = ?"
KEYS = "SELECT DISTINCT content_key FROM blobs WHERE content_key >= ? AND content_key < ?"
STORED = "SELECT count, bytes FROM blob_owners WHERE owner = ?"

ANY_EXPIRED = "SELECT 1 FROM blobs WHERE expires_at <= ? AND owner = ? LIMIT 1"

_INSERT = """
    INSERT INTO blobs (blob_id, kind, size, sha256, owner, created_at, expires_at, run_id, content, content_key)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_EXPIRED = """
    DELETE FROM blobs WHERE seq IN
        (SELECT seq FROM blobs WHERE expires_at <= ?1 AND owner = coalesce(?2, owner) LIMIT ?3)
    RETURNING content_key"""
_RICH = "SELECT owner FROM blob_owners WHERE bytes > ?"
_OLDEST = """
    DELETE FROM blobs WHERE seq IN (
        SELECT seq FROM (
            SELECT seq, run_id, created_at, sum(size) OVER (ORDER BY seq DESC) AS kept
            FROM blobs WHERE owner = ?1 AND run_id IS NOT NULL)
        WHERE kept > ?2 AND created_at < ?3 AND run_id NOT IN (SELECT value FROM json_each(?4)) LIMIT ?5)
    RETURNING content_key"""


def content_key(owner: str, sha256: str) -> str:
    """Returns the name of a content's file. Equal bytes of two owners are two files, so that times and presence of one
    tell nothing of the other."""
    return hashlib.sha256(f"{sha256}:{owner}".encode("utf-8", "surrogatepass")).hexdigest()


def info_of(row: tuple[Any, ...]) -> BlobInfo:
    return BlobInfo(*row)


def insert(
    connection: sqlite3.Connection, info: BlobInfo, content: bytes | None, limits: BlobLimits
) -> InvalidInput | None:
    """Stores a row within the owner's quota. Returns the refusal when it is not stored."""
    count, size = connection.execute(STORED, (info.owner,)).fetchone() or (0, 0)
    try:
        limits.check_owner(count, size, info.size)
    except QuotaExceeded as refusal:
        return refusal
    values = (
        info.blob_id,
        info.kind,
        info.size,
        info.sha256,
        info.owner,
        info.created_at,
        info.expires_at,
        info.run_id,
        content,
        content_key(info.owner, info.sha256),
    )
    if connection.execute(_INSERT, values).rowcount == 1:
        return None
    return InvalidInput("blob_id", "is taken", shown(info.blob_id))


def delete(connection: sqlite3.Connection, blob_id: str) -> tuple[str, float | None] | None:
    """Deletes a row; returns its content's key and its expiry."""
    rows = connection.execute("DELETE FROM blobs WHERE blob_id = ? RETURNING content_key, expires_at", (blob_id,))
    found: list[tuple[str, float | None]] = rows.fetchall()
    return found[0] if found else None


def delete_expired(connection: sqlite3.Connection, now: float, owner: str | None, limit: int) -> list[str]:
    """Removes up to ``limit`` expired rows of one owner or of all. Returns their contents' keys."""
    return [row[0] for row in connection.execute(_EXPIRED, (now, owner, limit)).fetchall()]


def owners_above(connection: sqlite3.Connection, size: int) -> list[str]:
    """Returns the owners that store more bytes than ``size``."""
    return [row[0] for row in connection.execute(_RICH, (size,)).fetchall()]


def delete_oldest(
    connection: sqlite3.Connection, owner: str, most: int, before: float, besides: Collection[str], limit: int
) -> list[str]:
    """Removes up to ``limit`` rows of an owner's runs, those beyond the newest ``most`` bytes.

    Returns their contents' keys. Those of the runs ``besides``, and those made at ``before`` or later, stay."""
    values = (owner, most, before, json.dumps([*besides]), limit)
    return [row[0] for row in connection.execute(_OLDEST, values).fetchall()]


def unused(connection: sqlite3.Connection, keys: Sequence[str]) -> list[str]:
    """Returns the keys that no row names."""
    query = "SELECT 1 FROM blobs WHERE content_key = ? LIMIT 1"
    return [key for key in keys if not connection.execute(query, (key,)).fetchall()]


def page(owner: str | None, position: int | None, now: float, limit: int) -> tuple[str, list[Any]]:
    """Returns the query for a page of live blobs, newest first, and its values."""
    conditions: list[tuple[str, Any]] = [("(expires_at IS NULL OR expires_at > ?)", now)]
    if owner is not None:
        conditions.append(("owner = ?", owner))
    if position is not None:
        conditions.append(("seq < ?", position))
    where = " AND ".join(condition for condition, _ in conditions)
    query = f"SELECT {INFO} FROM blobs WHERE {where} ORDER BY seq DESC LIMIT ?"  # noqa: S608 - fixed texts
    return query, [*(value for _, value in conditions), limit]
