"""What requirements were resolved to, each in a small file: the same requirements give the same versions later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from skillyard.domain.errors import StoreFault
from skillyard.domain.package.environment import Lock, Wanted
from skillyard.ports.environments import Origin, StoredLock
from skillyard.stores.files.environments.small_file import read_json, write_json

MOST_LOCKS = 5000


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
        """Whoever may ask for packages may ask for ever new sets: the oldest give way."""
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
