"""Packs a skill's directory, and sends and fetches bundles."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from skillyard.client import wire
from skillyard.client.errors import BadArgument, BadReply
from skillyard.client.sources import Upload, save
from skillyard.client.transport import Offloading, Request, Transport, read_all
from skillyard.domain.skill.name import is_excluded
from skillyard.values import dataclass

if TYPE_CHECKING:
    from tarfile import TarFile

    from skillyard.client.sources import Progress, Sink, Source


ArchiveFormat = Literal["tar.gz", "zip"]
TYPES: dict[str, str] = {"tar.gz": "application/gzip", "zip": "application/zip"}
LATEST = "latest"

_TEXTS = ("name", "version", "digest")


@dataclass(frozen=True, slots=True)
class PublishedSkill:
    """A version after its upload. ``created`` is False when these bytes were published before.

    ``findings`` are the remarks of validation: objects with ``level``, ``file``, ``line``, ``rule`` and ``message``.
    """

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
        total = response.headers.get("content-length")
        done = await save(response.chunks(), sink, transport, progress, int(total) if total else None)
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


MAX_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 4096
MAX_DEPTH = 32
"""More than any server takes: reading on would be for nothing."""
MOST_RATIO = 100
"""Servers take what unpacks to much more than this for a bomb: it is sent uncompressed."""


def pack_directory(root: Path) -> bytes:
    """Returns a gzipped tar of the files that belong to a skill. Raises BadArgument for a file that cannot be packed.

    A link is packed as its target, which must lie inside the directory.
    """
    import gzip
    import tarfile  # 10 ms that no other command needs

    out = io.BytesIO()
    try:
        empty = True
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as archive:
            for path, file in _found(root):
                _add(archive, path, file)
                empty = False
                if archive.offset > MAX_BYTES:
                    raise BadArgument(f"{root}: holds more than {MAX_BYTES} bytes: is it a skill's directory?")
    except OSError as error:
        raise BadArgument(f"{error.filename or root}: {error.strerror}") from error
    if empty:
        raise BadArgument(
            f"{root}: holds no file that can be part of a skill; put SKILL.md and the skill's files into it"
        )
    packed = out.getvalue()
    if archive.offset > MOST_RATIO * len(packed):
        return gzip.compress(gzip.decompress(packed), 0)
    return packed


def _found(root: Path) -> Iterator[tuple[str, Path]]:
    """Every file, sorted, with its path in the archive."""
    home = os.path.realpath(root)
    pending, seen = [("", root, 0)], 0
    while pending:
        prefix, directory, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise BadArgument(f"{directory}: is nested too deep, or a link to a directory that holds it")
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            if is_excluded(entry.name):
                continue
            seen += 1
            if seen > MAX_ENTRIES:
                raise BadArgument(f"{root}: holds more than {MAX_ENTRIES} files: is it a skill's directory?")
            if entry.is_symlink():
                _check_link(entry.path, home)
            if entry.is_dir():
                pending.append((f"{prefix}{entry.name}/", Path(entry.path), depth + 1))
            else:
                yield f"{prefix}{entry.name}", Path(entry.path)


def _check_link(path: str, home: str) -> None:
    target = os.path.realpath(path)
    if not target.startswith(home.rstrip("/") + "/"):
        raise BadArgument(f"{path}: is a link that leaves the skill's directory")
    if any(is_excluded(part) for part in target[len(home) :].split("/")):
        raise BadArgument(f"{path}: is a link to a file that cannot be part of a skill")


def _add(archive: TarFile, name: str, path: Path) -> None:
    # Non-blocking: a FIFO must not hold us up.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise BadArgument(f"{path}: must be a file, a directory or a link inside the skill")
        if found.st_size > MAX_BYTES:
            raise BadArgument(f"{path}: has more than {MAX_BYTES} bytes")
        data = file.read(MAX_BYTES)
    info = archive.tarinfo(name)
    info.size, info.mode = len(data), 0o755 if found.st_mode & stat.S_IXUSR else 0o644
    archive.addfile(info, io.BytesIO(data))
