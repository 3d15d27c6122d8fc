"""Secret values by name. Nothing here is ever logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class SecretStore(Protocol):
    async def get(self, name: str) -> str | None: ...

    async def set(self, name: str, value: str) -> None:
        """Raises InvalidInput for a name that is no environment variable name, or a value that is empty,
        holds NUL or passes 64 KiB."""
        ...

    async def delete(self, name: str) -> bool: ...

    async def names(self) -> Sequence[str]: ...
