"""Where it is kept what the runs of environments import."""

from __future__ import annotations

from typing import Protocol

from skillyard.domain.preloading import Habits


class PreloadStore(Protocol):
    """Keys are file names of at most 100 characters. Nothing here may fail a run: what cannot be kept is forgotten."""

    async def load(self, key: str) -> Habits | None: ...

    async def save(self, key: str, habits: Habits) -> None: ...
