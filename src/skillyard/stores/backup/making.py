"""Makes a backup of a data directory, also while a server works there.

The database is copied first, as it is at one moment. A row comes after its files, so that the files of the copied rows
are there; a blob that is removed meanwhile leaves the copy too. Blobs and published skills never change.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import sqlite3
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from skillyard._version import __version__
from skillyard.domain.archive.names import ArchiveRefused, parts_of
from skillyard.domain.errors import InvalidInput, StoreFault
from skillyard.stores.backup import manifest
from skillyard.stores.backup.keys import KeysFile
from skillyard.stores.backup.manifest import DATABASE, SEALED, Facts, ManifestWriter
from skillyard.stores.disk import remove_tree, sync_path
from skillyard.stores.files.state_file import StateFile
from skillyard.stores.seal.keys import Key, KeySource
from skillyard.stores.seal.sealing import key_id, load
from skillyard.stores.sqlite.faults import as_fault

DEPTH = 38
PATH = 4096
BUSY_S = 60.0
TRIES = 5
LEFT_OUT = (
    "built environments: their locks are there, and they are built again when they are first needed",
    "sandboxes: runs that were at work are recorded as lost",
    "skills and settings that lie outside the data directory",
)


class BackupMaker:
    """Works in a directory beside ``destination``, which appears when all of it is on the disk.

    Made by :func:`making`. :attr:`database` is the copy of the database, which the caller may change before
    :meth:`finish`.
    """

    def __init__(self, home: Path, work: Path, destination: Path) -> None:
        self._home = home
        self._work = work
        self._destination = destination
        self._lacks: list[str] = []
        self._left_out = list(LEFT_OUT)
        self.database = work / DATABASE
        copy_database(home / DATABASE, self.database)

    def finish(self, keys: KeySource, keys_file: Path | None, now: float) -> tuple[Facts, int, int]:
        """Writes the archive, and the keys to ``keys_file``.

        Returns the facts, and how many files and bytes the archive has. Raises StoreFault, OSError.
        """
        token = _text(self._home / "token")
        with StateFile(self._home / SEALED).locked():  # a rotation changes both
            sealed = StateFile(self._home / SEALED).read()
            found = _keys(keys, sealed) if keys_file is not None else []
        if sealed is not None:
            (self._work / SEALED).write_bytes(sealed)
            if found:  # so that nobody trusts in a key that opens nothing
                load(sealed, found, str(self._home / SEALED), now)
        archive = self._work / "archive"
        with tempfile.TemporaryFile(dir=self._work) as lines, archive.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            writer = ManifestWriter(cast("BinaryIO", lines))
            with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
                self._write(tar, writer)
                facts = Facts(
                    __version__,
                    now,
                    key_id(sealed, SEALED) if sealed is not None else "",
                    bool(token),
                    tuple(self._lacks),
                    tuple(self._left_out),
                )
                self._close(tar, writer, facts)
            file.flush()
            os.fsync(file.fileno())
        if keys_file is not None:
            KeysFile(tuple(key.text() for key in found), token).write(keys_file)
        _refuse_existing(self._destination)
        archive.rename(self._destination)
        sync_path(self._destination.parent)
        return facts, writer.files, self._destination.stat().st_size

    def _write(self, tar: tarfile.TarFile, writer: ManifestWriter) -> None:
        """Writes the files in ascending order of their paths."""
        with closing(_connected(self.database)) as copy:
            self._write_blobs(copy, tar, writer)
            digests = [str(row[0]) for row in copy.execute("SELECT DISTINCT digest FROM publications ORDER BY 1")]
        self._write_changing("config.toml", tar, writer)
        for name in _names(self._home / "environments" / "locks"):
            if manifest.belongs(path := f"environments/locks/{name}"):
                self._write_changing(path, tar, writer)
        if (self._work / SEALED).exists():
            _add(tar, writer, SEALED, self._work / SEALED)
        self._write_tree("skills", tar, writer)
        _add(tar, writer, DATABASE, self.database)
        for digest in digests:
            self._write_snapshot(digest, tar, writer)
        self._write_changing("tokens.json", tar, writer)

    def _write_blobs(self, copy: sqlite3.Connection, tar: tarfile.TarFile, writer: ManifestWriter) -> None:
        gone: list[tuple[str]] = []
        query = "SELECT content_key, min(sha256), min(size) FROM blobs WHERE content IS NULL GROUP BY 1 ORDER BY 1"
        with closing(_connected(self._home / DATABASE)) as live:
            for key, sha256, size in copy.execute(query):
                path = f"blobs/sha256/{key[:2]}/{key}"
                try:
                    stored = _add(tar, writer, path, self._home / path)
                except FileNotFoundError:
                    if _is_named(live, key):
                        self._lacks.append(f"the content of a blob: {path} is missing")
                    else:
                        gone.append((key,))
                    continue
                if stored != (size, sha256):
                    self._lacks.append(f"the content of a blob: {path} was damaged before")
        copy.executemany("DELETE FROM blobs WHERE content_key = ?", gone)
        copy.commit()

    def _write_snapshot(self, digest: str, tar: tarfile.TarFile, writer: ManifestWriter) -> None:
        if not (self._home / "snapshots" / digest).is_dir():
            self._lacks.append(f"the files of a published version: snapshots/{digest} is missing")
            return
        for path, info in self._files(f"snapshots/{digest}"):
            _add(tar, writer, path, self._home / path, executable=bool(info.st_mode & 0o100))

    def _write_tree(self, path: str, tar: tarfile.TarFile, writer: ManifestWriter) -> None:
        for found, info in self._files(path):
            self._write_changing(found, tar, writer, executable=bool(info.st_mode & 0o100))

    def _write_changing(
        self, path: str, tar: tarfile.TarFile, writer: ManifestWriter, *, executable: bool = False
    ) -> None:
        """Adds a file that others may change meanwhile, as it was between two changes."""
        taken = self._work / "taken"
        for _ in range(TRIES):
            try:
                with _regular(self._home / path) as file, taken.open("wb") as copy:
                    before = _stamp(file)
                    shutil.copyfileobj(file, copy)
                    after = _stamp(file)
            except FileNotFoundError:
                return
            if before == after:
                _add(tar, writer, path, taken, executable=executable)
                return
        raise StoreFault(f"{self._home / path} changes all the time: make the backup when nobody writes it")

    def _files(self, path: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yields the regular files below ``path`` in ascending order. Others are told as left out."""
        for name in _names(self._home / path):
            below = f"{path}/{name}"
            try:
                info = (self._home / below).lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(info.st_mode):
                yield from self._files(below)
            elif self._fits(below, info):
                yield below, info

    def _fits(self, path: str, info: os.stat_result) -> bool:
        why = "" if stat.S_ISREG(info.st_mode) else "is not a regular file"
        try:
            parts_of(os.fsencode(path), max_depth=DEPTH, max_path=PATH)
        except ArchiveRefused as refused:
            why = refused.message
        if why:
            self._left_out.append(f"{path!r}: {why}")
        return not why

    def _close(self, tar: tarfile.TarFile, writer: ManifestWriter, facts: Facts) -> None:
        with tempfile.TemporaryFile(dir=self._work) as whole:
            whole.writelines(writer.pieces(facts))
            info = _info(manifest.NAME, whole.tell(), executable=False)
            whole.seek(0)
            tar.addfile(info, whole)


@contextmanager
def making(home: Path, destination: Path, keys_file: Path | None) -> Iterator[BackupMaker]:
    """Begins a backup of the data directory ``home``.

    Nothing is left of one that fails. Raises InvalidInput for places that cannot be, StoreFault, OSError.
    """
    home, destination = home.absolute(), destination.absolute()
    _check_places(home, destination, keys_file)
    work = destination.with_name(f".{destination.name}.part")
    with ExitStack() as stack:
        with suppress(FileExistsError):
            work.mkdir(mode=0o700)
        handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput("DEST", "is being written by another backup; wait for it") from None
        if os.fstat(handle).st_uid != os.geteuid():
            raise InvalidInput("DEST", f"cannot be written: {work} belongs to another user; choose another place")
        for name in _names(work):  # a backup that was killed left them
            remove_tree(work / name)
        stack.callback(remove_tree, work)
        yield BackupMaker(home, work, destination)


def _check_places(home: Path, destination: Path, keys_file: Path | None) -> None:
    if not (home / DATABASE).is_file():
        raise InvalidInput("--data-dir", f"must be a data directory of skillyard: {home} has no {DATABASE}")
    _refuse_existing(destination)
    real = home.resolve()
    if real in destination.resolve().parents:
        raise InvalidInput("DEST", "must not lie in the data directory: both would be lost together")
    if keys_file is None:
        return
    if keys_file.absolute().resolve() == destination.resolve():
        raise InvalidInput("--keys", "must be another file than the backup: who has both has the secrets")
    if real in keys_file.absolute().resolve().parents:
        raise InvalidInput("--keys", "must not lie in the data directory: both would be lost together")
    if os.path.lexists(keys_file):
        raise InvalidInput("--keys", f"must be a new file: {keys_file} exists")


def _refuse_existing(destination: Path) -> None:
    if os.path.lexists(destination):
        raise InvalidInput("DEST", f"must be a new file: {destination} exists")


def copy_database(source: Path, target: Path) -> None:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with closing(_connected(source)) as live, closing(_connected(target)) as copy:
            live.backup(copy)
    except sqlite3.Error as error:
        raise as_fault(error, str(source)) from error


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _is_named(live: sqlite3.Connection, key: str) -> bool:
    return bool(live.execute("SELECT 1 FROM blobs WHERE content_key = ? LIMIT 1", (key,)).fetchall())


def _keys(keys: KeySource, sealed: bytes | None) -> list[Key]:
    """Returns the keys; none where nothing was ever sealed."""
    try:
        return keys.read()
    except StoreFault:
        if sealed is not None:
            raise
        return []


class _Hashed:
    """Reads a file and counts and hashes its bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        return data

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def _add(
    tar: tarfile.TarFile, writer: ManifestWriter, path: str, file: Path, *, executable: bool = False
) -> tuple[int, str]:
    """Adds a file that does not change, and returns its size and digest. Raises FileNotFoundError, StoreFault."""
    with _regular(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        hashed = _Hashed(opened)
        try:
            tar.addfile(_info(path, size, executable=executable), cast("BinaryIO", hashed))
        except OSError as error:
            if error.errno is not None:
                raise
            raise StoreFault(
                f"{file} became shorter while it was read: its disk is damaged or somebody wrote"
            ) from None
    writer.add(path, size, hashed.sha256)
    return size, hashed.sha256


def _info(path: str, size: int, *, executable: bool) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, 0o755 if executable else 0o644
    return info


def _regular(path: Path) -> BinaryIO:
    """Opens a file for reading, never through a link. Raises FileNotFoundError also where it is not a regular file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(errno.ENOENT, "it is a link", str(path)) from None
        raise
    file = open(handle, "rb")  # noqa: PTH123, SIM115 - a descriptor, which the caller closes
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise FileNotFoundError(errno.ENOENT, "it is not a regular file", str(path))
    return file


def _stamp(file: BinaryIO) -> tuple[int, int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _names(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _text(file: Path) -> str:
    try:
        with _regular(file) as opened:
            return opened.read(4096).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""
