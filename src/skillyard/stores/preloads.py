"""What runs import, one small file an environment; it may be deleted at any time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from skillyard.domain.errors import StoreFault
from skillyard.domain.preloading import Habits
from skillyard.stores.environments.small_file import read_json, write_json

MOST_FILES = 512


class FilePreloads:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def load(self, key: str) -> Habits | None:
        return await asyncio.to_thread(self._load, key)

    async def save(self, key: str, habits: Habits) -> None:
        await asyncio.to_thread(self._save, key, habits)

    def _load(self, key: str) -> Habits | None:
        try:
            data = read_json(self._file(key))
            return None if data is None else Habits.of(data)
        except (StoreFault, ValueError):
            return None

    def _save(self, key: str, habits: Habits) -> None:
        try:
            write_json(self._file(key), habits.as_dict())
            files = sorted(self._directory.glob("*.json"), key=lambda file: file.stat().st_mtime)
            for old in files[:-MOST_FILES]:
                old.unlink()
        except (StoreFault, OSError):
            return  # it will be learnt again

    def _file(self, key: str) -> Path:
        return self._directory / f"{key}.json"
