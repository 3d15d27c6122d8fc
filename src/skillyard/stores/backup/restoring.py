"""Makes a data directory of a backup, which may hold anything.

All of it is unpacked and checked in ``restoring`` below the data directory, and moved up then. While that name is
there, no server takes the directory; it goes last.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from skillyard.domain.archive.names import ArchiveRefused, parts_of
from skillyard.domain.errors import InvalidInput, StoreFault
from skillyard.stores.backup import manifest
from skillyard.stores.backup.keys import KeysFile
from skillyard.stores.backup.making import DEPTH, PATH
from skillyard.stores.backup.manifest import DATABASE, SEALED, BadBackup, Facts, Listed, ManifestReader
from skillyard.stores.disk import remove_tree, sync_path
from skillyard.stores.files.state_file import StateFile
from skillyard.stores.seal.keys import parse_keys
from skillyard.stores.seal.sealing import load
from skillyard.stores.sqlite import migrations
from skillyard.tar_receiver import ReceiverLimits, TarReceiver

_PIECE = 1024 * 1024
_ENTRY = 512
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Restored:
    """A backup that was unpacked and checked, below ``tree``. Made by :func:`restoring`."""

    def __init__(self, home: Path, tree: Path, facts: Facts, files: int, keys: KeysFile | None) -> None:
        self._home = home
        self.tree = tree
        self.facts = facts
        self.files = files
        self.keys = keys

    @property
    def lacks(self) -> list[str]:
        """Returns sentences about things that the restored directory does not have."""
        lacks = list(self.facts.lacks)
        if self.facts.key and not (self.keys and self.keys.secrets_keys):
            lacks.append(
                f"the key of the secrets (its id is {self.facts.key}): put it into secrets.key in the data directory, "
                "or give it as the settings or SKILLYARD_SECRETS_KEY say; without it the secrets stay closed"
            )
        return lacks

    def commit(self) -> None:
        """Moves everything to its place. The data directory can be used when this returns. Raises OSError."""
        if self.keys is not None and self.keys.secrets_keys:
            text = "".join(f"{key}\n" for key in self.keys.secrets_keys)
            StateFile(self.tree / "secrets.key").replace(text.encode())
        os.sync()
        for entry in sorted(self.tree.iterdir()):
            if os.path.lexists(place := self._home / entry.name):
                raise InvalidInput("--data-dir", f"must be empty: {place} came meanwhile; empty it, and restore again")
            entry.rename(place)
        sync_path(self._home)
        self.tree.rmdir()
        sync_path(self._home)


@contextmanager
def restoring(source: Path, home: Path, tree: Path, keys_file: Path | None) -> Iterator[Restored]:
    """Unpacks a backup into ``tree``, an empty directory below ``home``, and checks all of it.

    Raises BadBackup, InvalidInput for keys that open nothing, OSError. The unpacked files are removed then.
    """
    keys = None if keys_file is None else KeysFile.read(keys_file)
    try:
        with source.open("rb") as archive:
            _unpack(archive, tree)
        with _manifest(tree) as lines:
            reader = ManifestReader(lines)
            files = _check_files(tree, reader)
        (tree / manifest.NAME).unlink()
        _check_secrets(tree, keys, reader.facts.created_at)
        _check_database(tree / DATABASE)
        yield Restored(home, tree, reader.facts, files, keys)
    except ArchiveRefused as refused:
        raise BadBackup(f"must be an archive that `skillyard backup` made: {refused}") from None
    finally:
        if [entry.name for entry in home.iterdir()] == [tree.name]:  # nothing was moved
            remove_tree(tree)


def _unpack(archive: BinaryIO, tree: Path) -> None:
    # Nothing in a tar archive is larger than the archive: its size bounds all that is written.
    most = os.fstat(archive.fileno()).st_size
    limits = ReceiverLimits(most, most // _ENTRY + 1, DEPTH + 2, PATH, large=True)
    with TarReceiver(tree, limits) as receiver:
        while piece := archive.read(_PIECE):
            receiver.feed(piece)
        receiver.finish()


def _manifest(tree: Path) -> BinaryIO:
    try:
        return os.fdopen(os.open(tree / manifest.NAME, _FILE), "rb")
    except (FileNotFoundError, IsADirectoryError):
        raise BadBackup("must be an archive that `skillyard backup` made: it has no manifest") from None


def _check_files(tree: Path, listed: ManifestReader) -> int:
    """Compares each file with its line, and gives it its mode. Returns the number of files."""
    count = 0
    seen = False
    for line in listed:
        _check_file(tree, line)
        seen |= line.path == DATABASE
        count += 1
    if not seen:
        raise BadBackup("is damaged: it has no database; take another backup")
    there = 0
    for directory, below, names in os.walk(tree, topdown=False):
        there += len(names)
        if not names and not below:
            raise BadBackup("has a directory that no backup has; take another backup")
        if directory != str(tree):
            Path(directory).chmod(manifest.directory_mode(f"{Path(directory).relative_to(tree)}"))
    if there != count + 1:
        raise BadBackup("is damaged: it has files that its manifest does not name; take another backup")
    return count


def _check_file(tree: Path, line: Listed) -> None:
    shown = repr(line.path[:200])
    try:
        parts = parts_of(line.path.encode("utf-8", "surrogatepass"), max_depth=DEPTH, max_path=PATH)
    except ArchiveRefused as refused:
        raise BadBackup(f"has a file that no backup has: {refused}") from None
    if "/".join(parts) != line.path or not manifest.belongs(line.path):
        raise BadBackup(f"has a file that no backup has: {shown}")
    try:
        handle = os.open(tree / line.path, _FILE)
    except OSError:
        raise BadBackup(f"is damaged: it lacks {shown}; take another backup") from None
    with os.fdopen(handle, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        status = os.fstat(handle)
        if status.st_size != line.size or digest != line.sha256:
            raise BadBackup(f"is damaged: {shown} does not have its digest; take another backup")
        os.fchmod(handle, manifest.file_mode(line.path, executable=bool(status.st_mode & 0o100)))


def _check_secrets(tree: Path, keys: KeysFile | None, created_at: float) -> None:
    if keys is None or not (tree / SEALED).exists():
        return
    if not keys.secrets_keys:
        raise InvalidInput("--keys", "must be the keys of this backup: the file has no key of secrets")
    try:
        found = parse_keys(",".join(keys.secrets_keys), "--keys")
        load((tree / SEALED).read_bytes(), found, "the backup's file of secrets", created_at)
    except StoreFault as fault:
        raise InvalidInput("--keys", f"must be the keys of this backup: {fault.message}") from None


def _check_database(path: Path) -> None:
    # A trigger that is not ours would run in the server.
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?immutable=1", uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            known = migrations.known()
            if version > len(known):
                raise BadBackup("was made by a newer skillyard; restore it with that version")
            if version < 1 or _schema(connection) != _schema_of(known[:version]):
                raise BadBackup("has a database that is not one of skillyard's")
            if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
                raise BadBackup("has a damaged database; take another backup")
    except sqlite3.Error as error:
        raise BadBackup(f"has a damaged database ({error}); take another backup") from None


def _schema_of(steps: list[migrations.Migration]) -> set[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        for step in steps:
            fresh.executescript(step.sql)
        return _schema(fresh)


def _schema(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Returns the names of all things, and the texts of those that run."""
    query = """SELECT type, name, tbl_name, CASE WHEN type IN ('trigger', 'view') THEN sql ELSE '' END
        FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"""
    return {tuple(map(str, row)) for row in connection.execute(query)}
