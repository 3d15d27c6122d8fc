"""Packs bundles into archives that are equal for equal files: sorted, without times.

The compressed bytes depend on the zlib at hand; what is read back from them does not.
"""

from __future__ import annotations

import hashlib
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from skillyard.domain.archive.tar_stream import BLOCK
from skillyard.domain.errors import StoreFault
from skillyard.domain.skill.skill import SkillFile
from skillyard.stores.skills.archives.collected import ArchiveLimits
from skillyard.stores.skills.tree import Tree
from skillyard.values import dataclass

_LEVEL = 6
_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 64 * 1024
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)
_UNIX = 3


@dataclass(frozen=True, slots=True)
class Packed:
    """One file to be put into an archive. ``read`` gives exactly ``size`` bytes and may raise StoreFault, OSError."""

    path: str
    size: int
    executable: bool
    read: Callable[[], bytes]


def packed_tree(tree: Tree) -> list[Packed]:
    return [Packed(path, len(file.data), file.executable, _constant(file.data)) for path, file in tree.files.items()]


def packed_files(root: Path, files: Iterable[SkillFile]) -> list[Packed]:
    """Returns the files of a snapshot; each is read at its turn and checked by its digest.

    Raises OSError.
    """
    return [_packed_file(root / file.path, file) for file in sorted(files, key=lambda file: file.path)]


def tar_gz(files: Sequence[Packed], *, prefix: str = "") -> Iterator[bytes]:
    """A gzipped tar in pieces, one file in memory at a time. ``prefix`` is a directory to put everything into.

    Content that would unpack to so many times its size that :func:`read_archive` takes it for a bomb is not compressed.
    """
    level = 0 if _is_bomb(files) else _LEVEL
    compress = zlib.compressobj(level, zlib.DEFLATED, _GZIP)
    for piece in _tar(files, prefix):
        if packed := compress.compress(piece):
            yield packed
    yield compress.flush()


def write_zip(files: Sequence[Packed], archive: BinaryIO, *, prefix: str = "") -> None:
    """A zip into a seekable file; files that deflate as only bombs do are stored. Raises what ``read`` raises."""
    ratio = ArchiveLimits().ratio
    with zipfile.ZipFile(archive, "w", allowZip64=False) as made:
        for file in files:
            info = zipfile.ZipInfo(_joined(prefix, file.path), _FIRST_DAY)
            info.create_system = _UNIX
            info.external_attr = (stat.S_IFREG | _mode(file)) << 16
            data = file.read()
            packed = len(zlib.compress(data, _LEVEL))
            small = packed < len(data) <= ratio * packed
            info.compress_type = zipfile.ZIP_DEFLATED if small else zipfile.ZIP_STORED
            made.writestr(info, data, compresslevel=_LEVEL)


def _tar(files: Iterable[Packed], prefix: str) -> Iterator[bytes]:
    for file in files:
        info = tarfile.TarInfo(_joined(prefix, file.path))
        info.size, info.mode, info.mtime = file.size, _mode(file), 0
        yield info.tobuf(tarfile.PAX_FORMAT)
        yield file.read()
        yield bytes(-file.size % BLOCK)
    yield bytes(2 * BLOCK)


def _is_bomb(files: Sequence[Packed]) -> bool:
    """Compresses only so much as it takes to know."""
    limits = ArchiveLimits()
    size = sum(file.size + 8 * BLOCK for file in files)
    if size <= limits.ratio_from:
        return False
    compress = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    packed = 0
    for piece in _tar(files, ""):
        for at in range(0, len(piece), _PIECE):
            packed += len(compress.compress(piece[at : at + _PIECE]))
            if packed * limits.ratio >= size:
                return False
    return (packed + len(compress.flush())) * limits.ratio < size


def _packed_file(path: Path, file: SkillFile) -> Packed:
    def read() -> bytes:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise StoreFault(f"the stored file '{file.path}' is not what it was")
        return data

    return Packed(file.path, file.size, bool(path.lstat().st_mode & stat.S_IXUSR), read)


def _constant(data: bytes) -> Callable[[], bytes]:
    return lambda: data


def _mode(file: Packed) -> int:
    return 0o755 if file.executable else 0o644


def _joined(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix else path
