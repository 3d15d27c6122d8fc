"""Every place that secrets are found in, and the audit of what is done with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skillyard.domain.secret import Secret
from skillyard.ports.clock import Clock
from skillyard.ports.secrets import SecretAudit, SecretReader, SecretStore


@dataclass(frozen=True, slots=True)
class SecretBook:
    """The store is asked first, since an operator put there what it has, for exactly this project and skill; then the
    readers in their order. The first that has the name decides."""

    store: SecretStore
    audit: SecretAudit
    clock: Clock
    readers: Sequence[SecretReader] = ()

    async def find(self, name: str, project: str, skill: str) -> Secret | None:
        """Raises StoreFault when a source that was asked cannot tell: no later one is asked then, since what it has
        may be another value."""
        for source in (self.store, *self.readers):
            found = await source.find(name, project, skill)
            if found is not None:
                return found
        return None
