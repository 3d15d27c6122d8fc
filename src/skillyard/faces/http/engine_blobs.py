"""The engine's blobs as ``/blobs`` serves them: by scope and by owner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from skillyard.domain.principal import Principal, Scope
from skillyard.engine.blobs.methods import owned_blob
from skillyard.engine.engine import Engine
from skillyard.ports.blobs import BlobInfo


class EngineBlobs:
    """A :class:`skillyard.faces.http.blobs.BlobAccess`. ``engine`` is asked for at each call: a server listens
    before its engine has started."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def put(self, principal: Principal, kind: str, chunks: AsyncIterator[bytes]) -> BlobInfo:
        principal.require(Scope.BLOBS)
        engine = self._engine()
        return await engine.blobs.create(principal.name, kind, chunks, ttl_s=engine.config.blob_ttl_s)

    async def stat(self, principal: Principal, blob_id: str) -> BlobInfo:
        principal.require(Scope.BLOBS)
        return await owned_blob(self._engine(), principal, blob_id)

    def read(self, blob_id: str, offset: int, length: int) -> AsyncIterator[bytes]:
        return self._engine().blobs.read(blob_id, offset, length)
