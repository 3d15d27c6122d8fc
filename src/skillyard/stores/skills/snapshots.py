"""Immutable, content-addressed copies of bundles: what sandboxes mount.

``<directory>/<digest>/`` holds files 0444 (0555 when executable) in directories 0555; ``<directory>`` itself is
0700. A copy appears by rename, whole or not at all. One that was there before this process is compared with the
bytes it should hold before it is used, and made anew when it differs.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

from skillyard.stores.disk import remove_tree, sync_path
from skillyard.stores.skills.tree import Tree, TreeFile

_TEMPORARY = ".tmp-"


class Snapshots:
    """May be shared between threads. With ``sync``, a snapshot is on the disk when :meth:`store` returns, and survives
    the loss of power whole."""

    def __init__(self, directory: Path, *, sync: bool = False) -> None:
        self._directory = directory
        self._sync = sync
        self._lock = threading.Lock()
        self._trusted: set[str] = set()

    def path(self, digest: str) -> Path:
        return self._directory / digest

    def store(self, tree: Tree) -> Path:
        """Returns the snapshot of ``tree``, and makes it when it is not there. Raises OSError."""
        with self._lock:
            return self._stored(tree)

    def _stored(self, tree: Tree) -> Path:
        home = self.path(tree.digest)
        if tree.digest in self._trusted and home.is_dir():
            return home
        self._directory.mkdir(parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        if home.exists() and not _holds(home, tree):
            remove_tree(home)
        if not home.exists():
            self._make(tree, home)
        self._trusted.add(tree.digest)
        return home

    def _make(self, tree: Tree, home: Path) -> None:
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self._directory))
        try:
            _write(tree, temporary)
            if self._sync:
                _sync_tree(temporary)
            temporary.rename(home)
            if self._sync:
                sync_path(self._directory)
        except OSError as error:
            remove_tree(temporary)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # somebody else made the same one
                raise

    def names(self) -> set[str]:
        """Returns the names in the directory: digests, and temporary ones that a crash left."""
        try:
            with os.scandir(self._directory) as entries:
                return {entry.name for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def remove(self, names: Iterable[str]) -> None:
        """Removes some of :meth:`names`."""
        for name in names:
            remove_tree(self._directory / name)
            self._trusted.discard(name)


def _write(tree: Tree, home: Path) -> None:
    for path, file in tree.files.items():
        target = home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        target.chmod(_mode(file))
    for directory, _, _ in os.walk(home, topdown=False):
        Path(directory).chmod(0o555)


def _sync_tree(home: Path) -> None:
    for directory, _, names in os.walk(home):
        for name in names:
            sync_path(Path(directory, name))
        sync_path(Path(directory))


def _mode(file: TreeFile) -> int:
    return 0o555 if file.executable else 0o444


def _holds(home: Path, tree: Tree) -> bool:
    """Returns whether a snapshot is exactly ``tree``: nothing missing, changed, added or linked."""
    found = {str(path.relative_to(home)): path for path in home.rglob("*") if not _is_directory(path)}
    return found.keys() == tree.files.keys() and all(_same(found[path], file) for path, file in tree.files.items())


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _same(path: Path, file: TreeFile) -> bool:
    have = path.lstat()
    plain = stat.S_ISREG(have.st_mode) and stat.S_IMODE(have.st_mode) == _mode(file)
    return plain and have.st_size == len(file.data) and path.read_bytes() == file.data
