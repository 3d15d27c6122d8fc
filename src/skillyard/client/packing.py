"""A skill's directory as one archive in memory. Links are packed as what they lead to, inside the directory only."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from skillyard.client.errors import BadArgument
from skillyard.domain.skill.bundle import is_excluded

MAX_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 4096
MAX_DEPTH = 32
"""More than any server takes: reading on would be for nothing."""
MOST_RATIO = 100
"""Servers take what unpacks to much more than this for a bomb: it is sent uncompressed."""


def pack_directory(root: Path) -> bytes:
    """A gzipped tar of what belongs to a skill. Raises BadArgument for what cannot be packed."""
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
        raise BadArgument(f"{path}: is a link to something that is no part of a skill")


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    # Non-blocking: a FIFO must not hold us up.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise BadArgument(f"{path}: must be a file, a directory or a link inside the skill")
        if found.st_size > MAX_BYTES:
            raise BadArgument(f"{path}: has more than {MAX_BYTES} bytes")
        data = file.read(MAX_BYTES)
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o755 if found.st_mode & stat.S_IXUSR else 0o644
    archive.addfile(info, io.BytesIO(data))
