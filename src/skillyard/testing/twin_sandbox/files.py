"""The files of a twin's sandbox: a tree in memory, below which content of stores is shown."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.archive.tar_stream import TarEntry, TarStream
from skillyard.domain.errors import FileNotFound, InvalidInput, QuotaExceeded
from skillyard.domain.sandbox.spec import Entry

WRITABLE = ("/workspace", "/tmp", "/dev/shm")  # noqa: S108 - paths inside
PIECE = 256 * 1024
_MOST_ENTRIES = 10_000
_MOST_DEPTH = 256


@dataclass
class Node:
    """A name: ``kind`` is that of an Entry, and each kind uses its own field.

    ``host`` is the file or directory of this host that it shows, until it is opened.
    """

    kind: str
    mode: int
    data: bytes = b""
    below: dict[str, Node] = field(default_factory=dict)
    target: str = ""
    read_only: bool = False
    host: Path | None = None
    modified_s: float = field(default_factory=time.time)

    def opened(self) -> Node:
        """Returns it with what it shows of this host, which is read when it is first used."""
        if self.host is not None:
            host, self.host = self.host, None
            if self.kind == "file":
                self.data = host.read_bytes()
            else:
                self.below = {each.name: from_host(each) for each in host.iterdir() if each.exists()}
        return self

    def entry(self, name: str) -> Entry:
        return Entry(name, self.kind, len(self.data) if self.kind == "file" else 0, self.mode, self.modified_s)


def directory(mode: int = 0o755, *, read_only: bool = False) -> Node:
    return Node("directory", mode, read_only=read_only)


class Files:
    """A tree whose writable directories hold ``most_bytes`` together."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._root = directory(0o555, read_only=True)
        for path in WRITABLE:
            self._shown(path, directory(0o1777))

    def show(self, path: str, node: Node) -> None:
        """Places what a store holds; nothing below it can be changed."""
        self._shown(path, node)

    def _shown(self, path: str, node: Node) -> None:
        *parents, name = _parts(path)
        at = self._root
        for part in parents:
            at = at.below.setdefault(part, directory(0o555, read_only=True))
        at.below[name] = node

    def find(self, path: str) -> Node:
        """Returns what is at ``path``; links are not followed. Raises FileNotFound."""
        at = self._root
        for part in _parts(path):
            if part not in at.below:
                raise FileNotFound("path", f"there is no {path!r}")
            at = at.below[part].opened()
        return at

    def read(self, path: str) -> bytes:
        """Returns a regular file's bytes. Raises FileNotFound."""
        node = self.find(path)
        if node.kind != "file":
            raise FileNotFound("path", f"{path!r} is not a regular file")
        return node.data

    def place(self, path: str, node: Node, *, instead: bool = True) -> None:
        """Puts ``node`` at ``path`` with the directories above it.

        It takes the place of a file or link where ``instead``. Raises InvalidInput, QuotaExceeded.
        """
        parent, name = self._parent(path, make=True)
        there = parent.below.get(name)
        if there is not None and (not instead or "directory" in (there.kind, node.kind)):
            raise InvalidInput("path", f"{path!r} is there already")
        if node.data and self.used() - (len(there.data) if there else 0) + len(node.data) > self._most_bytes:
            raise QuotaExceeded("path", f"the disk limit leaves no room for {path!r}")
        parent.below[name] = node

    def make_directory(self, path: str) -> None:
        """Makes a directory that may be there already. Raises InvalidInput."""
        parent, name = self._parent(path, make=True)
        if parent.below.setdefault(name, directory()).kind != "directory":
            raise InvalidInput("path", f"{path!r} is not a directory")

    def remove(self, path: str) -> None:
        """Removes a name with all below it. Raises FileNotFound, InvalidInput."""
        self.find(path)
        parent, name = self._parent(path, make=False)
        del parent.below[name]

    def used(self) -> int:
        """Returns the bytes in the writable directories."""
        return sum(len(node.data) for top in WRITABLE for _, node in walk(self.find(top)))

    def _parent(self, path: str, *, make: bool) -> tuple[Node, str]:
        parts = _parts(path)
        at = self._root
        for part in parts[:-1]:
            if make and not at.read_only:
                at.below.setdefault(part, directory())
            if part not in at.below or at.below[part].kind != "directory":
                raise InvalidInput("path", f"{path!r} does not lie in a directory")
            at = at.below[part]
        if at.read_only or not parts:
            raise InvalidInput("path", f"{path!r} is not below a writable directory")
        return at, parts[-1]


def walk(node: Node, name: str = "") -> Iterator[tuple[str, Node]]:
    """Yields all that is below a node, with its path from there."""
    for part, below in sorted(node.below.items()):
        path = f"{name}/{part}" if name else part
        yield path, below.opened()
        yield from walk(below, path)


def from_host(path: Path) -> Node:
    """Returns a file or directory of this host. Raises OSError where there is none."""
    about = path.stat()
    kind = "directory" if path.is_dir() else "file"
    return Node(kind, about.st_mode & 0o777, read_only=True, host=path, modified_s=about.st_mtime)


def from_tar(stream: bytes) -> Node:
    """Returns the tree of a tar stream without links. Raises ArchiveRefused."""
    files = Files(len(stream))
    unpack(files, "/workspace", stream, links=False)
    root = files.find("/workspace")
    for node in (root, *(node for _, node in walk(root))):
        node.read_only = True
        node.mode = 0o555 if node.kind == "directory" or node.mode & 0o100 else 0o444
    return root


def unpack(files: Files, path: str, stream: bytes, *, links: bool) -> None:
    """Places the entries of a tar stream. Raises ArchiveRefused, and as :meth:`Files.place` does."""
    checked = TarStream(_Checked(), links=links)
    checked.feed(stream)
    checked.finish()
    with tarfile.open(fileobj=io.BytesIO(stream), errors="surrogateescape") as found:
        for info in found:
            at = f"{path}/{info.name}"
            content = found.extractfile(info) if info.isreg() else None
            if info.isdir():
                files.make_directory(at)
            else:
                data = content.read() if content else b""
                kind = "link" if info.issym() else "file"
                files.place(at, Node(kind, info.mode & 0o777, data, target=info.linkname))


class _Checked:
    """A sink that refuses names outside of the tree."""

    def header(self) -> None:
        """Takes any number of headers."""

    def begin(self, entry: TarEntry) -> None:
        parts = entry.name.split(b"/")
        if entry.name.startswith(b"/") or b".." in parts or len(parts) > _MOST_DEPTH:
            raise ArchiveRefused("archive-traversal", entry.name, "lies outside of its tree, or too deep")

    def write(self, data: memoryview) -> None:
        """Takes content of any kind."""

    def end(self) -> None:
        """Takes the end of an entry."""


class FilesOfTwin:
    """The file operations of the port over :class:`Files`."""

    def __init__(self, files: Files) -> None:
        self.files = files

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        data = self.files.read(path)[offset : None if length is None else offset + length]
        for at in range(0, len(data), PIECE):
            yield data[at : at + PIECE]

    async def write(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> int:
        data = b"".join([chunk async for chunk in chunks])
        self.files.place(path, Node("file", mode, data))
        return len(data)

    async def entries(self, path: str) -> Sequence[Entry]:
        node = self.files.find(path)
        if node.kind != "directory":
            raise FileNotFound("path", f"{path!r} is not a directory")
        return [below.opened().entry(name) for name, below in sorted(node.below.items())[:_MOST_ENTRIES]]

    async def stat(self, path: str) -> Entry:
        return self.files.find(path).entry(path.rpartition("/")[2])

    async def remove(self, path: str) -> None:
        self.files.remove(path)

    async def end_files(self) -> None:
        """Does nothing: no program serves a twin's files."""

    async def put(self, path: str, chunks: AsyncIterator[bytes]) -> None:
        if path not in WRITABLE:
            self.files.make_directory(path)
        try:
            unpack(self.files, path, b"".join([chunk async for chunk in chunks]), links=True)
        except ArchiveRefused as refused:
            raise InvalidInput("chunks", str(refused)) from None

    async def get(self, path: str) -> AsyncIterator[bytes]:
        node, out = self.files.find(path), io.BytesIO()
        found = walk(node) if node.kind == "directory" else [(path.rpartition("/")[2], node)]
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as made:
            for name, each in found:
                if each.kind == "other":
                    continue
                info = tarfile.TarInfo(name)
                info.type = _TYPES[each.kind]
                info.size, info.mode, info.linkname = len(each.data), each.mode, each.target
                made.addfile(info, io.BytesIO(each.data))
        data = out.getvalue()
        for at in range(0, len(data), PIECE):
            yield data[at : at + PIECE]


_TYPES = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part and part != "."]
    if not path.startswith("/") or ".." in parts:
        raise InvalidInput("path", f"{path!r} is not an absolute path without '..'")
    return parts
