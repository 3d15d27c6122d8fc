"""``PUT /blobs`` and ``GET /blobs/{blob_id}``: bytes of any size, in constant memory.

Headers are those of RFC 9110 §8, §13 and §14; the paths are those of skills-protocol §11.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from skillyard.domain.checks import is_blob_id
from skillyard.domain.errors import BlobNotFound
from skillyard.domain.principal import Principal
from skillyard.engine.blobs.service import BlobService
from skillyard.faces.http import request
from skillyard.faces.http.errors import BadRequest, MethodNotAllowed, RangeNotSatisfiable
from skillyard.faces.http.guard import principal_of
from skillyard.faces.http.lifecycle import Lifecycle
from skillyard.faces.http.replies import PIECE, end, piece, reply, start
from skillyard.faces.http.request import HttpCaller
from skillyard.faces.rpc.wire import dumps
from skillyard.ports.blobs import BlobInfo
from skillyard.values import dataclass


def upload_type(headers: Headers, what: str) -> str:
    """Returns the Content-Type of ``what``, empty without one. Raises BadRequest unless all of it comes, as it is."""
    encodings = set(headers.getlist("content-encoding"))
    if "content-range" in headers or not encodings <= {"identity"}:
        raise BadRequest(f"Content-Range and Content-Encoding: send the whole {what} as it is")
    kinds = headers.getlist("content-type")
    if len(kinds) > 1:
        raise BadRequest("Content-Type: came more than once")
    return next(iter(kinds), "")


_SINGLE = re.compile(r"bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Range:
    """``length`` bytes from ``start`` on; never empty."""

    start: int
    length: int

    def content_range(self, size: int) -> str:
        return f"bytes {self.start}-{self.start + self.length - 1}/{size}"


def read_range(header: str | None, size: int) -> Range | None:
    """Returns the asked part, or None for the whole.

    No header, several ranges and an unknown form mean the whole. Raises RangeNotSatisfiable for a part that begins
    behind the end.
    """
    match = _SINGLE.fullmatch(header.strip()) if header else None
    if match is None:
        return None
    first, last = match.groups()
    if first:
        return _from_to(int(first), int(last) if last else size - 1, size)
    return _suffix(int(last), size) if last else None


def _from_to(first: int, last: int, size: int) -> Range | None:
    if last < first < size:
        return None
    if first >= size:
        raise RangeNotSatisfiable(size)
    return Range(first, min(last, size - 1) - first + 1)


def _suffix(length: int, size: int) -> Range:
    length = min(length, size)
    if length == 0:
        raise RangeNotSatisfiable(size)
    return Range(size - length, length)


def etag(sha256: str) -> str:
    return f'"{sha256}"'


def matches(header: str | None, tag: str) -> bool:
    """Returns whether ``If-None-Match`` names the tag; comparison is weak (RFC 9110 §13.1.2)."""
    if header is None:
        return False
    listed = {part.strip().removeprefix("W/") for part in header.split(",")}
    return "*" in listed or tag in listed


DEFAULT_KIND = "application/octet-stream"
Access = TypeVar("Access")


class Traffic(Protocol):
    """Told of the bytes that went through."""

    def received(self, count: int) -> None: ...

    def sent(self, count: int) -> None: ...


class Transfers(ABC, Generic[Access]):
    """Takes uploads by PUT to a collection, and sends an item by GET.

    ``access`` is called at each request: a server listens before its services have started. ``most`` bounds the bytes
    of an upload, and ``pace`` its time.
    """

    def __init__(
        self,
        access: Callable[[], Access],
        traffic: Traffic,
        lifecycle: Lifecycle,
        most: int,
        pace: request.Pace = request.DEFAULT_PACE,
    ) -> None:
        self._access = access
        self._traffic = traffic
        self._lifecycle = lifecycle
        self._most = most
        self._pace = pace

    async def collection(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check(scope, "PUT")
        with self._lifecycle.working():
            await self._put(scope, receive, send)

    async def item(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check(scope, "GET", "HEAD")
        with self._lifecycle.working():
            await self._get(scope, receive, send)

    @abstractmethod
    async def _put(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    @abstractmethod
    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def _send_chunks(self, send: Send, chunks: AsyncIterator[bytes]) -> None:
        async for chunk in chunks:
            for at in range(0, len(chunk), PIECE):
                await piece(send, chunk[at : at + PIECE])
            self._traffic.sent(len(chunk))


def _check(scope: Scope, *methods: str) -> None:
    """Raises MethodNotAllowed, and BadRequest for a query."""
    if scope["method"] not in methods:
        raise MethodNotAllowed(*methods)
    if scope["query_string"]:
        raise BadRequest("this path takes no query parameters")


class BlobEndpoint(Transfers[BlobService]):
    """``/blobs`` and ``/blobs/{blob_id}``."""

    async def _put(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        principal, kind = principal_of(scope), upload_type(headers, "content") or DEFAULT_KIND
        principal.require_tool("create_blob")
        async with aclosing(request.stream(scope, receive, self._most, self._pace)) as chunks:
            info = await self._access().put(principal, kind, chunks)
        self._traffic.received(info.size)
        content = {"blob_id": info.blob_id, "size_bytes": info.size, "sha256": info.sha256}
        await reply(send, 201, dumps(content), headers={"location": f"/blobs/{info.blob_id}"})

    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None:
        info = await self._find(principal_of(scope), scope["path_params"]["blob_id"])
        headers = Headers(scope=scope)
        if matches(headers.get("if-none-match"), etag(info.sha256)):
            await start(send, 304, _validators(info))
        elif scope["method"] == "HEAD":
            await start(send, 200, _describe(info, None))
        else:
            part = _part(headers, info)
            await start(send, 206 if part else 200, _describe(info, part))
            async with HttpCaller(receive, self._lifecycle) as caller:
                await caller.wait(self._send_content(send, info, part or Range(0, info.size)))
        await end(send)

    async def _find(self, principal: Principal, blob_id: str) -> BlobInfo:
        principal.require_tool("read_blob")
        if not is_blob_id(blob_id):
            raise BlobNotFound("blob_id", "no such blob")
        return await self._access().stat(principal, blob_id)

    async def _send_content(self, send: Send, info: BlobInfo, part: Range) -> None:
        if part.length == 0:
            return
        chunks = self._access().read(info.blob_id, part.start, part.length)
        async with aclosing(chunks):  # type: ignore[type-var]
            await self._send_chunks(send, chunks)


def _part(headers: Headers, info: BlobInfo) -> Range | None:
    tag = etag(info.sha256)
    if headers.get("if-range", tag) != tag:
        return None
    return read_range(headers.get("range"), info.size)


def _validators(info: BlobInfo) -> dict[str, str]:
    return {"etag": etag(info.sha256), "cache-control": "private, no-cache"}


def _describe(info: BlobInfo, part: Range | None) -> dict[str, str]:
    """Returns headers of a blob. Its kind is what its maker said, so it is never shown as a page of ours."""
    headers = {
        **_validators(info),
        "accept-ranges": "bytes",
        "content-type": info.kind,
        "content-length": str(part.length if part else info.size),
        "content-disposition": "attachment",
    }
    return headers | ({"content-range": part.content_range(info.size)} if part else {})
