"""``PUT /blobs`` and ``GET /blobs/{blob_id}``: bytes of any size, in constant memory (skills-protocol §11)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from skillyard.domain.checks import is_blob_id
from skillyard.domain.errors import BlobNotFound
from skillyard.domain.principal import Principal
from skillyard.faces.http import request, transfers
from skillyard.faces.http.auth import principal_of
from skillyard.faces.http.errors import MethodNotAllowed
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.replies import PIECE, end, piece, reply, start
from skillyard.faces.http.request import HttpCaller
from skillyard.faces.http.transfers import refuse_query, upload_type
from skillyard.faces.rpc.wire import dumps
from skillyard.ports.blobs import BlobInfo

DEFAULT_KIND = "application/octet-stream"


class BlobAccess(Protocol):
    """Blobs as a principal may use them; both check the scope and raise Forbidden."""

    async def put(self, principal: Principal, kind: str, chunks: AsyncIterator[bytes]) -> BlobInfo:
        """Raises QuotaExceeded, InvalidInput. Nothing is left when it fails, or when ``chunks`` does."""
        ...

    async def stat(self, principal: Principal, blob_id: str) -> BlobInfo:
        """Raises BlobNotFound, for another principal's blob as well."""
        ...

    def read(self, blob_id: str, offset: int, length: int) -> AsyncIterator[bytes]: ...


class Traffic(Protocol):
    """Told of the bytes that went through."""

    def received(self, count: int) -> None: ...

    def sent(self, count: int) -> None: ...


class BlobEndpoint:
    """``blobs`` is asked for at each request: a server listens before what it serves has started."""

    def __init__(
        self,
        blobs: Callable[[], BlobAccess],
        traffic: Traffic,
        lifecycle: Lifecycle,
        max_blob: int,
        pace: request.Pace = request.DEFAULT_PACE,
    ) -> None:
        self._blobs = blobs
        self._traffic = traffic
        self._lifecycle = lifecycle
        self._max_blob = max_blob
        self._pace = pace

    async def collection(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves ``/blobs``."""
        with self._lifecycle.working():
            await self._put(scope, receive, send)

    async def item(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves ``/blobs/{blob_id}``."""
        with self._lifecycle.working():
            await self._get(scope, receive, send)

    async def _put(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "PUT":
            raise MethodNotAllowed("PUT")
        refuse_query(scope)
        headers = Headers(scope=scope)
        kind = upload_type(headers, "content") or DEFAULT_KIND
        async with aclosing(request.stream(scope, receive, self._max_blob, self._pace)) as chunks:
            info = await self._blobs().put(principal_of(scope), kind, chunks)
        self._traffic.received(info.size)
        content = {"blob_id": info.blob_id, "size_bytes": info.size, "sha256": info.sha256}
        await reply(send, 201, dumps(content), headers={"location": f"/blobs/{info.blob_id}"})

    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed("GET", "HEAD")
        refuse_query(scope)
        info = await self._find(principal_of(scope), scope["path_params"]["blob_id"])
        headers = Headers(scope=scope)
        if transfers.matches(headers.get("if-none-match"), transfers.etag(info.sha256)):
            await start(send, 304, _validators(info))
        elif scope["method"] == "HEAD":
            await start(send, 200, _describe(info, None))
        else:
            part = _part(headers, info)
            await start(send, 206 if part else 200, _describe(info, part))
            async with HttpCaller(receive, self._lifecycle) as caller:
                await caller.wait(self._send_content(send, info, part or transfers.Range(0, info.size)))
        await end(send)

    async def _find(self, principal: Principal, blob_id: str) -> BlobInfo:
        if not is_blob_id(blob_id):
            raise BlobNotFound("blob_id", "no such blob")
        return await self._blobs().stat(principal, blob_id)

    async def _send_content(self, send: Send, info: BlobInfo, part: transfers.Range) -> None:
        if part.length == 0:
            return
        chunks = self._blobs().read(info.blob_id, part.start, part.length)
        async with aclosing(chunks):  # type: ignore[type-var]
            async for chunk in chunks:
                for at in range(0, len(chunk), PIECE):
                    await piece(send, chunk[at : at + PIECE])
                self._traffic.sent(len(chunk))


def _part(headers: Headers, info: BlobInfo) -> transfers.Range | None:
    tag = transfers.etag(info.sha256)
    if headers.get("if-range", tag) != tag:
        return None
    return transfers.read_range(headers.get("range"), info.size)


def _validators(info: BlobInfo) -> dict[str, str]:
    return {"etag": transfers.etag(info.sha256), "cache-control": "private, no-cache"}


def _describe(info: BlobInfo, part: transfers.Range | None) -> dict[str, str]:
    """Returns headers of a blob. Its kind is what its maker said, so it is never shown as a page of ours."""
    headers = {
        **_validators(info),
        "accept-ranges": "bytes",
        "content-type": info.kind,
        "content-length": str(part.length if part else info.size),
        "content-disposition": "attachment",
    }
    return headers | ({"content-range": part.content_range(info.size)} if part else {})
