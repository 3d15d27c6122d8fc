"""The format of a backup: a tar archive of files of a data directory, the manifest last.

The manifest is JSON, a value a line: first the facts of the backup, then each file with its size and SHA-256 in
ascending order of paths, last the SHA-256 of all lines before. It is read line by line, in constant memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, BinaryIO

from skillyard.domain.errors import InvalidInput
from skillyard.values import dataclass

NAME = "manifest.jsonl"
FORMAT = 1
MOST_LINE = 64 * 1024 * 1024
"""Bytes of the first line, which may name each content that was damaged already."""

DATABASE = "skillyard.db"
SEALED = "secrets.sealed"
TOKENS = "tokens.json"
PRIVATE_FILES = frozenset({DATABASE, SEALED, TOKENS, "config.toml"})
"""Files at the top, which are their owner's alone."""
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{2})/\1[0-9a-f]{62}")
_SNAPSHOT = re.compile(r"snapshots/[0-9a-f]{64}/.+")
_LOCK = re.compile(r"environments/locks/[0-9a-f]{32}\.json")
_SKILL = re.compile(r"skills/.+")


class BadBackup(InvalidInput):
    """The archive is not a backup, is damaged, or holds what no backup holds."""

    def __init__(self, rule: str) -> None:
        super().__init__("backup", rule)


@dataclass(frozen=True, slots=True)
class Facts:
    """``lacks`` names things that were damaged or missing already.

    ``left_out`` names things that a backup never holds. ``key`` is the id of the key that sealed the secrets, empty
    without secrets; ``owner`` says whether the owner's token was in its file."""

    skillyard: str
    created_at: float
    key: str = ""
    owner: bool = False
    lacks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Listed:
    path: str
    size: int
    sha256: str


def belongs(path: str) -> bool:
    """Returns whether a backup may hold a file at that path."""
    return path in PRIVATE_FILES or any(rule.fullmatch(path) for rule in (_BLOB, _SNAPSHOT, _LOCK, _SKILL))


def file_mode(path: str, *, executable: bool) -> int:
    """Returns the mode that a restored file has."""
    if path.startswith("snapshots/"):
        return 0o555 if executable else 0o444
    if path.startswith("skills/"):
        return 0o755 if executable else 0o644
    return 0o444 if path.startswith("blobs/") else 0o600


def directory_mode(path: str) -> int:
    """Returns the mode that a restored directory has."""
    if path.startswith("snapshots/"):
        return 0o555
    return 0o755 if path.startswith("skills/") else 0o700


class ManifestWriter:
    """Collects lines in ``file``; ``facts`` come last and are read first."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.files = 0
        self.bytes = 0

    def add(self, path: str, size: int, sha256: str) -> None:
        self._file.write(_line(asdict(Listed(path, size, sha256))))
        self.files += 1
        self.bytes += size

    def pieces(self, facts: Facts) -> Iterator[bytes]:
        """Yields the whole manifest."""
        whole = hashlib.sha256()
        self._file.seek(0)
        for line in (_line(asdict(facts)), *self._file):
            whole.update(line)
            yield line
        yield _line({"sha256": whole.hexdigest()})


class ManifestReader:
    """Reads a manifest that may hold anything. Raises BadBackup."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._whole = hashlib.sha256()
        self.facts = _facts(self._next() or {})

    def __iter__(self) -> Iterator[Listed]:
        before: tuple[str, ...] = ()
        while True:
            expected = self._whole.hexdigest()
            value = self._next()
            if value is None:
                raise BadBackup("is damaged: its manifest is cut off; take another backup")
            if value.keys() == {"sha256"}:
                if value["sha256"] != expected or self._file.read(1):
                    raise BadBackup("is damaged: its manifest does not have its digest; take another backup")
                return
            listed = _listed(value)
            parts = tuple(listed.path.split("/"))
            if parts <= before:
                raise BadBackup("is damaged: its manifest is not in order; take another backup")
            before = parts
            yield listed

    def _next(self) -> dict[str, Any] | None:
        line = self._file.readline(MOST_LINE)
        self._whole.update(line)
        if not line:
            return None
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise BadBackup("is damaged: its manifest cannot be read; take another backup")
        return value


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _facts(value: dict[str, Any]) -> Facts:
    if value.get("format") != FORMAT:
        raise BadBackup("was made by another version of skillyard; restore it with that version or a newer one")
    try:
        return Facts(
            str(value["skillyard"]),
            float(value["created_at"]),
            str(value["key"]),
            bool(value["owner"]),
            tuple(map(str, value["lacks"])),
            tuple(map(str, value["left_out"])),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BadBackup("is damaged: the facts in its manifest cannot be read; take another backup") from None


def _listed(value: dict[str, Any]) -> Listed:
    path, size, sha256 = value.get("path"), value.get("size"), value.get("sha256")
    if not isinstance(path, str) or not isinstance(size, int) or not isinstance(sha256, str):
        raise BadBackup("is damaged: a line of its manifest cannot be read; take another backup")
    return Listed(path, size, sha256)
