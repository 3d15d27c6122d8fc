"""Immutable bytes behind ``blob:<id>``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Protocol

from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """``kind`` is a MIME type, ``sha256`` lowercase hex of the bytes, times UTC seconds."""

    blob_id: str
    kind: str
    size: int
    sha256: str
    owner: str
    created_at: float
    expires_at: float | None
    run_id: str | None = None


class BlobStore(Protocol):
    async def create(
        self,
        owner: str,
        kind: str,
        data: bytes | AsyncIterator[bytes],
        *,
        blob_id: str | None = None,
        run_id: str | None = None,
        ttl_s: float | None = None,
        max_bytes: int | None = None,
    ) -> BlobInfo:
        """Store bytes, in constant memory when streamed. Nothing is left when it fails or is cancelled.

        Raises QuotaExceeded (blob size, ``max_bytes``, the owner's quota), InvalidInput (kind, ``blob_id``
        taken), StoreFault (disk full).
        """
        ...

    async def stat(self, blob_id: str) -> BlobInfo | None:
        """None for what does not exist or has expired. The caller checks the owner."""
        ...

    def read(self, blob_id: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Raises BlobNotFound before the first chunk."""
        ...

    async def path(self, blob_id: str) -> Path:
        """A local immutable file (0444) holding the bytes, for mounting. Raises BlobNotFound."""
        ...

    async def delete(self, blob_id: str) -> bool:
        """Returns whether it was there."""
        ...

    async def list(self, owner: str | None, *, limit: int = 100, after: str | None = None) -> Sequence[BlobInfo]:
        """Newest first; ``owner`` None for all; ``after`` is the last blob id of the page before."""
        ...

    async def trim(self, made_bytes: int, before: float, besides: Collection[str] = ()) -> int:
        """Removes the oldest blobs of an owner's runs until those left take ``made_bytes``.

        Returns how many went. Those of runs ``besides``, and those made at ``before`` or later, stay."""
        ...

    async def sweep(self) -> int:
        """Remove what has expired and what a crash left half-written; how many went."""
        ...
