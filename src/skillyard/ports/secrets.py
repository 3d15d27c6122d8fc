"""Secret values by name, project and skill. No value is ever logged, listed or told by an error."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from skillyard.domain.secret import EVERYBODY, Delivery, Secret, SecretEntry, SecretEvent, SecretScope


class SecretReader(Protocol):
    """Somewhere that secrets are."""

    @property
    def label(self) -> str:
        """How messages and records call it: ``store``, ``vault``."""
        ...

    async def find(self, name: str, project: str, skill: str) -> Secret | None:
        """Returns the secret that a run of ``skill`` in ``project`` may have under ``name``.

        None means that it is surely not there. Raises StoreFault, naming the source, when that cannot be told.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and forget what was kept. Idempotent."""
        ...


class SecretStore(SecretReader, Protocol):
    """The one that operators change through us. An entry is a name and a scope."""

    async def set(
        self,
        name: str,
        value: str,
        scope: SecretScope = EVERYBODY,
        *,
        delivery: Delivery | None = None,
        hosts: Sequence[str] | None = None,
        by: str = "",
    ) -> SecretEntry:
        """Stores a new version, which is current at once.

        Parameters that are None keep the values before, ENV and no hosts at first.

        Raises InvalidInput for a name that is not a valid environment variable name, a value that is empty, holds NUL
        or passes 64 KiB, a scope or host that cannot be one; QuotaExceeded; StoreFault.
        """
        ...

    async def bind(
        self, name: str, scope: SecretScope = EVERYBODY, *, delivery: Delivery, hosts: Sequence[str]
    ) -> SecretEntry:
        """Change the delivery and leave the value. Raises SecretNotFound, InvalidInput, StoreFault."""
        ...

    async def rollback(self, name: str, version: int, scope: SecretScope = EVERYBODY) -> SecretEntry:
        """Make a kept version the current one. Raises SecretNotFound, InvalidInput, StoreFault."""
        ...

    async def delete(self, name: str, scope: SecretScope = EVERYBODY) -> bool:
        """All versions. Whether it was there."""
        ...

    async def list(self) -> Sequence[SecretEntry]:
        """Sorted by name, project, skills."""
        ...

    async def rotate(self) -> int:
        """Seals everything under a new key; returns the number of values.

        The key is the first of those that the operator gives, where there are any.
        """
        ...

    async def keep(self, run_id: str, values: Sequence[str]) -> None:
        """Keeps the values that a run was given, sealed, whatever becomes of the secrets.

        They take the place of those that were kept for it before. Raises StoreFault.
        """
        ...

    async def kept(self, run_id: str) -> Sequence[str] | None:
        """Returns the values that are kept for a run. Raises StoreFault when they cannot be read."""
        ...

    async def forget(self, run_id: str) -> None:
        """Erases the values that are kept for a run. Idempotent. Raises StoreFault."""
        ...

    async def keeping(self) -> Collection[str]:
        """Returns the ids of the runs for which values are kept. Raises StoreFault."""
        ...


class SecretAudit(Protocol):
    """Append-only."""

    async def record(self, events: Sequence[SecretEvent]) -> None:
        """All of them or none. Raises StoreFault; then nothing may be handed out."""
        ...

    async def list(
        self, *, limit: int = 100, before: int | None = None, name: str | None = None
    ) -> Sequence[tuple[int, SecretEvent]]:
        """Newest first, each with its number; ``before`` is the number of the last one seen."""
        ...

    async def used_at(self) -> dict[tuple[str, str], float]:
        """When each name and scope was last used, however short the audit is kept."""
        ...

    async def sweep(self, older_than: float) -> int: ...
