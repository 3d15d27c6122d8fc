"""Bundles on their way to and from a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from skillyard.client import wire
from skillyard.client.errors import BadArgument, BadReply
from skillyard.client.sources import Download, Upload
from skillyard.client.transport import Offloading, Request, Transport, read_all

if TYPE_CHECKING:
    from skillyard.client.sources import Progress, Sink, Source

ArchiveFormat = Literal["tar.gz", "zip"]
TYPES: dict[str, str] = {"tar.gz": "application/gzip", "zip": "application/zip"}
LATEST = "latest"

_TEXTS = ("name", "version", "digest")


@dataclass(frozen=True, slots=True)
class PublishedSkill:
    """A version after its upload. ``created`` is False when these bytes were published before. ``findings`` are what
    validation had to say that is no error: objects with ``level``, ``file``, ``line``, ``rule``, ``message``."""

    name: str
    version: str
    digest: str
    size_bytes: int
    files: int
    created: bool
    findings: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ExportedSkill:
    """An archive that was written: ``size_bytes`` of the bundle with ``digest``."""

    name: str
    version: str
    digest: str
    size_bytes: int


async def packed(source: Source, worker: Offloading) -> Source:
    """``source``, or the archive of the directory that it names. Raises BadArgument."""
    if isinstance(source, (str, os.PathLike)) and Path(source).is_dir():
        from skillyard.client.packing import pack_directory

        directory = Path(source)
        return await worker.offload(lambda: pack_directory(directory))
    return source


async def upload_bundle(
    transport: Transport, headers: Mapping[str, str], timeout: float, source: Source, progress: Progress | None
) -> PublishedSkill:
    """Raises RpcError's subclasses, BadArgument, ConnectionFailed's."""
    with Upload(await packed(source, transport), transport, progress) as upload:
        kind = {"content-type": "application/octet-stream"}
        request = Request("PUT", "/skills", {**headers, **kind}, upload.chunks(), upload.length, timeout)
        async with transport.send(request) as response:
            body = await read_all(response)
    if response.status not in (200, 201):
        wire.refuse(response.status, body)
    return _published(body)


async def download_bundle(
    transport: Transport,
    headers: Mapping[str, str],
    timeout: float,
    asked: tuple[str, str, ArchiveFormat],
    sink: Sink,
    progress: Progress | None,
) -> ExportedSkill:
    """``asked`` are name, version and form. Raises as :func:`upload_bundle`."""
    name, version, form = asked
    if form not in TYPES:
        raise BadArgument("form: must be 'tar.gz' or 'zip'")
    wanted = {**headers, "accept": TYPES[form], "accept-encoding": "identity"}
    async with transport.send(Request("GET", _path(name, version), wanted, timeout=timeout)) as response:
        if response.status != 200:
            wire.refuse(response.status, await read_all(response))
        if response.headers.get("content-type") != TYPES[form]:
            raise BadReply("the server sends something else than an archive of that form")
        digest, exact = _facts(response.headers)
        total, done = response.headers.get("content-length"), 0
        target = Download(sink, transport)
        try:
            async for chunk in response.chunks():
                await target.write(chunk)
                done += len(chunk)
                if progress:
                    progress(done, int(total) if total else None)
            target.keep()
        finally:
            target.discard()
    return ExportedSkill(name, exact, digest, done)


def _facts(headers: Mapping[str, str]) -> tuple[str, str]:
    """Digest and exact version, of the entity tag and the content's own address."""
    from urllib.parse import unquote

    digest = headers.get("etag", "").removeprefix("W/").strip('"').removesuffix(".zip")
    version = unquote(headers.get("content-location", "").rpartition("/")[2])
    if not digest or not version:
        raise BadReply("the server does not say which version it sends")
    return digest, version


def _path(name: str, version: str) -> str:
    from urllib.parse import quote

    return f"/skills/{quote(name, safe='')}/{quote(version, safe='+')}"


def _published(body: bytes) -> PublishedSkill:
    import json

    try:
        answer = json.loads(body)
        name, version, digest = texts = [answer[key] for key in _TEXTS]
        size, files = sizes = [answer["size_bytes"], answer["files"]]
        findings = tuple(cast("list[dict[str, Any]]", answer.get("findings") or ()))
        fits = all(isinstance(text, str) for text in texts) and all(isinstance(size, int) for size in sizes)
        if not fits or not all(isinstance(finding, dict) for finding in findings):
            raise TypeError
        return PublishedSkill(name, version, digest, size, files, bool(answer["created"]), findings)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadReply("the server's answer to an upload names no version") from None
