"""The service of blobs, for every face, the runtime and other services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from skillyard.domain.checks import is_blob_id
from skillyard.domain.errors import BlobNotFound, InvalidInput
from skillyard.domain.principal import Principal, Scope, agent_scope
from skillyard.domain.work.record import RunRecord
from skillyard.engine.shares import LargeReads
from skillyard.ports.blobs import BlobInfo, BlobStore
from skillyard.ports.records import RecordStore

MAX_READ = 4 * 1024 * 1024
"""Bytes of a blob that one answer may hold."""


class BlobService:
    """Blobs by scope and by owner. A blob of another principal is refused as one that does not exist."""

    def __init__(self, store: BlobStore, large_reads: LargeReads, *, ttl_s: float | None, json_bytes: int) -> None:
        """``ttl_s`` is the age in seconds at which a caller's blob is removed.

        ``json_bytes`` is the size up to which one may come within a JSON value."""
        self._store = store
        self._large_reads = large_reads
        self._ttl_s = ttl_s
        self._json_bytes = json_bytes

    async def put(self, principal: Principal, kind: str, chunks: AsyncIterator[bytes]) -> BlobInfo:
        """Stores bytes of any size in constant memory. Nothing is left when it fails, or when ``chunks`` does.

        Raises Forbidden, QuotaExceeded, InvalidInput, StoreFault.
        """
        principal.require(Scope.BLOBS)
        return await self._store.create(principal.name, kind, chunks, ttl_s=self._ttl_s)

    async def put_value(self, principal: Principal, kind: str, data: bytes) -> BlobInfo:
        """Stores bytes that came within a JSON value. Raises what :meth:`put` raises."""
        principal.require(Scope.BLOBS)
        limit = self._json_bytes
        return await self._store.create(principal.name, kind, data, ttl_s=self._ttl_s, max_bytes=limit)

    async def stat(self, principal: Principal, blob_id: str) -> BlobInfo:
        """Raises Forbidden, BlobNotFound."""
        principal.require(Scope.BLOBS)
        return await owned_blob(self._store, principal, blob_id)

    def read(self, blob_id: str, offset: int, length: int) -> AsyncIterator[bytes]:
        """Returns bytes of a blob that :meth:`stat` found. Raises BlobNotFound before the first chunk."""
        return self._store.read(blob_id, offset, length)

    @asynccontextmanager
    async def sample(
        self, principal: Principal, blob_id: str, mode: str, max_bytes: int
    ) -> AsyncIterator[tuple[BlobInfo, int, bytes]]:
        """Gives the blob, and the offset and the bytes of its part: ``full``, ``sample_head`` or ``sample_tail`` of at
        most ``max_bytes``. The bytes are made into an answer within the block, since few large ones may be at a time.

        Raises Forbidden, BlobNotFound, and InvalidInput for a blob too large to be read whole.
        """
        info = await self.stat(principal, blob_id)
        offset, length = _window(info, mode, max_bytes)
        async with self._large_reads.place(length):
            yield info, offset, b"".join([chunk async for chunk in self.read(info.blob_id, offset, length)])

    async def list(self, owner: str | None, *, limit: int, after: str | None) -> Sequence[BlobInfo]:
        """Returns blobs, newest first; ``owner`` is None for everybody's. Raises InvalidInput for ``after``."""
        return await self._store.list(owner, limit=limit, after=after)

    async def delete(self, principal: Principal, blob_id: str) -> bool:
        """Returns whether the blob was still there. Raises Forbidden, BlobNotFound."""
        return await self._store.delete((await self.stat(principal, blob_id)).blob_id)


async def owned_blob(store: BlobStore, principal: Principal, blob_id: str, field: str = "blob_id") -> BlobInfo:
    """Returns the blob when it exists and the principal may see it. Raises BlobNotFound, alike for both."""
    info = await store.stat(blob_id) if is_blob_id(blob_id) else None
    if info is None or not principal.sees(info.owner):
        raise BlobNotFound(field, f"no blob '{blob_id[:160]}'", blob_id=blob_id[:160])
    return info


async def agents_blob(
    store: BlobStore,
    records: RecordStore,
    principal: Principal,
    blob_id: str,
    field: str,
    agent: str | None = None,
) -> tuple[BlobInfo, RunRecord | None]:
    """Returns a blob as commands know it, and the record of the command that made it.

    One that a command made belongs to the agent and the project of that command, and any other to its owner. When no
    ``agent`` is named, it may be of each that the token may act for. Raises BlobNotFound, alike for those of others
    and for none; Forbidden for an agent that may not be named.
    """
    scope = agent_scope(principal, agent)
    info = await store.stat(blob_id) if is_blob_id(blob_id) else None
    if info is not None:
        record = await records.get(info.run_id) if info.run_id else None
        if record is None or not record.agent or record.project != scope.project:
            mine = agent is None and principal.sees(info.owner)
        else:
            mine = record.agent == scope.agent or (agent is None and principal.may_act_for(record.agent))
        if mine:
            return info, record
    raise BlobNotFound(field, f"no blob '{blob_id[:160]}'", blob_id=blob_id[:160])


def _window(info: BlobInfo, mode: str, max_bytes: int) -> tuple[int, int]:
    if mode == "full":
        if info.size > MAX_READ:
            raise InvalidInput(
                "mode",
                f"'full' reads blobs up to {MAX_READ} bytes and this one has {info.size}: read it with "
                "sample_head or sample_tail, or stream it with GET /blobs",
                size_bytes=info.size,
                maximum=MAX_READ,
            )
        return 0, info.size
    length = min(max_bytes, info.size)
    return (info.size - length if mode == "sample_tail" else 0), length
