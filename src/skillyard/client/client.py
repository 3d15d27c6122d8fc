"""The asynchronous client. One transport per client, closed with it."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from skillyard.client import wire
from skillyard.client.bundles import LATEST, ExportedSkill, PublishedSkill, download_bundle, upload_bundle
from skillyard.client.discovery import ServerUrl, find_server
from skillyard.client.errors import BadArgument, BadReply, ConnectionFailed
from skillyard.client.methods.protocol import ProtocolMethods
from skillyard.client.sources import Upload, save
from skillyard.client.transport import Request, Response, Transport, read_all
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.client.bundles import ArchiveFormat
    from skillyard.client.sources import Progress, Sink, Source

DEFAULT_KIND = "application/octet-stream"
_FIRST_PAUSE_S = 0.1
_DIGITS = 20
"""More than any size has."""


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob after its upload; ``sha256`` is lowercase hex of its bytes."""

    blob_id: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FetchedBlob:
    """A blob that was written to a file: ``size_bytes`` of its ``total_bytes``."""

    blob_id: str
    kind: str
    size_bytes: int
    total_bytes: int


class Client(ProtocolMethods):
    """Talks to a skillyard server.

    ``url`` and ``token`` come from ``SKILLYARD_URL`` and ``SKILLYARD_TOKEN`` when left out, else from the
    data directory (``SKILLYARD_DATA_DIR``) of a server on this machine. ``timeout`` is the longest silence in
    seconds; a run gets its own timeout and a margin. ``retries`` is how often a call that changes nothing
    when repeated is sent again after no connection, or a broken one. ``transport`` makes the connections, for
    settings of one's own (certificates, a proxy): ``lambda url: HttpxTransport(url, httpx2.AsyncClient())``.

    Raises Unreachable when no server is known, BadArgument for a URL or token that cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        retries: int = 2,
        transport: Callable[[ServerUrl], Transport] | None = None,
    ) -> None:
        self.server = find_server(url, token, data_dir)
        self._timeout = timeout
        self._retries = retries
        self._transport = (transport or _httpx)(self.server.url)
        self._ids = itertools.count(1)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The result of a method. Raises RpcError's subclasses, ConnectionFailed's, and BadArgument for
        parameters that JSON cannot carry."""
        params = params or {}
        request_id = next(self._ids)
        request = Request(
            "POST",
            "/rpc",
            self._headers({"content-type": "application/json"}),
            _encoded(method, params, request_id),
            timeout=wire.patience(method, params, self._timeout),
        )
        status, body = await self._exchange(request, wire.retried(method, params))
        return wire.decode(status, body, request_id)

    async def _exchange(self, request: Request, retried: tuple[type[ConnectionFailed], ...]) -> tuple[int, bytes]:
        for attempt in range(self._retries):
            try:
                return await self._once(request)
            except retried:
                await self._transport.pause(_FIRST_PAUSE_S * 2**attempt)
        return await self._once(request)

    async def _once(self, request: Request) -> tuple[int, bytes]:
        async with self._transport.send(request) as response:
            return response.status, await read_all(response)

    async def put_blob(
        self, source: Source, kind: str = DEFAULT_KIND, *, progress: Progress | None = None
    ) -> StoredBlob:
        """Stores bytes of any size in constant memory.

        ``source`` is a path, bytes, a binary file or an iterator. ``kind`` is a MIME type;
        ``progress`` is called with the bytes sent and the bytes in all (or None).
        Raises QuotaExceeded, and BadArgument for a file that cannot be read.
        """
        with Upload(source, self._transport, progress) as upload:
            request = Request(
                "PUT",
                "/blobs",
                self._headers({"content-type": _header(kind, "kind")}),
                upload.chunks(),
                upload.length,
                self._timeout,
            )
            async with self._transport.send(request) as response:
                body = await read_all(response)
        if response.status != 201:
            wire.refuse(response.status, body)
        return _stored(body)

    async def get_blob(
        self,
        blob_id: str,
        sink: Sink,
        *,
        offset: int = 0,
        length: int | None = None,
        progress: Progress | None = None,
    ) -> FetchedBlob:
        """Write a blob, or ``length`` bytes of it from ``offset`` on, to a path or a binary file.

        A file at a path appears only when everything came. A whole blob is checked against its digest.
        Raises BlobNotFound, InvalidParams for a range outside the blob, BadReply for damaged bytes.
        """
        async with self._opened(blob_id, offset, length) as response:
            announced = response.headers.get("content-length")
            chunks = _checked(response, length, whole=offset == 0 and length is None)
            done = await save(chunks, sink, self._transport, progress, int(announced) if announced else None)
        kind = response.headers.get("content-type", DEFAULT_KIND)
        return FetchedBlob(blob_id, kind, done, _total(response, done))

    async def stream_blob(
        self, blob_id: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a blob as they come. Raises what :meth:`get_blob` raises, damage excepted."""
        async with self._opened(blob_id, offset, length) as response:
            async for chunk in response.chunks():
                yield chunk

    async def publish_skill(self, source: Source, *, progress: Progress | None = None) -> PublishedSkill:
        """Publishes the skill of a directory, or of a zip, tar or tar.gz.

        ``source`` is a path, bytes, a binary file or an iterator.

        ``progress`` as in :meth:`put_blob`. Raises BundleRefused, whose ``data["findings"]`` say what is wrong and
        where, VersionTaken for other content under a published version, Forbidden, QuotaExceeded.
        """
        return await upload_bundle(self._transport, self._headers({}), self._timeout, source, progress)

    async def export_skill(
        self,
        name: str,
        sink: Sink,
        *,
        version: str | None = None,
        form: ArchiveFormat = "tar.gz",
        progress: Progress | None = None,
    ) -> ExportedSkill:
        """Writes the exact bundle of a version as an archive to a path or a binary file.

        Without ``version`` it is the latest.

        A file at a path appears only when everything came. Raises SkillNotFound.
        """
        asked = (name, version or LATEST, form)
        return await download_bundle(self._transport, self._headers({}), self._timeout, asked, sink, progress)

    @asynccontextmanager
    async def _opened(self, blob_id: str, offset: int, length: int | None) -> AsyncIterator[Response]:
        headers = {"accept-encoding": "identity"}
        whole = offset == 0 and length is None
        if not whole:
            headers["range"] = _range(offset, length)
        request = Request("GET", f"/blobs/{_quoted(blob_id)}", self._headers(headers), timeout=self._timeout)
        async with self._transport.send(request) as response:
            if response.status not in (200, 206):
                wire.refuse(response.status, await read_all(response))
            if response.status != (200 if whole else 206):
                raise BadReply(f"HTTP {response.status} to a request for {'all' if whole else 'a range'}")
            yield response

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        token = self.server.token
        return {**headers, "authorization": f"Bearer {token}"} if token else dict(headers)


def _httpx(url: ServerUrl) -> Transport:
    from skillyard.client.httpx_transport import HttpxTransport  # 100 ms, spared when another is given

    return HttpxTransport(url)


def _encoded(method: str, params: Mapping[str, Any], request_id: int) -> bytes:
    try:
        return wire.encode(method, params, request_id)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArgument(f"params of {method}: JSON cannot carry them: {error}") from None


async def _checked(response: Response, most: int | None, *, whole: bool) -> AsyncIterator[bytes]:
    """Yields the bytes of a blob. Raises BadReply for more than ``most``, and for a ``whole`` one that is damaged."""
    digest = _Digest(response.headers.get("etag", "") if whole else "")
    done = 0
    async for chunk in response.chunks():
        done += len(chunk)
        if most is not None and done > most:
            raise BadReply("the server sends more of the blob than was asked for")
        digest.update(chunk)
        yield chunk
    digest.verify()


class _Digest:
    """SHA-256 against an ``ETag`` that is one; does nothing for any other."""

    def __init__(self, etag: str) -> None:
        self._expected = etag.strip('"') if len(etag) == 66 else None
        if self._expected:
            from hashlib import sha256

            self._sha256 = sha256()

    def update(self, chunk: bytes) -> None:
        if self._expected:
            self._sha256.update(chunk)

    def verify(self) -> None:
        if self._expected and self._sha256.hexdigest() != self._expected:
            raise BadReply("the bytes that came do not have the blob's digest; fetch it again")


def _stored(body: bytes) -> StoredBlob:
    import json

    try:
        answer = json.loads(body)
        stored = StoredBlob(answer["blob_id"], answer["size_bytes"], answer["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadReply("the server's answer to an upload names no blob") from None
    if not (isinstance(stored.blob_id, str) and isinstance(stored.size_bytes, int) and isinstance(stored.sha256, str)):
        raise BadReply("the server's answer to an upload names no blob")
    return stored


def _total(response: Response, done: int) -> int:
    """The whole blob's size: what a range's answer says after the slash."""
    size = response.headers.get("content-range", "").rpartition("/")[2]
    return int(size) if size.isdecimal() and len(size) < _DIGITS else done


def _range(offset: int, length: int | None) -> str:
    if offset < 0 or (length is not None and length < 1):
        raise BadArgument("offset must be at least 0 and length at least 1")
    return f"bytes={offset}-" + (str(offset + length - 1) if length is not None else "")


def _quoted(blob_id: str) -> str:
    from urllib.parse import quote

    return quote(blob_id, safe=":")


def _header(value: str, name: str) -> str:
    if not (value.isascii() and value.isprintable() and value.strip()):
        raise BadArgument(f"{name}: must be printable ASCII")
    return value
