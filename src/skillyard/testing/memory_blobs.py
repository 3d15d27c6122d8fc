"""The in-memory twin of the blob store."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from skillyard.domain.blob import BlobLimits, expiry
from skillyard.domain.checks import check_blob_id, check_media_type, check_page, check_range
from skillyard.domain.errors import BlobNotFound, InvalidInput, QuotaExceeded, shown
from skillyard.ports.blobs import BlobInfo
from skillyard.ports.clock import Clock, Ids

PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Blob:
    info: BlobInfo
    content: bytes


class MemoryBlobs:
    """A :class:`skillyard.ports.blobs.BlobStore`.

    :meth:`path` puts its files into ``directory``.
    """

    def __init__(self, directory: Path, clock: Clock, ids: Ids, *, limits: BlobLimits | None = None) -> None:
        self._directory = directory
        self._clock = clock
        self._ids = ids
        self._limits = limits or BlobLimits()
        self._blobs: dict[str, _Blob] = {}

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
        check_media_type("kind", kind)
        blob_id = self._ids.blob() if blob_id is None else check_blob_id("blob_id", blob_id)
        now = self._clock.now()
        expires_at = expiry(now, ttl_s)
        content = bytearray()
        async for piece in _pieces(data):
            content += piece
            self._limits.check_size(len(content), max_bytes)
        self._check_quota(owner, len(content))
        if blob_id in self._blobs:
            raise InvalidInput("blob_id", "is taken", shown(blob_id))
        digest = hashlib.sha256(content).hexdigest()
        info = BlobInfo(blob_id, kind, len(content), digest, owner, now, expires_at, run_id)
        self._blobs[blob_id] = _Blob(info, bytes(content))
        return info

    async def stat(self, blob_id: str) -> BlobInfo | None:
        blob = self._live(blob_id)
        return None if blob is None else blob.info

    async def read(self, blob_id: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        check_range(offset, length)
        content = self._found(blob_id).content
        end = len(content) if length is None else min(len(content), offset + length)
        for start in range(offset, end, PIECE):
            yield content[start : min(end, start + PIECE)]

    async def path(self, blob_id: str) -> Path:
        blob = self._found(blob_id)
        path = self._directory / blob.info.sha256
        if not path.exists():
            path.write_bytes(blob.content)
            path.chmod(0o444)
        return path

    async def delete(self, blob_id: str) -> bool:
        live = self._live(blob_id) is not None
        self._blobs.pop(blob_id, None)
        return live

    async def list(self, owner: str | None, *, limit: int = 100, after: str | None = None) -> Sequence[BlobInfo]:
        check_page(limit)
        found = [b.info for b in reversed(self._blobs.values()) if owner is None or b.info.owner == owner]
        if after is not None:
            ids = [info.blob_id for info in found]
            if after not in ids:
                raise InvalidInput("after", "must be the id of an existing blob", shown(after))
            found = found[ids.index(after) + 1 :]
        return [info for info in found if not self._expired(info)][:limit]

    async def trim(self, made_bytes: int, before: float, besides: Collection[str] = ()) -> int:
        kept: Counter[str] = Counter()
        gone = []
        for info in [blob.info for blob in reversed(self._blobs.values()) if blob.info.run_id is not None]:
            kept[info.owner] += info.size
            if kept[info.owner] > made_bytes and info.created_at < before and info.run_id not in besides:
                gone.append(info.blob_id)
        for blob_id in gone:
            del self._blobs[blob_id]
        return len(gone)

    async def sweep(self) -> int:
        return self._purge(None)

    def _check_quota(self, owner: str, size: int) -> None:
        try:
            self._limits.check_owner(*self._stored(owner), size)
        except QuotaExceeded:
            self._purge(owner)
            self._limits.check_owner(*self._stored(owner), size)

    def _stored(self, owner: str) -> tuple[int, int]:
        sizes = [blob.info.size for blob in self._blobs.values() if blob.info.owner == owner]
        return len(sizes), sum(sizes)

    def _purge(self, owner: str | None) -> int:
        expired = [
            blob.info.blob_id
            for blob in self._blobs.values()
            if self._expired(blob.info) and owner in (None, blob.info.owner)
        ]
        for blob_id in expired:
            del self._blobs[blob_id]
        return len(expired)

    def _live(self, blob_id: str) -> _Blob | None:
        blob = self._blobs.get(blob_id)
        return None if blob is None or self._expired(blob.info) else blob

    def _found(self, blob_id: str) -> _Blob:
        blob = self._live(blob_id)
        if blob is None:
            raise BlobNotFound("blob_id", f"no blob '{blob_id[:160]}'", blob_id=blob_id[:160])
        return blob

    def _expired(self, info: BlobInfo) -> bool:
        return info.expires_at is not None and info.expires_at <= self._clock.now()


async def _pieces(data: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if isinstance(data, bytes):
        yield data
        return
    async for piece in data:
        yield piece
