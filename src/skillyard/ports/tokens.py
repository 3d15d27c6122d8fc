"""Bearer tokens, hashed at rest; each is a principal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skillyard.domain.principal import Principal
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class TokenInfo:
    principal: Principal
    created_at: float
    last_used_at: float | None
    revoked: bool


class TokenStore(Protocol):
    async def create(self, principal: Principal, value: str | None = None) -> str:
        """The token's text, shown this once. Raises InvalidInput when the name is taken or the value is weak
        (under 24 characters) or not printable ASCII."""
        ...

    async def verify(self, token: str) -> Principal | None:
        """Constant-time in the token's bytes; None for unknown and revoked ones."""
        ...

    async def revoke(self, name: str) -> bool: ...

    async def list(self) -> Sequence[TokenInfo]: ...
