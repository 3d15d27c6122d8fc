"""Locks, each in a small JSON file: the same requirements give the same versions later."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skillyard.domain.errors import StoreFault
from skillyard.domain.package.environment import Lock, Wanted
from skillyard.ports.environments import Origin, StoredLock

TEMPORARY = ".tmp-"
MOST_LOCKS = 5000


def read_json(file: Path) -> dict[str, Any] | None:
    """Returns None when there is no such file. Raises StoreFault."""
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreFault(f"{file} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise StoreFault(f"{file} is damaged")
    return data


def write_json(file: Path, data: dict[str, Any], modified_at: float | None = None) -> None:
    """Writes a file beside and renames it: it is there whole or not at all. With ``modified_at``, nobody sees the file
    with another time. Raises StoreFault."""
    new = file.with_name(f"{TEMPORARY}{file.name}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new.open("w", encoding="utf-8") as stream:
            json.dump(data, stream)
            stream.flush()
            os.fsync(stream.fileno())
        if modified_at is not None:
            os.utime(new, (modified_at, modified_at))
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise StoreFault(f"{file} cannot be written: {error.strerror}") from error


class Locks:
    """Its methods block for as long as a small file takes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, wanted: Wanted, origin: Origin) -> StoredLock | None:
        """Raises StoreFault."""
        return _read(self._file(wanted, origin))

    def keep(self, wanted: Wanted, origin: Origin, lock: Lock, now: float) -> None:
        """Raises StoreFault."""
        self._trim()
        stored = StoredLock(lock, wanted.requirements, origin.index, now)
        write_json(self._file(wanted, origin), asdict(stored))

    def leading_to(self, digest: str) -> Iterator[Path]:
        """The files of those that name the environment ``digest``."""
        for file in self._directory.glob("*.json"):
            stored = _read(file)
            if stored is not None and stored.lock.digest == digest:
                yield file

    def _trim(self) -> None:
        """Removes the oldest locks: callers may ask for ever new sets of packages."""
        files = list(self._directory.iterdir()) if self._directory.is_dir() else []
        if len(files) < MOST_LOCKS:
            return
        files.sort(key=lambda file: file.lstat().st_mtime)
        for file in files[: MOST_LOCKS // 10]:
            file.unlink(missing_ok=True)

    def _file(self, wanted: Wanted, origin: Origin) -> Path:
        parts = [wanted.requirements, origin.platform, origin.index, sorted(origin.source)]
        if wanted.held:
            parts.append(wanted.digest)
        return self._directory / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}.json"


def _read(file: Path) -> StoredLock | None:
    data = read_json(file)
    if data is None:
        return None
    try:
        lock = Lock(str(data["lock"]["text"]), str(data["lock"]["platform"]))
        return StoredLock(lock, tuple(data["requirements"]), str(data["index"]), float(data["resolved_at"]))
    except (KeyError, TypeError, ValueError):
        raise StoreFault(f"the lock {file} is damaged: remove it, and it is resolved anew") from None
