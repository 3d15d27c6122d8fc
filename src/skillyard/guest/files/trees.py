"""Whole trees as tar streams (pax, IEEE Std 1003.1), one entry at a time."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile

from . import PIECE
from .single import Damaged, NotRegular, write_all
from .walk import open_directory, opened_up, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_DEPTH = 256


def get(path: str) -> Iterator[bytes]:
    """Yields a tar stream of a file or link under its own name, or of all below a directory. Raises OSError."""
    about = os.lstat(path)
    buffer = bytearray()
    for piece in _packed(path, about):
        buffer += piece
        if len(buffer) >= PIECE:
            yield bytes(buffer)
            buffer.clear()
    buffer += bytes(2 * tarfile.BLOCKSIZE)
    yield bytes(buffer)


def _packed(path: str, about: os.stat_result) -> Iterator[bytes]:
    if not stat.S_ISDIR(about.st_mode):
        parent, name = os.path.split(path)
        if not (stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)):
            raise NotRegular("it is neither a file, a directory nor a link")
        fd = os.open(parent or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield from _entry(fd, name, name, about)
        finally:
            os.close(fd)
        return
    for walk, name, state in tree(open_directory(path)):
        yield from _entry(walk.fd, name, "/".join((*walk.names, name)), state)


def _entry(directory: int, name: str, shown: str, about: os.stat_result) -> Iterator[bytes]:
    info = tarfile.TarInfo(shown)
    info.mode, info.mtime = stat.S_IMODE(about.st_mode) & 0o777, int(about.st_mtime)
    if stat.S_ISDIR(about.st_mode):
        info.type = tarfile.DIRTYPE
        yield _header(info)
    elif stat.S_ISLNK(about.st_mode):
        try:
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=directory)
        except OSError:  # it was replaced meanwhile
            return
        yield _header(info)
    elif stat.S_ISREG(about.st_mode):
        yield from _file(directory, name, info, about.st_mode)


def _file(directory: int, name: str, info: tarfile.TarInfo, mode: int) -> Iterator[bytes]:
    """Yields as many bytes as the header says, whatever becomes of the file meanwhile."""
    closed = opened_up(directory, name, mode, 0o400)
    try:
        fd = os.open(name, _READ, dir_fd=directory)
    except (FileNotFoundError, PermissionError):
        return
    except OSError as error:
        if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise error
        return
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return
        if closed is not None:
            os.fchmod(fd, closed)
        info.size = left = about.st_size
        yield _header(info)
        while left:
            data = os.read(fd, min(left, PIECE)) or bytes(min(left, PIECE))
            left -= len(data)
            yield data
        yield bytes(-info.size % tarfile.BLOCKSIZE)
    finally:
        os.close(fd)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class _Pieces(io.RawIOBase):
    """The pieces of a stream as a file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found: list[bytes] = []
        while size > 0:
            if not self._left:
                piece = next(self._pieces, b"")
                if not piece:
                    break
                self._left = memoryview(piece)
            taken = self._left[:size]
            self._left = self._left[len(taken) :]
            found.append(bytes(taken))
            size -= len(taken)
        return b"".join(found)

    def rest(self) -> None:
        """Reads to the end."""
        for _ in self._pieces:
            pass


def put(path: str, pieces: Iterable[bytes]) -> None:
    """Unpacks a tar stream below the directory ``path``, made when it is missing. Raises OSError, Damaged."""
    os.makedirs(path, exist_ok=True)
    top = open_directory(path)
    stream = _Pieces(pieces)
    usual = os.umask(0)
    try:
        with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as archive:
            for entry in archive:
                _unpack(top, entry, archive)
                archive.members = []  # type: ignore[attr-defined]  # else it keeps every header
        stream.rest()
    except (tarfile.TarError, EOFError) as error:
        raise Damaged(f"the stream is not a tar archive that can be read: {error}"[:300]) from None
    finally:
        os.umask(usual)
        os.close(top)


def _unpack(top: int, entry: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    parts = _parts(entry.name)
    if entry.issparse() or not (entry.isreg() or entry.isdir() or entry.issym()):
        raise Damaged(f"{entry.name!r:.200} is neither a file, a directory nor a symbolic link")
    if not parts:
        if not entry.isdir():
            raise Damaged("a file has no name")
        return
    parent = _made(top, parts if entry.isdir() else parts[:-1])
    try:
        if entry.isdir():
            os.fchmod(parent, entry.mode & 0o777 | 0o700)
        elif entry.issym():
            _replace(parent, parts[-1], lambda part: os.symlink(entry.linkname, part, dir_fd=parent))
        else:
            _replace(parent, parts[-1], lambda part: _write(parent, part, entry, archive))
    finally:
        os.close(parent)


def _parts(name: str) -> list[str]:
    if name.startswith("/") or "\0" in name:
        raise Damaged(f"{name!r:.200} is an absolute path or no name")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or len(parts) > _MOST_DEPTH:
        raise Damaged(f"{name!r:.200} leads up, or lies deeper than {_MOST_DEPTH} directories")
    return parts


def _made(top: int, parts: list[str]) -> int:
    """Opens a directory below ``top``, and makes it and those above it when they are missing. Raises OSError."""
    fd = os.dup(top)
    for part in parts:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=fd)
            below = open_directory(part, fd)
        except NotADirectoryError:
            raise Damaged(f"{'/'.join(parts)!r:.200} leads through a link or a file") from None
        finally:
            os.close(fd)
        fd = below
    return fd


def _replace(parent: int, name: str, make: Callable[[str], None]) -> None:
    part = f".partial-{os.urandom(8).hex()}"
    try:
        make(part)
        os.rename(part, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=parent)
        raise


def _write(parent: int, part: str, entry: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    content = archive.extractfile(entry)
    fd = os.open(part, _NEW, entry.mode & 0o777, dir_fd=parent)
    try:
        left = entry.size
        while left:
            data = content.read(min(left, PIECE)) if content is not None else b""
            if not data:
                raise Damaged("the stream ends within a file")
            left -= len(data)
            write_all(fd, data)
    finally:
        os.close(fd)
