"""Indexes of git written by hand, right or wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

FILE, LINK = 0o100644, 0o120000


def entry(path: bytes, mode: int = FILE, *, length: int | None = None, width: int = 20) -> bytes:
    """Of version 2, padded."""
    flags = min(len(path), 0xFFF) if length is None else length
    raw = bytes(24) + mode.to_bytes(4, "big") + bytes(12 + width) + flags.to_bytes(2, "big") + path
    return raw + bytes(8 - len(raw) % 8)


def index(*entries: bytes, version: int = 2, count: int | None = None, more: bytes = b"", sum_: bytes = b"") -> bytes:
    number = len(entries) if count is None else count
    body = b"DIRC" + version.to_bytes(4, "big") + number.to_bytes(4, "big") + b"".join(entries) + more
    return body + (sum_ or hashlib.sha1(body).digest())


def checkout(home: Path, raw: bytes) -> Path:
    """A directory with that index."""
    (home / ".git").mkdir(parents=True)
    (home / ".git/index").write_bytes(raw)
    return home
