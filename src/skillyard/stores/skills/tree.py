"""Reads a bundle from an untrusted directory: once, whole, into memory, within caps.

This one reading is checked, hashed and stored, so that a directory that changes meanwhile cannot show one thing to the
validator and another to a sandbox. Every name is opened relative to its open parent, without following links; a link is
followed by hand, when it stays inside.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path

from skillyard.domain.skill.name import is_excluded
from skillyard.domain.skill.skill import Finding
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class Caps:
    """The size of a skill, at most. Every host has to support 512 files and 16 MiB (agent-skills-format §4)."""

    files: int = 512
    bytes: int = 16 * 1024 * 1024
    depth: int = 16


@dataclass(frozen=True, slots=True)
class TreeFile:
    data: bytes = field(repr=False)
    executable: bool
    sha256: str


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of a bundle by relative path, sorted. ``digest`` covers every path, mode and content."""

    files: Mapping[str, TreeFile]
    digest: str


class _Full(Exception):
    """A cap was reached: reading on would not change the answer."""


def read_tree(root: Path, caps: Caps) -> tuple[Tree | None, list[Finding]]:
    """Returns the tree, or None and the errors: links out of it, special files, caps, odd names."""
    reader = _Reader(root, caps)
    with suppress(_Full):
        _read_into(reader, root)
    if reader.findings:
        return None, reader.findings
    files = dict(sorted(reader.files.items()))
    return Tree(files, digest_of(files)), []


def _read_into(reader: _Reader, root: Path) -> None:
    try:
        with _opened(root) as home:
            reader.home = home
            reader.directory(home, "", 0)
    except OSError as error:
        reader.report(reader.at, "unreadable", f"cannot be read: {error.strerror}")


def digest_of(files: Mapping[str, TreeFile]) -> str:
    """Returns the hex SHA-256 over ``path NUL mode NUL sha256`` of every file, by path."""
    whole = hashlib.sha256(b"skillyard-skill-1\n")
    for path, file in files.items():
        whole.update(f"{path}\0{'x' if file.executable else '-'}\0{file.sha256}\n".encode())
    return whole.hexdigest()


class _Reader:
    """One reading. Paths are relative to the root, with ``/``."""

    def __init__(self, root: Path, caps: Caps) -> None:
        self.files: dict[str, TreeFile] = {}
        self.findings: list[Finding] = []
        self.at = ""
        self.home = -1
        """The root, open: it may be another directory by name meanwhile."""
        self._real = os.path.realpath(root)
        self._caps = caps
        self._bytes = 0
        self._seen = 0

    def report(self, path: str, rule: str, message: str) -> None:
        self.findings.append(Finding("error", shown(path) or ".", 0, rule, message))
        if len(self.findings) >= 20:
            raise _Full

    def directory(self, handle: int, path: str, depth: int) -> None:
        if depth > self._caps.depth:
            self.report(path, "tree-depth", f"is nested deeper than {self._caps.depth} directories")
            raise _Full
        with os.scandir(handle) as entries:
            names = sorted(entry.name for entry in entries if not is_excluded(entry.name))
        for name in names:
            self._count(path)
            relative = f"{path}/{name}" if path else name
            if self._is_plain(name, relative):
                self._entry(handle, name, relative, depth)

    def _count(self, path: str) -> None:
        self._seen += 1
        if self._seen > 4 * self._caps.files:
            self.report(path, "tree-files", f"the skill has more than {4 * self._caps.files} files and directories")
            raise _Full

    def _is_plain(self, name: str, relative: str) -> bool:
        if name.isprintable() and "\\" not in name:
            return True
        self.report(relative, "file-name", "must be UTF-8 without backslashes and control characters")
        return False

    def _entry(self, parent: int, name: str, relative: str, depth: int) -> None:
        self.at = relative
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            self._link(relative, depth)
        elif stat.S_ISDIR(mode):
            with _opened(name, parent) as handle:
                self.directory(handle, relative, depth + 1)
        elif stat.S_ISREG(mode):
            self._file(parent, name, relative)
        else:
            self.report(relative, "special-file", "must be a file, a directory or a link inside the skill")

    def _file(self, parent: int, name: str, relative: str) -> None:
        # Non-blocking: a FIFO put in the file's place meanwhile must not hold us up.
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        with os.fdopen(handle, "rb") as stream:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                self.report(relative, "special-file", "must be a file, a directory or a link inside the skill")
                return
            room = self._caps.bytes - self._bytes
            data = b"" if found.st_size > room else stream.read(room + 1)
        self._store(relative, data, max(found.st_size, len(data)), bool(found.st_mode & stat.S_IXUSR))

    def _store(self, relative: str, data: bytes, size: int, executable: bool) -> None:
        if self._bytes + size > self._caps.bytes:
            self.report(relative, "tree-bytes", f"brings the skill over {self._caps.bytes} bytes")
            raise _Full
        if len(self.files) >= self._caps.files:
            self.report(relative, "tree-files", f"brings the skill over {self._caps.files} files")
            raise _Full
        self._bytes += len(data)
        self.files[relative] = TreeFile(data, executable, hashlib.sha256(data).hexdigest())

    def _link(self, relative: str, depth: int) -> None:
        """Reads the target of a link in its place, when that is a part of the skill."""
        target = os.path.realpath(os.path.join(self._real, relative))  # noqa: PTH118 - text in, text out
        inside = target.startswith(self._real.rstrip("/") + "/")
        parts = target[len(self._real.rstrip("/")) + 1 :].split("/") if inside else []
        if not inside:
            self.report(relative, "link-outside", "is a link that leaves the skill's directory")
        elif any(is_excluded(part) for part in parts):
            self.report(relative, "link-excluded", "is a link to something that is no part of a skill")
        elif is_below(target, os.path.join(self._real, relative)):  # noqa: PTH118
            self.report(relative, "link-loop", "is a link to a directory that holds it")
        else:
            self._follow(parts, relative, depth)

    def _follow(self, parts: list[str], relative: str, depth: int) -> None:
        with _walked(self.home, parts[:-1]) as parent:
            try:
                mode = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode
            except FileNotFoundError:
                self.report(relative, "link-broken", "is a link to nothing")
                return
            if stat.S_ISLNK(mode):
                self.report(relative, "link-loop", "is a link that leads to itself")
            else:
                self._entry(parent, parts[-1], relative, depth)


def is_below(directory: str, path: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


@contextmanager
def _opened(path: Path | str, parent: int | None = None) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (os.O_NOFOLLOW if parent is not None else 0)
    handle = os.open(path, flags, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _walked(root: int, parts: list[str]) -> Iterator[int]:
    """Opens the directories ``parts`` below ``root`` one by one, without following links."""
    handle = os.dup(root)
    try:
        for part in parts:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def shown(path: str) -> str:
    """Returns a path as it can stand in a message: one line, printable."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
